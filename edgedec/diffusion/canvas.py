"""The tokens of a text of which some are not known yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Canvas:
    """`tokens`: the text, with `mask` where a token is not known. The block that is being filled is `start` to `end`
    (excluded); step: the passes that it has had. prompt: the tokens that were given; budget: the most that may be
    added, 0: any number; least: the smallest probability that the pass before filled; last: the position at which the
    text ends, 0 if its form does not say; editable: the first position of the block whose token may still be replaced,
    -1: none may."""

    tokens: list[int]
    mask: int
    prompt: int = 0
    start: int = 0
    end: int = 0
    step: int = 0
    budget: int = 0
    least: float = 1.0
    last: int = 0
    editable: int = -1

    @classmethod
    def of(cls, ids: Sequence[int], mask: int, budget: int = 0) -> Canvas:
        """A text of which everything is known."""
        n = len(ids)
        return cls(list(ids), mask, n, n, n, 0, budget)

    def begin(self, start: int, end: int) -> None:
        """Begin a block; positions that the text does not have yet are masked."""
        self.start, self.end, self.step = start, end, 0
        self.tokens += [self.mask] * (end - len(self.tokens))

    def known(self, position: int) -> bool:
        """Whether the text has a token there."""
        return position < len(self.tokens) and self.tokens[position] != self.mask

    def awaited(self, position: int) -> bool:
        """Whether a pass predicts a position: one of the block that is masked, or may still be edited."""
        inside = self.start <= position < self.end
        return inside and (not self.known(position) or 0 <= self.editable <= position)

    def masked(self) -> list[int]:
        """The positions of the block that are still to be filled, ascending."""
        return [i for i in range(self.start, self.end) if self.tokens[i] == self.mask]

    def cut(self, end: int) -> None:
        """End the block earlier; what was filled behind its new end is forgotten."""
        self.end = end
        del self.tokens[end:]

    def replace(self, begin: int, end: int, tokens: Sequence[int]) -> int:
        """Put tokens in the place of others, of which there may be more or fewer; how far what is behind them moved."""
        self.tokens[begin:end] = tokens
        moved = len(tokens) - (end - begin)
        self.last += moved if self.last else 0
        self.tokens += [self.mask] * (self.end - len(self.tokens))
        return moved
