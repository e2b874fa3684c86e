"""Patterns of fixed texts with free text between them, as automata over tokens."""

from __future__ import annotations

from collections.abc import Sequence

DEAD = -1


class Pivots:
    """Fixed sequences of tokens in order, free text between them. start: the text begins with the first one; end: it
    ends with the last one. ends: end tokens, allowed once all is there.

    States are numbered by the tokens of the sequences that are there, one sequence after the other; the last state, in
    which all is there, is `done`. Free text that begins a sequence falls back as far as it must (Knuth, Morris, Pratt).
    """

    def __init__(self, parts: Sequence[Sequence[int]], start: bool, end: bool, ends: frozenset[int]) -> None:
        self.parts = [tuple(part) for part in parts]
        self._start, self._end, self.ends = start, end, ends
        self.offsets = [sum(map(len, self.parts[:i])) for i in range(len(self.parts) + 1)]
        self.done = self.offsets[-1]
        self._steps = [self._edges(state) for state in range(self.done)]

    def edges(self, state: int) -> tuple[dict[int, int], int]:
        """The states after some tokens, and after all others; `DEAD` where nothing helps any more."""
        if state == DEAD:
            return {}, DEAD
        if state == self.done:
            return dict.fromkeys(self.ends, state), DEAD if self._end else state
        return self._steps[state]

    def after(self, state: int, token: int) -> int:
        special, other = self.edges(state)
        return special.get(token, other)

    def _edges(self, state: int) -> tuple[dict[int, int], int]:
        at = max(i for i in range(len(self.parts)) if self.offsets[i] <= state)
        part, base = self.parts[at], self.offsets[at]
        seen = part[: state - base]
        if at == 0 and self._start:  # nothing may stand before it
            return {part[len(seen)]: state + 1}, DEAD
        found = {token: base + _longest(part, (*seen, token)) for token in dict.fromkeys(part)}
        return {**found, **dict.fromkeys(self.ends - set(part), DEAD)}, base


def _longest(part: tuple[int, ...], text: tuple[int, ...]) -> int:
    """The tokens of the longest beginning of `part` that `text` ends with.

    >>> _longest((1, 1, 2), (1, 1, 1)), _longest((1, 1, 2), (1, 2))
    (2, 0)
    """
    return next(n for n in range(min(len(part), len(text)), -1, -1) if part[:n] == text[len(text) - n :])
