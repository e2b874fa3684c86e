"""Tokens to final text: detokenized, cut at stop strings. The only place where that is done."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

from edgedec.text.stops import StopStrings
from edgedec.text.tokenizer import Detokenizer, Tokenizer


class Piece(NamedTuple):
    """Text that is final, and whether a stop string ended the text there."""

    text: str
    stopped: bool


class TextStream:
    """The text of one generation. `stop`: strings that end it and are left out."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, prompt_ids=prompt_ids)
        self._stops = StopStrings(stop)

    def push(self, token: int) -> Piece:
        """The text that one more token completes."""
        return Piece(*self._stops.push(self._detokenizer.push(token)))

    def fork(self) -> TextStream:
        """An independent copy in the same state."""
        return deepcopy(self, {id(self._tokenizer): self._tokenizer})

    def flush(self) -> Piece:
        """The rest, the tokens having ended."""
        text, stopped = self._stops.push(self._detokenizer.flush())
        rest, stopped_late = self._stops.flush()
        return Piece(text + rest, stopped or stopped_late)
