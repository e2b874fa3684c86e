"""Accepts connections one by one, while there is room for one; errors are logged once a second, with their number."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from time import monotonic

from edgedec.server.connections import Connections

log = logging.getLogger("edgedec.server")
# Errors of the client, who is gone already; of other errors the system has too little of something.
_GONE = {errno.ECONNABORTED, errno.EPROTO, errno.EINTR}
_PAUSE = 0.05  # seconds until the next attempt
_TEXTS = 100


class OncePer:
    """Messages of one kind, at most one in `seconds`; returns how many there were since the last, 0 while it is too
    soon."""

    def __init__(self, seconds: float = 1.0, clock: Callable[[], float] = monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._last, self._count = float("-inf"), 0

    def due(self) -> int:
        self._count += 1
        if self._clock() < self._last + self._seconds:
            return 0
        count, self._count, self._last = self._count, 0, self._clock()
        return count


async def accept(place: socket.socket, connections: Connections, protocol: Callable[[], asyncio.Protocol]) -> None:
    """Accept connections until it is cancelled."""
    loop, errors = asyncio.get_running_loop(), OncePer()
    place.setblocking(False)
    while True:
        await connections.room()
        try:
            end, _ = await loop.sock_accept(place)
        except OSError as error:
            if error.errno in _GONE:
                continue
            if count := errors.due():
                log.error("cannot accept connections: %s (%d times)", error.strerror or error, count)
            connections.close_oldest()
            await asyncio.sleep(_PAUSE)
            continue
        try:
            await loop.connect_accepted_socket(protocol, end)
        except Exception:  # of one connection; the next ones are accepted
            log.exception("a connection could not be taken")
            end.close()


class Quieter(logging.Filter):
    """Of a library's messages about what clients send: each text at most once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._due: dict[str, OncePer] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info or record.levelno >= logging.ERROR or len(self._due) > _TEXTS:
            return True
        count = self._due.setdefault(str(record.msg), OncePer()).due()
        if count > 1:
            record.msg = f"{record.msg} ({count} times)"
        return count > 0
