"""Streaming of function calls: the name once it is complete, the arguments piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NamedTuple

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
_TAIL = re.compile(r"\s*\}")


class FunctionCall(NamedTuple):
    """A call that a text holds; `arguments`: as JSON, or the beginning of it if the text was cut."""

    name: str
    arguments: str


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

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._rest = names, ""
        self._depth, self._quoted, self._escaped = 0, False, False
        self._state = "head"
        self._name, self._given = "", [""]
        self.begun, self.fed = 0, False

    @property
    def inside(self) -> bool:
        return self._state in ("arguments", "tail")

    @property
    def other(self) -> bool:
        """Whether the text is not a call, whatever follows."""
        return self._state == "other" or (not self.begun and not beginnings(self._rest, self._names))

    @property
    def last(self) -> FunctionCall:
        """The call that began last, as far as it has come."""
        return FunctionCall(self._name, "".join(self._given))

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
        self._name, self._given = name, []
        return [CallPiece(self.begun - 1, name, "")]

    def _arguments(self) -> list[CallPiece]:
        """Up to the brace that ends them."""
        end = next((i + 1 for i, sign in enumerate(self._rest) if self._ends(sign)), len(self._rest))
        piece, self._rest = self._rest[:end], self._rest[end:]
        self._given.append(piece)
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


def beginnings(text: str, names: Collection[str]) -> list[FunctionCall]:
    """The calls that a text may be the beginning of, with the arguments so far.

    >>> beginnings('{"name": "fi', ["find", "file", "go"])
    [FunctionCall(name='find', arguments=''), FunctionCall(name='file', arguments='')]
    >>> beginnings('{"name": "find", "arguments": {"a": "b', ["find", "file"])
    [FunctionCall(name='find', arguments='{"a": "b')]
    """
    found = []
    for name in names:
        spellings = {json.dumps(name), json.dumps(name, ensure_ascii=False)}
        heads = [f'{{"name":{one},"{key}":' for one in sorted(spellings) for key in ("arguments", "parameters")]
        rests = [rest for head in heads if (rest := _after(text, head)) is not None]
        if rests:
            found.append(FunctionCall(name, max(rests, key=len)))
    return found


def _after(text: str, head: str) -> str | None:
    """What follows a head in a text, which may have white space between JSON's tokens; "" if the text ends before that,
    None if it is another."""
    at, quoted = 0, False
    for before, sign in zip(" " + head, head):
        while not quoted and at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return ""
        if text[at] != sign:
            return None
        quoted = quoted != (sign == '"' and before != "\\")
        at += 1
    return text[at:].strip() if text[at:].lstrip()[:1] in ("", "{") else None
