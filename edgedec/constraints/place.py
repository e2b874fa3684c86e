"""Where a text in JSON stands, by its tokens: in a string, in a number and after how many digits, or between them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from edgedec.text.tokenizer import Tokenizer

_NUMBER, _NUMERIC = re.compile(r"[0-9.eE+-]*"), frozenset("0123456789.eE+-")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# What a space and a line's end look like in vocabularies.
_SPACES = frozenset(" \n\t\r\u0120\u010a\u010d\u0109\u2581")


class JsonPlace(NamedTuple):
    """kind: "start" of a text that is JSON if it begins with a bracket, and "free" if it does not; in a "string", after
    its backslash ("escape"), in a "number", or "between" them. digits: of the number; since: the number of tokens at
    the one that began the string or number.

    >>> place = JsonPlace()
    >>> for at, piece in enumerate(['{"a', '": ', '12', '3, "']): place = place.after(piece, at)
    >>> place, JsonPlace("number", 3).after("45", 1).digits
    (JsonPlace(kind='string', digits=0, since=3), 5)
    """

    kind: str = "between"
    digits: int = 0
    since: int = 0

    def after(self, piece: str, at: int) -> JsonPlace:
        """The place after a token, the text's token number `at`."""
        kind, digits, since = self
        for sign in piece:
            if kind == "string":
                kind = "between" if sign == '"' else "escape" if sign == "\\" else kind
            elif kind == "escape":
                kind = "string"
            elif kind == "start":
                kind = kind if sign in _SPACES else "between" if sign in "{[" else "free"
            elif kind == "number" and _NUMBER.fullmatch(sign):
                digits += sign.isdigit()
            elif kind != "free":
                number = sign.isdigit() or sign == "-"
                kind = "string" if sign == '"' else "number" if number else "between"
                digits, since = int(sign.isdigit()), at
        return JsonPlace(kind, digits, since) if kind in ("string", "escape", "number") else JsonPlace(kind)


class Pieces:
    """What tokens of a vocabulary do to such a text, found for all at once. size: of the logits.

    digits: int16 [vocab], the digits that a token adds to a number, 1 for a sign or point alone, 0 if it ends it.
    closing: bool [vocab], tokens that end a string at once.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self._known = [_read(spelt) for spelt in tokenizer.spellings(size)]
        self.digits = np.array([_digits(piece) for piece in self._known], np.int16)
        self.closing = np.array([piece.startswith('"') for piece in self._known])

    def __getitem__(self, token: int) -> str:
        """How the vocabulary writes it; only ASCII matters here, which all of them write as it is."""
        return self._known[token]

    def ids(self, signs: str) -> list[int]:
        """The tokens of single characters, those that there are."""
        return [token for sign in signs if (token := self._tokenizer.id(sign)) is not None]


def _read(spelt: str) -> str:
    byte = _BYTE.fullmatch(spelt) if spelt.startswith("<0x") else None
    return chr(int(byte[1], 16)) if byte else spelt


def _digits(piece: str) -> int:
    if piece[:1] not in _NUMERIC:
        return 0
    run = _NUMBER.match(piece)
    return 0 if run is None else max(sum(sign.isdigit() for sign in run[0]), 1)


@lru_cache(maxsize=4)
def pieces(tokenizer: Tokenizer, size: int) -> Pieces:
    """Those of a tokenizer, made once."""
    return Pieces(tokenizer, size)
