"""Detection of a text that begins to repeat itself, cheap enough for every call.

While drafting is silent, tables are not checked for many calls, and the start of a copy would be noticed late. A pair
of tokens that occurred before gives the place after it; if the text continues as it did there, token for token, it is
being copied. The cost is one dictionary lookup per token, negligible even for a call of a tenth of a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence

# The length of a run of repeated tokens that counts as a copy; after a check without a hit twice as long, up to _MANY.
_FEW, _MANY = 3, 24


class Following:
    """`run`: the number of tokens in a row that are equal to those at the followed place."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Another text begins."""
        self._after: dict[int, int] = {}  # by two tokens: the place of the token after them
        self._read, self._place, self.run, self._needed = 1, 0, 0, _FEW

    def repeats(self, ids: Sequence[int]) -> bool:
        """Whether the text, which only grows, repeats itself.

        Worked example: 5 6 1 2 3 9 5 6 1 2 3 -> at its second 5 6 the place of the first 1 is followed: after 1 2 3 it
        is True.
        """
        after = self._after
        for n in range(self._read, len(ids)):
            token = ids[n]
            if self._place and ids[self._place] == token:
                self.run += 1
                self._place += 1
                after[ids[n - 1] << 32 | token] = n + 1
                continue
            pair = ids[n - 1] << 32 | token
            self.run, self._place = 0, after.get(pair, 0)
            after[pair] = n + 1
        self._read = len(ids)
        return self.run >= self._needed

    def looked(self, found: bool) -> None:
        """Adapt the needed run to a check's outcome; a check without a run of that length changes nothing."""
        if found:
            self._needed = _FEW
        elif self.run >= self._needed:
            self._needed = min(2 * self.run, _MANY)

    def doubt(self) -> None:
        """Require a long run from now on, after finds that lost."""
        self._needed = _MANY
