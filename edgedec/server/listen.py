"""uvicorn with the app: binds, reports its port, shuts down in order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from edgedec.errors import UsageError
from edgedec.server.accepting import Quieter, accept
from edgedec.server.connections import Connections, guarded
from edgedec.server.limits import ConnectionLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp

GRACE = 10
_BACKLOG = 512
_QUIETER = Quieter()
_SWEEP = 5  # ticks, of a tenth of a second


class _Uvicorn(uvicorn.Server):
    """A server that rejects new requests after a signal; running ones continue. It ends by itself when it has
    failed. Connections are accepted here, not by asyncio, which accepts more than there are descriptors for."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Callable[[], None],
        failed: Callable[[], bool],
        connections: Connections,
    ) -> None:
        super().__init__(config)
        self._failed, self.connections = failed, connections
        self._drain, self._own_loop = drain, None  # type: tuple[Callable[[], None], asyncio.AbstractEventLoop | None]
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._own_loop = asyncio.get_running_loop()
        await super().startup(sockets=[])
        for place in sockets or ():
            place.listen(_BACKLOG)
            self._accepting.append(asyncio.create_task(accept(place, self.connections, self._protocol)))

    def _protocol(self) -> asyncio.Protocol:
        made: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        if counter % _SWEEP == 0:
            self.connections.sweep()
        return await super().on_tick(counter) or self._failed()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets=sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not in the handler: the signal may arrive while this thread holds the engine's lock.
        if self._own_loop is not None:
            self._own_loop.call_soon_threadsafe(self._drain)
        super().handle_exit(sig, frame)


def make(
    app: ASGIApp,
    drain: Callable[[], None],
    grace: int = GRACE,
    failed: Callable[[], bool] = lambda: False,
    limits: ConnectionLimits | None = None,
) -> uvicorn.Server:
    """A server that is not started: `run(sockets=[bound(...)])`. drain: rejects new requests; called at a signal.
    failed: returns whether the server cannot work any more."""
    limits = limits or ConnectionLimits()
    connections = Connections(limits)
    config = uvicorn.Config(
        app,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace,
        http=guarded(connections),
        timeout_keep_alive=max(int(limits.idle), 1),
        ws="none",
    )
    logging.getLogger("uvicorn.error").addFilter(_QUIETER)
    return _Uvicorn(config, drain, failed, connections)


def bound(host: str, port: int) -> socket.socket:
    """A bound socket."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        place = socket.socket(family, kind, proto)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
    except OSError as error:
        raise UsageError(f"{host}:{port}: {error.strerror or error}") from None
    return place


def listen(
    app: ASGIApp,
    drain: Callable[[], None],
    host: str,
    port: int,
    ready: Callable[[int], None],
    failed: Callable[[], bool] = lambda: False,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve until a signal, or until it has failed."""
    with bound(host, port) as place:
        place.listen(_BACKLOG)  # connections wait until the server accepts them
        ready(place.getsockname()[1])
        make(app, drain, failed=failed, limits=limits).run(sockets=[place])
