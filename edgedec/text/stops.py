"""Stop strings, in text that comes piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.errors import UsageError


class StopStrings:
    """Cuts text at the earliest stop string. Text that may be the beginning of one is held back.

    stops ["</s>"]: push("a<") -> "a", False;  push("b</s>c") -> "<b", True

    However the text is split, the pieces joined are text[:earliest], earliest being the smallest
    text.find(stop). So a stop string waits while one that began before it may still complete.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(s, str) and s for s in stops):
            raise UsageError(f"stop strings: {stops!r} is out of range; allowed: a list of non-empty strings")
        self._stops = tuple(stops)
        self._buffer = ""
        self._hit = False

    def push(self, text: str) -> tuple[str, bool]:
        """(text safe to emit, whether a stop string was hit); after a hit all text is dropped."""
        if not self._stops:
            return text, False
        if self._hit:
            return "", True
        self._buffer += text
        found, undecided = self._found(), self._undecided()
        self._hit = found is not None and found <= undecided
        safe = self._buffer[:undecided] if found is None else self._buffer[: min(found, undecided)]
        self._buffer = "" if self._hit else self._buffer[len(safe) :]
        return safe, self._hit

    def flush(self) -> tuple[str, bool]:
        """What was held back, the text having ended, and whether a stop string was hit in it."""
        found = self._found()
        rest, self._buffer = self._buffer[:found], ""
        return rest, self._hit or found is not None

    def _found(self) -> int | None:
        """Where the earliest whole stop string in the buffer begins."""
        return min((i for i in map(self._buffer.find, self._stops) if i >= 0), default=None)

    def _undecided(self) -> int:
        """Where the buffer ends in the beginning of a stop string; its length if it does not."""
        n = len(self._buffer)
        longest = max(map(len, self._stops), default=1)
        starts = range(max(n - longest + 1, 0), n)
        return next((i for i in starts if any(s.startswith(self._buffer[i:]) for s in self._stops)), n)
