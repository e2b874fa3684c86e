"""Every matrix in every format that may be chosen for it, rounded once: what allocations are searched over.

Rounded to nearest, or by GPTQ with the inputs of the float model, each matrix by itself: so the database of EvoPress
is made. The matrices are in files beside those of the export, and go with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgedec.bundle.integers import is_integer
from edgedec.export.grids import GRIDS
from edgedec.export.passes import PassContext, PassModel
from edgedec.export.passes._rounded import RoundedStore
from edgedec.export.passes._solve import solve
from edgedec.export.passes._statistics import Moments, Statistics
from edgedec.export.quantize import codes_of, quantize
from edgedec.runtimes.reference.numeric import Array

By = Literal["nearest", "gptq"]
DAMP, SWEEPS = 0.01, 1


@dataclass(frozen=True)
class RoundedLevels:
    """The matrices of `names` in `formats`. by: how they are rounded."""

    host: PassContext
    model: PassModel
    formats: Sequence[str]
    by: By

    @property
    def store(self) -> RoundedStore:
        return self.host.store.inside(f"levels-{self.by}")

    def make(self, names: Sequence[str], statistics: Statistics) -> RoundedLevels:
        """Round what is not there yet."""
        spec, done = self.model.spec, 0
        run = statistics.run(spec, self.model.read) if self.by == "gptq" else None
        for b in range(spec.n_blocks):
            inner = [name for name in names if name.startswith(f"blocks.{b}.")]
            moments = run.moments(b) if run is not None and inner else {}
            for name in inner:
                self._round(name, moments.get(name))
                done += 1
                self.host.progress(f"levels ({self.by})", done, len(names))
            if run is not None:
                run.advance(b)
        return self

    def get(self, name: str, fmt: str) -> Array:
        """The values of a matrix in a format."""
        assert is_integer(fmt)
        found = self.store.get(name, fmt, self.host.block)
        assert found is not None, f"{name} has no level {fmt}"
        return found.floats(0, self.model.spec.tensors()[name][0])

    def _round(self, name: str, moments: Moments | None) -> None:
        """One matrix in all formats; to nearest where its inputs are not known."""
        weights, block = self.model.read(name, 0, self.model.spec.tensors()[name][0]), self.host.block
        for fmt in self.formats:
            assert is_integer(fmt)
            if self.store.get(name, fmt, block) is not None:
                continue
            if moments is None:
                data, scales = quantize(weights, fmt, block)
                codes = codes_of(data, fmt, weights.shape[1])
            else:
                wide = weights.astype(np.float64)
                codes, scales = solve(wide, moments.diagonal, GRIDS[fmt], block, DAMP, True, SWEEPS)
            self.store.put(name, fmt, block, codes, scales)
