"""The training of PTQ1.61: layers of signs with factors, one after another, on what the layers before them make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from edgedec.export.passes import PassModel
from edgedec.export.passes._salient import four_bits, row_parts, salient
from edgedec.export.passes._statistics import Statistics
from edgedec.export.recovery import TorchModel
from edgedec.runtimes.reference.numeric import Array

if TYPE_CHECKING:
    from edgedec.export.passes.ptq161 import Ptq161


class Signs:
    """A matrix [n, k] whose salient inputs [k] have their 4 bits; parts: rows that share factors of columns.

    The others are rows * columns * (sign(w - mean) * scale + mean), the mean and the first scale those of a row's
    weights that are not salient.
    """

    def __init__(self, weights: Array, kept: NDArray[np.bool_], parts: tuple[int, ...]) -> None:
        self._high, self._parts = torch.from_numpy(four_bits(weights)), torch.tensor(parts)
        w, self._salient = torch.from_numpy(np.ascontiguousarray(weights)), torch.from_numpy(kept)
        others = w[:, ~self._salient]
        self.mean = others.mean(1, keepdim=True)
        self._sign = torch.where(w >= self.mean, 1.0, -1.0)
        self.scale = others.abs().mean(1, keepdim=True).requires_grad_()
        self.rows = torch.ones(len(w), 1, requires_grad=True)
        self.columns = torch.ones(len(parts), w.shape[1], requires_grad=True)

    def values(self) -> Tensor:
        """The weights as they are learned [n, k]."""
        return self._values(self.scale * self.rows, self.mean * self.rows, self.columns)

    def stored(self) -> Array:
        """The same, with numbers as float16 holds them."""
        with torch.no_grad():
            parts = (self.scale * self.rows, self.mean * self.rows, self.columns)
            found: Array = self._values(*(part.half().float() for part in parts)).numpy()
        return found

    def _values(self, scale: Tensor, mean: Tensor, columns: Tensor) -> Tensor:
        low = columns.repeat_interleave(self._parts, 0) * (self._sign * scale + mean)
        return torch.where(self._salient, self._high, low)


class Layers:
    """losses: of each layer's first and last time through the texts. most: the largest |x| of each matrix's inputs."""

    def __init__(self, model: PassModel, statistics: Statistics, options: Ptq161, most: dict[str, Array]) -> None:
        self.model, self.options, self._most = model, options, most
        self._floats, self._own = TorchModel(model.spec, model.read), TorchModel(model.spec, model.read)
        texts = [torch.from_numpy(np.asarray(ids)) for ids in statistics.texts]
        with torch.no_grad():
            self._before = [(self._floats.embedded(ids), self._own.embedded(ids)) for ids in texts]
        self.losses = list[tuple[float, float]]()

    def learn(self, blocks: range) -> dict[str, Array]:
        """The matrices of a layer as they are stored; then the texts are after it."""
        inside, floats = self._signs(blocks), self._floats
        with torch.no_grad():
            targets = [(floats.through(x, blocks), floats.through(own, blocks)) for x, own in self._before]
        self._train(blocks, inside, targets)
        found = {name: one.stored() for name, one in inside.items()}
        self._own.weights |= {name: torch.from_numpy(values) for name, values in found.items()}
        with torch.no_grad():
            after = [self._own.through(own, blocks) for _, own in self._before]
        self._before = [(theirs, own) for (theirs, _), own in zip(targets, after, strict=True)]
        return found

    def _signs(self, blocks: range) -> dict[str, Signs]:
        spec, found = self.model.spec, dict[str, Signs]()
        for name in sorted(spec.matrices & {n for b in blocks for n in spec.block_tensors(b)}):
            weights = self.model.read(name, 0, spec.tensors()[name][0])
            found[name] = Signs(weights, salient(self._most[name]), row_parts(spec, name))
        return found

    def _train(self, blocks: range, inside: dict[str, Signs], targets: list[tuple[Tensor, Tensor]]) -> None:
        options, ones = self.options, list(inside.values())
        groups = [
            {"params": [one.scale for one in ones], "lr": options.scale_rate},
            {"params": [part for one in ones for part in (one.rows, one.columns)], "lr": options.factor_rate},
        ]
        optimizer, each = torch.optim.AdamW(groups, weight_decay=0.0), list[float]()
        for _ in range(options.epochs):
            total = 0.0
            for (_, before), wanted in zip(self._before, targets, strict=True):
                self._own.weights |= {name: one.values() for name, one in inside.items()}
                loss = distance(self._own.through(before, blocks), wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += float(loss.detach())
            each.append(total / len(targets))
        self.losses += [(each[0], each[-1])] if each else []


def distance(own: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared errors beside both of them [T, hidden], less the logarithms of the mean cosines."""
    found = torch.zeros(())
    for theirs in wanted:
        cosine = functional.cosine_similarity(own, theirs, dim=-1).mean().abs()
        found = found + functional.mse_loss(own, theirs) - cosine.log()
    return found
