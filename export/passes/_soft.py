"""Rounding that can be learned: each weight between two neighbours of its grid, and the scales of blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from edgedec.export.grids import Grid

# A sigmoid stretched to these and cut to 0 to 1, so that both ends are reached (Louizos et al., "Learning Sparse
# Neural Networks through L0 Regularization").
_LOW, _HIGH = -0.1, 1.1
# How far from its multiple a weight begins, in steps of the grid: within, so that it rounds to where it was.
_CELL = 0.45


class Soft:
    """A matrix [n, k]. multiples: where it begins; wanted: the values [n, k] that its weights would best have, all
    others given; scales [n, blocks]. rank: of what is learned of the rounding; 0: every weight by itself."""

    def __init__(
        self, multiples: Tensor, wanted: Tensor, scales: Tensor, grid: Grid, block: int, rank: int, seed: int
    ) -> None:
        self._grid, self._block, self._scales = grid, block, scales
        steps = self._steps(scales, multiples)
        units = torch.where(steps == 0, multiples, wanted / torch.where(steps == 0, 1.0, steps))
        units = torch.minimum(torch.maximum(units, multiples - _CELL * grid.step), multiples + _CELL * grid.step)
        self._base = torch.where(units < multiples, multiples - grid.step, multiples)
        share = ((units - self._base) / grid.step).clamp(0.01, 0.99)
        self._begin = torch.logit((share - _LOW) / (_HIGH - _LOW))
        self.stretch = torch.zeros_like(scales, requires_grad=True)
        shapes = [(len(multiples), rank), (rank, multiples.shape[1])] if rank else [tuple(multiples.shape)]
        self.parts = [torch.zeros(shape, requires_grad=True) for shape in shapes]
        if rank:  # one of the two begins at random, or neither would move
            made = torch.Generator().manual_seed(seed)
            self.parts[1] = (0.1 * torch.randn(shapes[1], generator=made)).requires_grad_()

    def up(self) -> Tensor:
        """How far each weight is on its way to the upper neighbour, 0 to 1 [n, k]."""
        learned = self.parts[0] @ self.parts[1] if len(self.parts) == 2 else self.parts[0]
        return (torch.sigmoid(self._begin + learned) * (_HIGH - _LOW) + _LOW).clamp(0, 1)

    def values(self) -> Tensor:
        """The weights while they are learned [n, k]: rounded, with the gradients of those that are not."""
        up = self.up()
        return self._at((up >= 0.5).float() + up - up.detach())

    def penalty(self, beta: float) -> Tensor:
        """The mean of 1 - |2 up - 1|^beta: none where every weight has decided."""
        return (1 - (2 * self.up() - 1).abs().pow(beta)).mean()

    def hard(self) -> tuple[Tensor, Tensor]:
        """The multiples [n, k], and the scales [n, blocks] as float16 holds them."""
        up = (self.up().detach() >= 0.5).float()
        return self._multiples(up), self.scales().detach().half().float()

    def scales(self) -> Tensor:
        return self._scales * self.stretch.exp()

    def _at(self, up: Tensor) -> Tensor:
        return self._multiples(up) * self._steps(self.scales(), up)

    def _multiples(self, up: Tensor) -> Tensor:
        return (self._base + self._grid.step * up).clamp(self._grid.low, self._grid.high)

    def _steps(self, scales: Tensor, like: Tensor) -> Tensor:
        return scales.repeat_interleave(self._block, 1)[:, : like.shape[1]]
