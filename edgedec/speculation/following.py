"""Has a text begun to repeat itself? The cheapest question that can be asked at every call.

While drafting is silent nothing is looked up for many calls, and a copy that begins would be noticed late. Two tokens
that were seen before name the place after them; if the text goes on there, token for token, it is being copied. That
is a step of a dictionary a token, next to nothing even beside a call of a tenth of a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence

# So many tokens in a row came as they did after the two before them; after a look in vain twice as many, up to so many.
_FEW, _MANY = 3, 24


class Following:
    """`run`: how many tokens came as at the place that is followed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Another text begins."""
        self._after: dict[int, int] = {}  # by two tokens: the place of the token after them
        self._read, self._place, self.run, self._needed = 1, 0, 0, _FEW

    def repeats(self, ids: Sequence[int]) -> bool:
        """Does the text, which only grows, repeat itself?

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
        """A look was worth it, or was not; one that came for another reason says nothing."""
        if found:
            self._needed = _FEW
        elif self.run >= self._needed:
            self._needed = min(2 * self.run, _MANY)

    def doubt(self) -> None:
        """What looks found has lost: only a long run wakes them."""
        self._needed = _MANY
