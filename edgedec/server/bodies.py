"""Bodies of requests to JSON objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from math import isinf
from typing import TYPE_CHECKING, Any, NoReturn

from starlette.requests import ClientDisconnect

from edgedec.server.errors import APIError
from edgedec.server.schema import Schema, check

if TYPE_CHECKING:
    from starlette.requests import Request

# Bytes of a request, or the weight of what is read of it, from which on requests are read in turn.
LARGE = 1 << 14
# Bytes from which on JSON is parsed in parts: the parser in C, at worst 0.1 s a megabyte, lets no other thread go on.
_IN_PARTS = 1 << 18
# Deeper than any request needs, and far below Python's recursion limit.
MOST_DEPTH = 100
# Of a body that is too large, read before it is refused.
_DISCARDED, _DISCARD_SECONDS = 16 << 20, 5.0


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """The bytes of a request's body; APIError 413 for more than `most`, 408 if none come for so many seconds, 400 if
    the client leaves."""
    body, parts = bytearray(), aiter(request.stream())
    if int(request.headers.get("content-length", "0")) > most:
        await _discard(parts)
        raise _too_large(most)
    try:
        while True:
            async with asyncio.timeout(seconds):
                part = await anext(parts, None)
            if part is None:
                return bytes(body)
            body += part
            if len(body) > most:
                await _discard(parts)
                raise _too_large(most)
    except TimeoutError:
        message = f"nothing more of the request's body came for {seconds:g} s"
        raise APIError(408, message, code="timeout") from None
    except ClientDisconnect:
        raise APIError(400, "the request's body broke off", code="incomplete_body") from None


async def _discard(parts: AsyncIterator[bytes]) -> None:
    """Read the rest of a body that is refused: a client that is still sending would not see the answer."""
    left = _DISCARDED
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_DISCARD_SECONDS):
            async for part in parts:
                left -= len(part)
                if left < 0:
                    return


class _InParts(json.JSONDecoder):
    """The json package's decoder in Python, but for strings: slower, and other threads go on between two values."""

    def __init__(self, **hooks: Any) -> None:
        super().__init__(**hooks)
        self.scan_once = py_make_scanner(self)


def parse(raw: bytes) -> dict[str, Any]:
    """A JSON object, without the members that are null; APIError 400 for anything else."""
    try:
        decoder = _InParts if len(raw) >= _IN_PARTS else json.JSONDecoder
        body = json.loads(raw, cls=decoder, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise APIError(400, f"the request's body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise APIError(400, "the request's body must be a JSON object", code="invalid_json")
    if depth(body) > MOST_DEPTH:
        raise APIError(400, f"the request's body is nested deeper than {MOST_DEPTH} levels", code="invalid_json")
    return {key: value for key, value in body.items() if value is not None}


def checked(raw: bytes, schema: Schema) -> dict[str, Any]:
    """The body of a request, checked against its schema; APIError 400 names the invalid member."""
    body = parse(raw)
    for name in body:
        if name not in schema["properties"]:
            raise APIError(400, f"{name}: this server does not support it; leave it out", name, "unsupported_parameter")
    check(body, schema, "")
    return body


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def weight(value: Any, most: int) -> int:
    """The characters, members and items of a JSON value, counted up to `most`.

    >>> weight({"a": ["bc", 1]}, 100), weight(["abc"] * 1000, 100)
    (6, 100)
    """
    found, left = 0, [value]
    while left and found < most:
        item = left.pop()
        found += 1
        if isinstance(item, str):
            found += len(item)
        elif isinstance(item, Mapping | Sequence) and found + len(item) >= most:
            return most
        elif isinstance(item, Mapping | Sequence):
            left.extend(item.values() if isinstance(item, Mapping) else item)
    return min(found, most)


def depth(value: Any) -> int:
    """The nesting depth of arrays and objects."""
    found, level = 0, [value] if isinstance(value, dict | list) else []
    while level:
        found += 1
        inside = [item for box in level for item in (box.values() if isinstance(box, dict) else box)]
        level = [item for item in inside if isinstance(item, dict | list)]
    return found


def _too_large(most: int) -> APIError:
    return APIError(413, f"the request's body is larger than {most} bytes (--max-body)", code="body_too_large")
