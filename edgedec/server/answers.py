"""Answers as bytes: JSON that is valid UTF-8 for any content, whole or as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from edgedec.server.bodies import LARGE, weight
from edgedec.server.requests import Submission

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def dumps(body: Any) -> str:
    """JSON text on one line that UTF-8 can hold: a lone surrogate becomes U+FFFD.

    >>> dumps({"a": "\\ud800"})
    '{"a":"\\ufffd"}'
    """
    text = _text(body)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    # Clients that read a stream by Python's `splitlines` would cut it there.
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _text(value: Any) -> str:
    """JSON in parts of bounded size: one call of the encoder keeps all other threads waiting until it ends."""
    if not isinstance(value, dict | list) or not value or weight(value, LARGE) < LARGE:
        return _encode(value)
    if len(value) > 1:
        half, parts = len(value) // 2, list(value.items()) if isinstance(value, dict) else value
        first, second = parts[:half], parts[half:]
        if isinstance(value, dict):
            return f"{_text(dict(first))[:-1]},{_text(dict(second))[1:]}"
        return f"{_text(first)[:-1]},{_text(second)[1:]}"
    if isinstance(value, list):
        return f"[{_text(value[0])}]"
    ((key, inner),) = value.items()
    return f"{_encode({key: 0})[:-2]}{_text(inner)}}}"


def sse(body: Any, event: str = "") -> str:
    """A server-sent event."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {dumps(body)}\n\n"


class JsonAnswer(JSONResponse):
    """A whole answer."""

    def render(self, content: Any) -> bytes:
        return dumps(content).encode()


class StreamAnswer(Response):
    """An answer in pieces; cancels its run as soon as the client disconnects."""

    def __init__(self, chunks: AsyncIterator[str], run: Submission, media_type: str = "text/event-stream") -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._chunks, self._run = chunks, run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with while_connected(receive, self._run):
            with suppress(OSError):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for chunk in self._chunks:
                    await send({"type": "http.response.body", "body": chunk.encode(), "more_body": True})
                await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def while_connected(receive: Receive, run: Submission) -> AsyncIterator[None]:
    """Cancel the run when the client disconnects, and in any case at the end."""
    try:
        async with on_disconnect(receive, run.cancel):
            yield
    finally:
        run.cancel()


@asynccontextmanager
async def on_disconnect(receive: Receive, act: Callable[[], None]) -> AsyncIterator[None]:
    """Call `act` when the client disconnects."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        act()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
