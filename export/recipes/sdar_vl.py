"""Each block with a noise level of its own, and its loss over the share of masks that came out (SDAR-VL).

After the text of "SDAR-VL" and a port's code by notes: a level for each block, from Beta(mC, (1 - m)C) whose
mean m and sharpness C rise in a line (0.5 to 0.7, 4 to 25; 50 where an answer is short); a block's cross entropy is
divided by its realised share of masks, of which it has at least one. The weight of next tokens and growing blocks are
NBDiff's (the paper trains models that fill already): `ar=0`, `grow=0` leave them out. No images: texts only.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.export.recipes import RecipeFacts
from edgedec.export.recipes._following import following_loss
from edgedec.export.recipes._net import FillingNet, cross_entropy
from edgedec.export.recipes._rows import Draws, TextRow, blocks_of, fillable, grown, noisy
from edgedec.plugins import Opt

FACTS = RecipeFacts(paper="SDAR-VL")
_FIRST_MEAN, _FIRST_SHARPNESS = 0.5, 4.0


def make(
    facts: DiffusionFacts,
    mean: Annotated[float, Opt("Mean share of masks at the end.", 0.05, 0.95)] = 0.7,
    sharpness: Annotated[float, Opt("Sharpness of the shares at the end.", 1)] = 25.0,
    ar: Annotated[float, Opt("Weight of the loss of next tokens.", 0)] = 0.5,
    grow: Annotated[float, Opt("Share of the training in which blocks grow.", 0, 1)] = 0.0,
    keep: Annotated[float, Opt("Share of the next tokens' loss that follows the model as it was.", 0, 1)] = 0.0,
) -> BlockwiseNoise:
    return BlockwiseNoise(mean, sharpness, ar, grow, keep)


class BlockwiseNoise:
    def __init__(self, mean: float, sharpness: float, ar: float, grow: float, keep: float) -> None:
        self._mean, self._sharpness, self._ar, self._grow, self.keep = mean, sharpness, ar, grow, keep

    def shares(self, count: int, progress: float, draws: Draws) -> Tensor:
        """Shares of masks of `count` blocks."""
        mean = _FIRST_MEAN + (self._mean - _FIRST_MEAN) * progress
        sharp = _FIRST_SHARPNESS + (self._sharpness - _FIRST_SHARPNESS) * progress
        return draws.beta(mean * sharp, (1 - mean) * sharp, count)

    def loss(self, net: FillingNet, row: TextRow, draws: Draws, progress: float) -> Tensor:
        facts, t = net.facts, len(row.tokens)
        size = grown(progress, facts.block, self._grow)
        block = blocks_of(facts, t, size, draws)
        fill = fillable(row, block, facts.shift)
        masked = at_least_one(fill, block, self.shares(int(block.max()) + 1, progress, draws)[block], draws)
        reading = net.read(row, noisy(row, masked, block, facts, draws), block)
        each = net.each(cross_entropy, net.filling(reading, masked), row.tokens[masked])
        filled = (each * over_realised(fill, masked, block)).sum() / max(1, int(fill.sum()))
        return filled + self._ar * following_loss(net, reading, row, block, self.keep)


def at_least_one(fill: Tensor, block: Tensor, share: Tensor, draws: Draws) -> Tensor:
    """Masks: each token that may be filled by its share, and of every block the one with the least number."""
    number = draws.uniform(len(fill)) / share.clamp(min=1e-6)
    masked = fill & (number < 1)
    open_ = torch.where(fill, number, torch.inf)
    least = torch.full((int(block.max()) + 1,), torch.inf).scatter_reduce(0, block, open_, "amin")
    return masked | (fill & (open_ == least[block]))


def over_realised(fill: Tensor, masked: Tensor, block: Tensor) -> Tensor:
    """The weights of masked tokens: one over the share of their block that is masked. Of 3 of 6: 2."""
    n = int(block.max()) + 1
    both = [torch.zeros(n).index_add(0, block, one.float()) for one in (fill, masked)]
    return (both[0] / both[1].clamp(min=1))[block][masked]
