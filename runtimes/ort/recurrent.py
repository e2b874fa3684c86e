"""The host's part of a state-space block: what its graph needs of a tree, and the state after any row of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.runtime import Rows
from edgedec.spec import ModelSpec, Ssm

Array = NDArray[np.float32]


class Tree:
    """The pending tree of one block, from the state it began with: the inputs (xbc, dt) of all rows so far."""

    OUTPUTS: ClassVar[tuple[str, ...]] = ("xbc", "dt", "mixed", "state_out")

    def __init__(self, spec: ModelSpec, b: int, rows: Rows, kept: RecurrentState, a: Array) -> None:
        self.block: Ssm = spec.recurrent[b]
        self._b, self._rows, self._kept, self._a = b, rows, kept, a
        self._start = kept.committed if rows.first == 0 else kept.start
        before = kept.pending[rows.first - 1].__self__.at(rows.first) if rows.first else None  # type: ignore[attr-defined]
        self._xbc, self._dt = before or (np.zeros((0, self.block.conv_dim), np.float32), np.zeros((0, self.block.n_heads), np.float32))

    def bind(self, binding: Any) -> None:
        """Bind the inputs of the block's graph, and its outputs."""
        b, size = self._b, self.block.conv_size
        self._inputs = {
            f"past_xbc.{b}": self._xbc,
            f"past_dt.{b}": self._dt,
            f"conv.{b}": self._start.conv,
            f"state.{b}": self._start.state,
            f"paths.{size}": paths(self._rows, size),
            "ancestors": ancestors(self._rows).astype(np.float32),
        }
        for name, value in self._inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        for name in self.OUTPUTS:
            binding.bind_output(f"{name}.{b}", "cpu")
