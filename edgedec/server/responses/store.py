"""Responses that are kept to be continued from and fetched, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from edgedec.server.answers import dumps
from edgedec.server.errors import APIError

Json = dict[str, Any]
_OVERHEAD = 2048  # bytes of the objects that a kept response is made of, besides its text


@dataclass(frozen=True)
class KeptResponse:
    """A response; `history`: all input items up to it."""

    response: Json
    history: tuple[Json, ...]

    @property
    def size(self) -> int:
        return len(dumps([self.response, self.history])) + _OVERHEAD


class ResponseStore:
    """Responses by id. Beyond `most` bytes those that were used least recently are dropped."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._kept: OrderedDict[str, tuple[KeptResponse, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def held(self) -> int:
        """Bytes."""
        return self._held

    def add(self, kept: KeptResponse) -> None:
        """Keep a response; one larger than the store is not kept."""
        size = kept.size
        self._kept[kept.response["id"]] = kept, size
        self._held += size
        while self._held > self._most:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._held -= dropped

    def get(self, name: str, param: str | None = None) -> KeptResponse:
        """A response; APIError 404 if it is not kept (any more)."""
        if name not in self._kept:
            what = f"{param or 'response'}: {name!r} is not kept here (any more); send the whole conversation"
            raise APIError(404, what, param, "response_not_found")
        self._kept.move_to_end(name)
        return self._kept[name][0]

    def remove(self, name: str) -> None:
        """Drop a response; APIError 404 if there is none."""
        self.get(name)
        self._held -= self._kept.pop(name)[1]
