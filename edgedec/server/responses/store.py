"""Stored responses for continuation and retrieval, in bounded memory."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from secrets import token_hex
from threading import Lock
from typing import Any

from edgedec.server.answers import dumps
from edgedec.server.errors import APIError

Json = dict[str, Any]
_RESPONSE, _DIGITS = "resp_", 48
_OVERHEAD = 512  # bytes of a stored response's objects, besides its JSON


def response_id() -> str:
    """An id for a new response."""
    return _RESPONSE + token_hex(_DIGITS // 2)


def item_id(prefix: str, response: str, number: int) -> str:
    """The id of a response's output item.

    >>> item_id("msg", "resp_" + "ab" * 24, 2) == "msg_" + "ab" * 24 + "0002"
    True
    """
    return f"{prefix}_{response.removeprefix(_RESPONSE)}{number:04x}"


def response_of(item: str) -> str:
    """The id of the response that an output item is of, by the item's id.

    >>> response_of(item_id("msg", "resp_" + "ab" * 24, 2)) == "resp_" + "ab" * 24
    True
    """
    return _RESPONSE + item.partition("_")[2][:_DIGITS]


@dataclass(frozen=True)
class KeptResponse:
    """A response; `history`: all input items up to it."""

    response: Json
    history: tuple[Json, ...]


class ResponseStore:
    """Responses by id, as JSON, because objects would take several times the memory. Above `most` bytes the least
    recently used ones are dropped."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()  # they are kept from several threads

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def held(self) -> int:
        """The bytes in use."""
        return self._held

    def add(self, kept: KeptResponse) -> None:
        """Keep a response; one larger than the store is not kept."""
        written = dumps([kept.response, kept.history]).encode()
        if _size(written) > self._most:
            return
        with self._lock:
            self._kept[kept.response["id"]] = written
            self._held += _size(written)
            while self._held > self._most:
                self._held -= _size(self._kept.popitem(last=False)[1])

    def get(self, name: str, param: str | None = None) -> KeptResponse:
        """A response; APIError 404 if it is not kept (any more)."""
        response, history = json.loads(self._find(name, param))
        return KeptResponse(response, tuple(history))

    def item(self, name: str, param: str) -> Json:
        """An output item of a kept response; APIError 404 if there is none."""
        response = response_of(name)
        found = self.get(response).response["output"] if response in self._kept else ()
        for item in found:
            if item["id"] == name:
                return dict(item)
        raise APIError(
            404, f"{param}: {name!r} is not kept here (any more); send the item itself", param, "item_not_found"
        )

    def remove(self, name: str) -> None:
        """Drop a response; APIError 404 if there is none."""
        with self._lock:
            self._held -= _size(self._look_up(name))
            del self._kept[name]

    def _find(self, name: str, param: str | None = None) -> bytes:
        with self._lock:
            return self._look_up(name, param)

    def _look_up(self, name: str, param: str | None = None) -> bytes:
        if name not in self._kept:
            what = f"{param or 'response'}: {name!r} is not kept here (any more); send the whole conversation"
            raise APIError(404, what, param, "response_not_found")
        self._kept.move_to_end(name)
        return self._kept[name]


def _size(written: bytes) -> int:
    return len(written) + _OVERHEAD
