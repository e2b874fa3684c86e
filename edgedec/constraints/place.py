"""Where a text in JSON stands, by its tokens: in a string, in a number and after how many digits, or between them."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import TextError

if TYPE_CHECKING:
    from edgedec.text.tokenizer import Tokenizer

_NUMBER = re.compile(r"[0-9.eE+-]*")
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
    """What tokens of a vocabulary do to such a text. size: of the logits."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size
        self._known: dict[int, str] = {}

    def __getitem__(self, token: int) -> str:
        """How the vocabulary writes it; only ASCII matters here, which all of them write as it is."""
        found = self._known.get(token)
        if found is None:
            try:
                spelt = self._tokenizer.token(token)
            except TextError:
                spelt = ""
            byte = _BYTE.fullmatch(spelt)
            found = self._known[token] = chr(int(byte[1], 16)) if byte else spelt
        return found

    def ids(self, signs: str) -> list[int]:
        """The tokens of single characters, those that there are."""
        return [token for sign in signs if (token := self._tokenizer.id(sign)) is not None]

    @cached_property
    def digits(self) -> NDArray[np.int16]:
        """int16 [vocab]: the digits that a token adds to a number, 1 for a sign or point alone, 0 if it ends it."""
        found = np.zeros(self._size, np.int16)
        for token in range(self._size):
            run = _NUMBER.match(self[token])
            if run is not None and run[0]:
                found[token] = max(sum(sign.isdigit() for sign in run[0]), 1)
        return found

    @cached_property
    def closing(self) -> NDArray[np.bool_]:
        """bool [vocab]: tokens that end a string at once."""
        return np.array([self[token].startswith('"') for token in range(self._size)])


@lru_cache(maxsize=4)
def pieces(tokenizer: Tokenizer, size: int) -> Pieces:
    """Those of a tokenizer, made once."""
    return Pieces(tokenizer, size)
