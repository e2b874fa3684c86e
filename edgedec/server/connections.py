"""Connections that take turns: time limits while the server waits for the client, and room for new ones.

A connection is *silent* while no whole request of it is there: it has sent nothing, a part of a header, or a part of a
body. When there is no room for a new connection, the one that has been silent longest is closed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from edgedec.server.limits import ConnectionLimits

# The share of descriptors that connections leave to model files, worker processes and offloaded texts, and the least.
_RESERVED, _LEAST_RESERVED = 0.25, 96
_ELSEWHERE = 512  # connections where the system has no limit of descriptors


@dataclass
class _Silence:
    """since: when it began; begun: when the header that is under way began, 0 for none; uploads: a body is under
    way, whose time is limited by its reader."""

    since: float
    begun: float
    uploads: bool = False


class Connections:
    """The connections of one server; `clock` in seconds. Used in the event loop only."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = monotonic) -> None:
        self.limits, self._clock = limits, clock
        self.most = limits.most or most_connections()
        self.closed = 0  # for want of room
        self._all: set[Any] = set()
        self._silent: dict[Any, _Silence] = {}
        self._unread: dict[Any, tuple[float, int]] = {}
        self._left = asyncio.Event()  # set when one has left, or has become silent

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: Any) -> None:
        self._all.add(connection)
        self._silent[connection] = _Silence(self._clock(), self._clock())

    def remove(self, connection: Any) -> None:
        self._all.discard(connection)
        self._silent.pop(connection, None)
        self._unread.pop(connection, None)
        self._left.set()

    def note(self, connection: Any, fresh: bool) -> None:
        """Note what a connection does now. fresh: bytes have come, not an answer ended."""
        cycle = connection.cycle
        if connection not in self._all:
            return
        waits = cycle is None or cycle.response_complete
        if not waits and not cycle.more_body:
            self._silent.pop(connection, None)
            return
        silence = self._silent.get(connection)
        if silence is None:
            silence = self._silent[connection] = _Silence(self._clock(), 0.0)
            self._left.set()
        silence.uploads = not waits
        if not waits:
            silence.begun = 0.0
        elif fresh and not silence.begun:
            silence.begun = self._clock()

    def note_unread(self, connection: Any, unread: bool) -> None:
        """Note whether the client is too slow to read its answer."""
        if unread:
            self._unread[connection] = self._clock(), -1
        else:
            self._unread.pop(connection, None)

    async def room(self) -> None:
        """Wait until one more connection may be accepted; closes the one that has been silent longest."""
        while len(self._all) >= self.most:
            self._left.clear()
            self.close_oldest()
            await self._left.wait()

    def close_oldest(self) -> None:
        """Close the connection that has been silent longest, if one is silent."""
        oldest = next(iter(self._silent), None)
        if oldest is not None:
            self.closed += 1
            self._end(oldest)

    def sweep(self) -> None:
        """Close the connections whose time is over."""
        now, limits = self._clock(), self.limits
        for connection, silence in list(self._silent.items()):
            end = silence.begun + limits.header if silence.begun else silence.since + limits.idle
            if now > end and not silence.uploads:
                self._end(connection)
        for connection, (since, size) in list(self._unread.items()):
            left = connection.transport.get_write_buffer_size()
            if left != size:
                self._unread[connection] = now, left
            elif now > since + limits.body:
                self._end(connection)

    def _end(self, connection: Any) -> None:
        self._silent.pop(connection, None)
        self._unread.pop(connection, None)
        connection.transport.abort()


def guarded(connections: Connections) -> type[asyncio.Protocol]:
    """uvicorn's protocol, whose connections are these: h11's also where httptools is installed, which takes headers of
    any size."""

    class Guarded(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            connections.add(self)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.remove(self)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            connections.note(self, True)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            connections.note(self, False)

        def pause_writing(self) -> None:
            super().pause_writing()
            connections.note_unread(self, True)

        def resume_writing(self) -> None:
            super().resume_writing()
            connections.note_unread(self, False)

    return Guarded


def most_connections() -> int:
    """As many as this process's descriptors allow, less a reserve."""
    if sys.platform == "win32":
        return _ELSEWHERE
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 16
    return max(soft - max(int(soft * _RESERVED), _LEAST_RESERVED), 8)
