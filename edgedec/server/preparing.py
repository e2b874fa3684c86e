"""Requests to completions in threads: what takes long is given up when the client leaves or the time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter, to_thread

from edgedec.sandbox.stop import Stop
from edgedec.server.answers import on_disconnect
from edgedec.server.bodies import LARGE
from edgedec.server.errors import APIError

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")
# Requests whose constraints are compiled at a time, or wait for a place to be: a thread each.
_COMPILING = 256


class Preparation:
    """Threads of one server, for its event loop."""

    def __init__(self) -> None:
        self._compiling: CapacityLimiter | None = None
        self._reading: CapacityLimiter | None = None

    async def read(self, act: Callable[[], T], size: int) -> T:
        """What `act` returns. What is large has turns, so that one core stays for the others."""
        self._reading = self._reading or CapacityLimiter(1)
        return await to_thread.run_sync(act, limiter=self._reading if size >= LARGE else None)

    async def compile(self, act: Callable[[], T], receive: Receive, seconds: float) -> T:
        """What `act` returns. Its worker processes are ended when the client leaves, or after these seconds."""
        # A thread for each, so that no other request waits for one.
        self._compiling = self._compiling or CapacityLimiter(_COMPILING)
        stop, left = Stop(), False

        def leave() -> None:
            nonlocal left
            left = True
            stop.end()

        def run() -> T:
            with stop.applied():
                return act()

        late = asyncio.get_running_loop().call_later(seconds, stop.end)
        try:
            async with on_disconnect(receive, leave):
                return await to_thread.run_sync(run, limiter=self._compiling)
        except APIError:
            if stop.ended:
                raise _given_up(left) from None
            raise
        finally:
            late.cancel()


def _given_up(left: bool) -> APIError:
    if left:
        return APIError(499, "the client has disconnected", code="cancelled")
    return APIError(504, "the request took too long", code="timeout")
