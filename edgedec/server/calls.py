"""Streaming of function calls: the name once it is complete, the arguments piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import NamedTuple

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
_TAIL = re.compile(r"\s*\}")


class CallPiece(NamedTuple):
    """The next piece of a call by its number: its name at first, then text of its arguments."""

    call: int
    name: str
    arguments: str


class CallReader:
    """A reader of a text that is constrained to calls, one JSON object after another. `begun`: the number of calls that
    have begun; `inside`: the last one is not complete; `fed`: it has received text.

    >>> reader = CallReader({"f"})
    >>> reader.push('{"name": "f", "argu'), reader.push('ments": {"a": "}'), reader.push('"}}')
    ([], [CallPiece(call=0, name='f', arguments='{"a": "}')], [CallPiece(call=0, name='', arguments='"}')])
    >>> reader.begun, reader.inside
    (1, False)
    """

    def __init__(self, names: Container[str]) -> None:
        self._names, self._rest = names, ""
        self._depth, self._quoted, self._escaped = 0, False, False
        self._state = "head"
        self.begun, self.fed = 0, False

    @property
    def inside(self) -> bool:
        return self._state in ("arguments", "tail")

    def push(self, text: str) -> list[CallPiece]:
        """The pieces that are final now. A text that is not a call after all gives no pieces from there on."""
        self._rest, self.fed = self._rest + text, True
        found: dict[int, CallPiece] = {}
        while self._rest:
            before = self._state, self._rest
            for piece in self._arguments() if self._state == "arguments" else self._between():
                last = found.get(piece.call, piece._replace(arguments=""))
                found[piece.call] = last._replace(arguments=last.arguments + piece.arguments)
            if (self._state, self._rest) == before:
                break
        return list(found.values())

    def _between(self) -> list[CallPiece]:
        matched = (_HEAD if self._state == "head" else _TAIL).match(self._rest)
        if matched is None or self._state == "other":
            return []
        self._rest = self._rest[matched.end() :]
        if self._state == "tail":
            self._state = "head"
            return []
        name = json.loads(matched[1])
        self._state = "arguments" if name in self._names else "other"
        if self._state == "other":
            return []
        self.begun += 1
        return [CallPiece(self.begun - 1, name, "")]

    def _arguments(self) -> list[CallPiece]:
        """Up to the brace that ends them."""
        end = next((i + 1 for i, sign in enumerate(self._rest) if self._ends(sign)), len(self._rest))
        piece, self._rest = self._rest[:end], self._rest[end:]
        if not self._depth:
            self._state = "tail"
        return [CallPiece(self.begun - 1, "", piece)]

    def _ends(self, sign: str) -> bool:
        """Whether this character ends the object."""
        if self._quoted:
            self._quoted = self._escaped or sign != '"'
            self._escaped = not self._escaped and sign == "\\"
            return False
        self._quoted = sign == '"'
        self._depth += (sign in "{[") - (sign in "}]")
        return self._depth == 0
