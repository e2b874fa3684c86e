"""Bodies of requests to JSON objects."""

from __future__ import annotations

import asyncio
import json
from math import isinf
from typing import TYPE_CHECKING, Any, NoReturn

from edgedec.server.errors import APIError
from edgedec.server.schema import Schema, check

if TYPE_CHECKING:
    from starlette.requests import Request

# Deeper than any request needs, and far below Python's recursion limit.
MOST_DEPTH = 100


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """The bytes of a request's body; APIError 413 for more than `most`, 408 if they take too long."""
    body = bytearray()
    if int(request.headers.get("content-length", "0")) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise APIError(408, "the request's body came too slowly", code="timeout") from None
    return bytes(body)


def parse(raw: bytes) -> dict[str, Any]:
    """A JSON object, without the members that are null; APIError 400 for anything else."""
    try:
        body = json.loads(raw, parse_constant=_refuse, parse_float=_finite)
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


def depth(value: Any) -> int:
    """The nesting depth of arrays and objects."""
    found, level = 0, [value] if isinstance(value, dict | list) else []
    while level:
        found += 1
        inside = [item for box in level for item in (box.values() if isinstance(box, dict) else box)]
        level = [item for item in inside if isinstance(item, dict | list)]
    return found


def _too_large(most: int) -> APIError:
    return APIError(413, f"the request's body is larger than {most} bytes", code="body_too_large")
