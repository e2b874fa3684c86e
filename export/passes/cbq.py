"""Rounding learned over windows of layers, so that one layer makes up for another (CBQ).

Ding et al., "CBQ: Cross-Block Quantization for Large Language Models"; from a summary with equations, no code was at
hand: the rounding of each weight, dW = clip(sigma(V)(zeta - gamma) + gamma, 0, 1), and the step sizes are learned for a
window of two layers, the next window overlaps by one; the loss is |y - y'|^2 + KL(softmax y | softmax y') of the
window's output beside the float model's, and a penalty sum 1 - |2 dW - 1|^beta makes dW decide. V = A B of low rank
saves them memory; rank and steps are not known. Ours: it begins at what `gptq` chose, each weight at the value that is
best given all others; the window runs with rounded weights, whose gradients are those of dW, so that what is learned is
what is stored; every weight has its own V unless `rank` is given; their cutting of outliers and learned steps of
activations are left out (`awq` may run before). Needs torch, holds the model twice, and takes Llama's blocks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from edgedec.bundle.integers import is_integer
from edgedec.export.grids import GRIDS
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._rounded import Rounded
from edgedec.export.passes._solve import damped
from edgedec.export.passes._statistics import WIDEST, Float64, Moments, Statistics
from edgedec.export.passes.gptq import Gptq
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array

FACTS = PassFacts("rounding")
_DAMP = 0.01


def make(
    host: PassContext,
    window: Annotated[int, Opt("Layers that are learned together.", 1)] = 2,
    steps: Annotated[int, Opt("Updates of each window.", 1)] = 100,
    batch: Annotated[int, Opt("Texts of an update.", 1)] = 4,
    rank: Annotated[int, Opt("Of the learned rounding; 0: every weight by itself.", 0)] = 0,
    rate: Annotated[float, Opt("Learning rate of the rounding.", above=0)] = 0.003,
    seed: Annotated[int, Opt("Of the random draws.", 0)] = 0,
) -> Cbq:
    return Cbq(host, window, steps, batch, rank, rate, seed)


@dataclass(frozen=True)
class Cbq:
    """The pass with its options."""

    host: PassContext
    window: int
    steps: int
    batch: int
    rank: int
    rate: float
    seed: int

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        from edgedec.export.passes._windows import Windows  # torch
        from edgedec.export.recovery import check_plain

        check_plain(model.spec, "--passes cbq")
        begun = replace(self.host, store=self.host.store.inside("gptq"))
        start = Gptq(begun, _DAMP, True, 2, True)(model, statistics)
        names = [name for name in start.rounded if name.startswith("blocks.") and name not in model.rounded]
        windows = Windows(model, start.read, statistics, self)
        for b, moments in statistics.blocks(model.spec, start.read):
            for name in names:
                if name in moments:
                    begin, scales = _begin(start.rounded[name])
                    weights = model.read(name, 0, len(begin)).astype(np.float64)
                    windows.add(b, name, begin, wanted(weights, begin, scales, moments[name], self.host.block), scales)
        found = dict(model.rounded)
        for at, layers in enumerate(spans(model.spec.n_layers, self.window)):
            windows.learn(layers, last=layers[-1] == model.spec.n_layers - 1)
            self.host.progress("cbq", at + 1, max(1, model.spec.n_layers - self.window + 1))
        for name, (multiples, scales) in windows.hard.items():
            found[name] = self._put(model, name, multiples, scales)
        return self._with_head(model, found, start, statistics)

    def _put(self, model: PassModel, name: str, multiples: Float64, scales: Float64) -> Rounded:
        fmt = self.host.format_of(model, name)
        assert is_integer(fmt)
        codes = GRIDS[fmt].codes(multiples)
        return self.host.store.put(name, fmt, self.host.block, codes, scales.astype(np.float16))

    def _with_head(
        self, model: PassModel, found: dict[str, Rounded], start: PassModel, statistics: Statistics
    ) -> PassModel:
        """The head is rounded for what the new layers make; matrices that were not learned stay as `gptq` has them."""
        for name, one in start.rounded.items():
            found.setdefault(name, one)
        head = "embed" if model.spec.tied else "head"

        def read(name: str, a: int, z: int) -> Array:
            return found[name].floats(a, z) if name in found else model.read(name, a, z)

        if head in start.rounded and head not in model.rounded:
            del found[head]
            run = statistics.run(model.spec, read)
            for b in range(model.spec.n_blocks):
                run.advance(b)
            found[head] = Gptq(self.host, _DAMP, True, 2, False).matrix(model, head, run.head_moments)
        return replace(model, read=read, rounded=found)


def spans(layers: int, window: int) -> list[Sequence[int]]:
    """The windows: each begins a layer after the one before.

    >>> spans(4, 2)
    [range(0, 2), range(1, 3), range(2, 4)]
    """
    return [range(first, min(first + window, layers)) for first in range(max(1, layers - window + 1))]


def _begin(one: Rounded) -> tuple[Float64, Float64]:
    """The multiples [n, k] and scales [n, blocks] of a rounded matrix."""
    codes, scales = one.rows(0, 1 << 62)
    grid = GRIDS[one.format]
    return codes.astype(np.float64) * grid.step - grid.zero, scales.astype(np.float64)


def wanted(weights: Float64, multiples: Float64, scales: Float64, known: Moments, block: int) -> Float64:
    """The value [n, k] of each weight that changes the output least, all others being as they are."""
    steps = np.repeat(scales, block, axis=1)[:, : weights.shape[1]]
    found: Any = multiples * steps
    change = weights - found
    for at, moment in zip(range(0, weights.shape[1], WIDEST), known.diagonal, strict=True):
        h, part = damped(moment, _DAMP), slice(at, at + len(moment))
        found[:, part] += change[:, part] @ h / np.diag(h)
    return found
