"""Where the sentences of a text end, by the text of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_STOPS, _CLOSERS = ".!?…。！？", "\"'”’)]»"


class SentenceEnds:
    """The ends of a text's sentences, found as it grows. decode: the text of tokens; longest: the most tokens of a
    sentence, and the size of all sentences without a tokenizer."""

    def __init__(self, decode: Callable[[Sequence[int]], str] | None, longest: int) -> None:
        self._decode, self._longest = decode, longest
        self._texts: dict[int, str] = {}  # shared by forks: of the tokenizer
        self._ends: list[int] = []
        self._seen, self._closing = 0, ""

    def read(self, ids: Sequence[int]) -> None:
        """Read the text so far; earlier tokens are unchanged except after `cut`. The last token's sentence is still
        open."""
        for at in range(self._seen, len(ids) - 1):
            here, then = self._text(ids[at]), self._text(ids[at + 1])
            self._closing = _stop_of(here) or (self._closing if not here.strip(_CLOSERS) else "")
            begun = self._ends[-1] if self._ends else 0
            if (self._closing and not _goes_on(self._closing, then)) or at + 1 - begun >= self._longest:
                self._ends.append(at + 1)
                self._closing = ""
        self._seen = max(self._seen, len(ids) - 1)

    def up_to(self, length: int) -> Ints:
        """The ends among the first tokens: sentence i goes from the end before to end i."""
        found = np.array(self._ends, np.int64)
        return found[: np.searchsorted(found, length, "right")]

    def cut(self, length: int) -> None:
        """Forget the tokens from `length` on, which may change."""
        length = max(0, length - 1)
        self._ends = self.up_to(length).tolist()
        self._seen, self._closing = min(self._seen, self._ends[-1] if self._ends else 0), ""

    def fork(self) -> SentenceEnds:
        twin = SentenceEnds(self._decode, self._longest)
        twin._texts, twin._ends, twin._seen, twin._closing = self._texts, list(self._ends), self._seen, self._closing
        return twin

    def _text(self, token: int) -> str:
        """The text of a token inside a text, with the space that it begins with."""
        if self._decode is None:
            return ""
        if (known := self._texts.get(token)) is None:
            known = self._texts[token] = self._decode((token, token))[len(self._decode((token,))) :]
        return known


def _stop_of(text: str) -> str:
    """The sentence end at the end of a token, without quotes and spaces; empty if there is none."""
    if "\n" in text:
        return "\n"
    bare = text.rstrip().rstrip(_CLOSERS)
    return bare[-1] if bare.endswith(tuple(_STOPS)) else ""


def _goes_on(stop: str, text: str) -> bool:
    """Whether a token continues a sentence that seemed to end before it, as in 3.14 and closing quotes."""
    if not text or stop == "\n":
        return False
    return text[0] in _CLOSERS or text[0] in _STOPS or (stop == "." and text[0].isalnum())
