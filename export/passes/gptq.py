"""Each matrix is rounded so that its output on calibration text changes least (GPTQ).

Blocks go one after another, and within a block the matrices: the inputs of each are those of the model as it is
stored so far, so that it makes up for the rounding before it. The arithmetic is `_solve.py`. Of `inputs=both` the
outputs to keep are those of the float model on its own inputs, not on the ones that rounding has changed (the
asymmetric calibration of GPTAQ, Li et al.; from its abstract, the formula is ours): W becomes W (X X'^T)(X' X'^T +
damp)^-1 before it is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Annotated, Literal

import numpy as np

from edgedec.bundle.integers import is_integer
from edgedec.errors import BadTensor
from edgedec.export.grids import GRIDS
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._experts import ExpertStack, rounded_experts, stacked
from edgedec.export.passes._rounded import Rounded
from edgedec.export.passes._solve import damped, solve
from edgedec.export.passes._statistics import CalibrationRun, Float64, Moments, Statistics
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array

FACTS = PassFacts("rounding")
# How much more the second moments are damped where outputs of the float model are aimed at: the inputs' changes are
# noise in part. stories260K, 3 bits, KL of other stories: x1 0.274, x5 to x10 0.270; without aiming at them 0.304.
_DRIFT = 10.0


def make(
    host: PassContext,
    damp: Annotated[float, Opt("Added to the second moments, in parts of their mean.", above=0, high=1)] = 0.01,
    order: Annotated[bool, Opt("Round the inputs with the largest second moments first (act-order).")] = True,
    sweeps: Annotated[int, Opt("Times that every weight is chosen again, given all others.", 0, 64)] = 2,
    inputs: Annotated[
        Literal["both", "rounded"],
        Opt("Outputs to keep: the float model's (both), or the float matrix's on the rounded model's inputs."),
    ] = "both",
) -> Gptq:
    return Gptq(host, damp, order, sweeps, inputs == "both")


@dataclass(frozen=True)
class Gptq:
    """The pass with its options."""

    host: PassContext
    damp: float
    order: bool
    sweeps: int
    both: bool

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        spec, found = model.spec, dict(model.rounded)

        def read(name: str, start: int, stop: int) -> Array:
            return found[name].floats(start, stop) if name in found else model.read(name, start, stop)

        run = statistics.run(spec, read)
        floats = statistics.run(spec, model.read) if self.both else None
        wanted = [name for name in spec.tensors() if self._wanted(model, name)]
        done, total = 0, sum(prod(spec.tensors()[name]) for name in wanted)
        for b in range(spec.n_blocks):
            for name in run.order(b):
                if name in wanted:
                    found[name] = self.matrix(model, name, partial(_moments, run, b, name, floats))
                    done += prod(spec.tensors()[name])
                    self.host.progress("gptq", done, total)
            for stack in stacked(spec, b):
                if stack.name in wanted:
                    found[stack.name] = self._experts(model, run, b, stack)
                    done += prod(spec.tensors()[stack.name])
                    self.host.progress("gptq", done, total)
            run.advance(b)
            if floats is not None:
                floats.advance(b)
        head = "embed" if spec.tied else "head"
        if head in wanted:
            found[head] = self.matrix(model, head, partial(run.head_moments, floats))
        self.host.progress("gptq", total, total)
        return replace(model, read=read, rounded=found)

    def _wanted(self, model: PassModel, name: str) -> bool:
        """Whether this pass rounds the tensor."""
        if name not in model.spec.matrices or name in model.rounded or name in self.host.fixed:
            return False
        return is_integer(self.host.format_of(model, name))

    def _experts(self, model: PassModel, run: CalibrationRun, b: int, stack: ExpertStack) -> Rounded:
        """The experts of a matrix. The float model routes rows elsewhere, so `inputs` does not matter."""
        name, fmt, block = stack.name, self.host.format_of(model, stack.name), self.host.block
        assert is_integer(fmt)
        kept = self.host.store.get(name, fmt, block)
        if kept is not None:
            return kept
        weights = _finite(name, model.read(name, 0, model.spec.tensors()[name][0]))
        found = rounded_experts(run, b, stack, weights, GRIDS[fmt], block, self.damp, self.sweeps)
        return self.host.store.put(name, fmt, block, *found)

    def matrix(self, model: PassModel, name: str, moments: Callable[[], Moments]) -> Rounded:
        """One matrix, for inputs with these moments."""
        fmt = self.host.format_of(model, name)
        assert is_integer(fmt)
        kept = self.host.store.get(name, fmt, self.host.block)
        if kept is not None:
            return kept
        weights = _finite(name, model.read(name, 0, model.spec.tensors()[name][0])).astype(np.float64)
        known = moments()
        if self.both:
            weights = drifted(weights, known, self.damp)
        grid, block = GRIDS[fmt], self.host.block
        codes, scales = solve(weights, known.diagonal, grid, block, self.damp, self.order, self.sweeps)
        return self.host.store.put(name, fmt, block, codes, scales)


def _finite(name: str, weights: Array) -> Array:
    if not np.isfinite(weights).all():
        raise BadTensor(f"{name}: holds weights that are not finite")
    return weights


def _moments(run: CalibrationRun, b: int, name: str, floats: CalibrationRun | None) -> Moments:
    return run.moments(b, frozenset({name}), floats)[name]


def drifted(weights: Float64, known: Moments, damp: float) -> Float64:
    """The weights [n, k] whose output on the rounded model's inputs is nearest to that of `weights` on the float
    model's: W + W (F - X)^T X (X^T X + damp)^-1."""
    found, at = weights.copy(), 0
    for moment, drift in zip(known.diagonal, known.drift, strict=True):
        part = slice(at, at + len(moment))
        found[:, part] += weights[:, part] @ np.linalg.solve(damped(moment, _DRIFT * damp), drift.T).T
        at += len(moment)
    return found
