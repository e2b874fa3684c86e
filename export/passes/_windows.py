"""The training of CBQ: windows of layers, one after another, on what the rounded layers before them make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.bundle.integers import is_integer
from edgedec.export.grids import GRIDS
from edgedec.export.passes import PassModel
from edgedec.export.passes._soft import Soft
from edgedec.export.passes._statistics import Float64, Statistics
from edgedec.export.recovery import TorchModel
from edgedec.runtimes.reference.numeric import Weights

if TYPE_CHECKING:
    from edgedec.export.passes.cbq import Cbq

# How sharply the penalty asks weights to decide, at the beginning and at the end of a window; its weight; the share of
# a window without it (as AdaRound's).
_BETAS, _WEIGHT, _FREE = (20.0, 2.0), 0.01, 0.2
# The learning rate of step sizes, which are learned as the logarithm of a factor.
_STEP_RATE = 2e-3


class Windows:
    """hard: multiples and scales of the matrices that are done; losses: of each window's first and last updates."""

    def __init__(self, model: PassModel, start: Weights, statistics: Statistics, options: Cbq) -> None:
        self.model, self.options = model, options
        self._floats, self._own = TorchModel(model.spec, model.read), TorchModel(model.spec, start)
        texts = [torch.from_numpy(np.asarray(ids)) for ids in statistics.texts]
        with torch.no_grad():
            self._before = [(self._floats.embedded(ids), self._own.embedded(ids)) for ids in texts]
        self._soft, self._block_of = dict[str, Soft](), dict[str, int]()
        self.hard, self.losses = dict[str, tuple[Float64, Float64]](), list[tuple[float, float]]()
        self._rng = np.random.default_rng(options.seed)

    def add(self, b: int, name: str, multiples: Float64, wanted: Float64, scales: Float64) -> None:
        """A matrix of block b that is learned."""
        fmt, options = self.options.host.format_of(self.model, name), self.options
        assert is_integer(fmt)
        begin, best, steps = (
            torch.from_numpy(np.ascontiguousarray(a, np.float32)) for a in (multiples, wanted, scales)
        )
        self._soft[name] = Soft(begin, best, steps, GRIDS[fmt], options.host.block, options.rank, options.seed)
        self._block_of[name] = b

    def learn(self, layers: Sequence[int], last: bool) -> None:
        """One window; then its first layer is done, of the last window all are."""
        blocks = self._blocks(layers)
        inside = {name: self._soft[name] for name, b in self._block_of.items() if b in blocks}
        if inside:
            self._train(blocks, inside)
        for layer in layers if last else layers[:1]:
            self._finish(self._blocks([layer]))

    def _train(self, blocks: range, inside: dict[str, Soft]) -> None:
        options, found = self.options, list[float]()
        with torch.no_grad():
            targets = [self._floats.through(before, blocks) for before, _ in self._before]
        groups: list[dict[str, Any]] = [
            {"params": [part for one in inside.values() for part in one.parts], "lr": options.rate},
            {"params": [one.stretch for one in inside.values()], "lr": _STEP_RATE},
        ]
        optimizer = torch.optim.Adam(groups)
        for step in range(options.steps):
            at, loss = step / options.steps, torch.zeros(())
            self._put((name, one.values()) for name, one in inside.items())
            picked = self._rng.permutation(len(targets))[: options.batch]
            for i in picked:
                loss = loss + distance(self._own.through(self._before[i][1], blocks), targets[i]) / len(picked)
            found.append(float(loss.detach()))
            if at >= _FREE:
                beta = _BETAS[0] + (at - _FREE) / (1 - _FREE) * (_BETAS[1] - _BETAS[0])
                loss = loss + _WEIGHT * sum(one.penalty(beta) for one in inside.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        few = max(1, len(found) // 10)
        self.losses.append((float(np.mean(found[:few])), float(np.mean(found[-few:]))))

    def _finish(self, blocks: range) -> None:
        """Round these blocks for good and take the texts through them."""
        with torch.no_grad():
            for name, b in self._block_of.items():
                if b in blocks:
                    multiples, scales = self._soft[name].hard()
                    self.hard[name] = multiples.double().numpy(), scales.double().numpy()
                    steps = scales.repeat_interleave(self.options.host.block, 1)[:, : multiples.shape[1]]
                    self._put([(name, multiples * steps)])
            self._before = [
                (self._floats.through(theirs, blocks), self._own.through(own, blocks)) for theirs, own in self._before
            ]

    def _put(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, values in weights:
            self._own.weights[name] = values

    def _blocks(self, layers: Sequence[int]) -> range:
        spans = [list(self.model.spec.span(layer, layer + 1)) for layer in layers]
        return range(spans[0][0], spans[-1][-1] + 1)


def distance(own: Tensor, theirs: Tensor) -> Tensor:
    """|y - y'|^2 in parts of |y'|^2, plus the divergence of their softmaxes over the width."""
    error = (own - theirs).square().sum() / theirs.square().sum()
    spread = functional.kl_div(own.log_softmax(-1), theirs.log_softmax(-1), reduction="batchmean", log_target=True)
    found: Tensor = error + spread
    return found
