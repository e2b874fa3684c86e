"""Rows of text with masks: what may be masked, which tokens are in a block, what each token sees.

A row is read twice at once, [with masks | as it is], so that one pass trains every block of it: a token with masks
around it sees its block, and what is before the block as it is. With full context there is one reading, and all of it
is seen.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import ceil, log2

import torch
from torch import Tensor

from edgedec.bundle.manifest import DiffusionFacts

OPENING = 0.5  # of the blocks have a first token that is not known either
LEAST = 1e-3  # of a row is masked


@dataclass(frozen=True)
class TextRow:
    """tokens [T]; part [T]: 0 for what is given (a prompt: neither masked nor learned), else the number of the part of
    the answer, from 1 on."""

    tokens: Tensor
    part: Tensor

    @property
    def learned(self) -> Tensor:
        return self.part > 0


class Draws:
    """The random numbers of a row: the same for the same seed, however often the training was interrupted."""

    def __init__(self, draw: random.Random) -> None:
        self.whole = draw
        self._generator = torch.Generator().manual_seed(draw.getrandbits(62))

    def uniform(self, n: int) -> Tensor:
        return torch.rand(n, generator=self._generator)

    def order(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self._generator)

    def beta(self, a: float, b: float, n: int) -> Tensor:
        one, other = (torch._standard_gamma(torch.full((n,), x), generator=self._generator) for x in (a, b))
        return one / (one + other)

    def share(self) -> float:
        """A share of masks, evenly drawn, never quite 0."""
        return LEAST + (1 - LEAST) * self.whole.random()


def grown(progress: float, largest: int, until: float) -> int:
    """The size of blocks that double evenly from 1 to `largest` in the first `until` of the training.

    largest 8, until 0.6: 1, 2, 4 for a fifth each, then 8.
    """
    if progress >= until:
        return largest
    stages = ceil(log2(largest)) if largest > 1 else 0
    return min(largest, 1 << int(progress / until * stages))


def blocks(length: int, size: int, first: int) -> Tensor:
    """The number of each token's block: one begins at `first`, all have `size` tokens.

    length 5, size 2, first 1: [0, 1, 1, 2, 2]
    """
    at = torch.arange(length) - first
    found = at.div(size, rounding_mode="floor")
    return found - found.min()


def blocks_of(facts: DiffusionFacts, length: int, size: int, draws: Draws) -> Tensor:
    """Blocks as the model decodes them: anywhere with causal context, from the text's start with block context, one
    with full context."""
    if facts.context == "full":
        return torch.zeros(length, dtype=torch.int64)
    return blocks(length, size, draws.whole.randrange(size) if facts.context == "causal" else 0)


def fillable(row: TextRow, block: Tensor, shift: bool) -> Tensor:
    """Which tokens the reading with masks predicts. Shifted, the first of a block is predicted by the token before,
    which is read as it is."""
    found = row.learned.clone()
    if shift:
        found[0] = False
        found[1:] &= block[1:] == block[:-1]
    return found


def noisy(row: TextRow, masked: Tensor, block: Tensor, facts: DiffusionFacts, draws: Draws) -> Tensor:
    """The row with masks. Shifted, some of the blocks have a masked first token, which nothing is learned of: while a
    block's others are predicted for the first time, it is not known either."""
    if facts.shift and facts.context != "full":
        unknown = draws.uniform(int(block.max()) + 1)[block] < OPENING
        masked = masked | (row.learned & ~fillable(row, block, True) & unknown)
    return torch.where(masked, facts.mask, row.tokens)


def sight(block: Tensor, context: str) -> Tensor:
    """Which token sees which: [2T, 2T] of both readings, [T, T] with full context.

    Two blocks of one token, causal: [[1 0 | 0 0], [0 1 | 1 0], [0 0 | 1 0], [0 0 | 1 1]]
    """
    t = len(block)
    if context == "full":
        return torch.ones(t, t, dtype=torch.bool)
    own, before = block[:, None] == block[None], block[:, None] > block[None]
    plain = torch.ones(t, t, dtype=torch.bool).tril() if context == "causal" else own | before
    return torch.cat([torch.cat([own, before], 1), torch.cat([torch.zeros_like(own), plain], 1)])
