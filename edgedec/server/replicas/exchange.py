"""A request to a replica and its answer in pieces, by h11 (which uvicorn brings)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import h11

Header = tuple[bytes, bytes]
_READ = 1 << 16


class ReplicaGone(Exception):
    """The replica did not answer, or not to the end."""


@dataclass(frozen=True)
class Answer:
    """The beginning of an answer; `pieces`: its body, to be read once. ReplicaGone if it ends before its time."""

    status: int
    headers: Sequence[Header]
    pieces: AsyncIterator[bytes]

    async def body(self) -> bytes:
        return b"".join([piece async for piece in self.pieces])


@asynccontextmanager
async def ask(
    port: int, method: str, target: bytes, headers: Sequence[Header], body: bytes = b""
) -> AsyncIterator[Answer]:
    """The answer of a server on this machine; closing the connection at the end cancels a running request."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        raise ReplicaGone(str(error)) from None
    try:
        connection = h11.Connection(h11.CLIENT)
        head = [*headers, (b"host", b"127.0.0.1:%d" % port), (b"connection", b"close")]
        head.append((b"content-length", b"%d" % len(body)))
        try:
            writer.write(connection.send(h11.Request(method=method, target=target, headers=head)) or b"")
            writer.write(connection.send(h11.Data(data=body)) or b"")
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            response = await _next(connection, reader)
        except OSError as error:
            raise ReplicaGone(str(error)) from None
        if not isinstance(response, h11.Response):
            raise ReplicaGone("it closed the connection")
        yield Answer(response.status_code, list(response.headers), _pieces(connection, reader))
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Event | type[h11.PAUSED]:
    """The next event that is not a mere 1xx."""
    while True:
        try:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(_READ))
            elif not isinstance(event, h11.InformationalResponse):
                return event  # type: ignore[return-value]
        except (h11.RemoteProtocolError, OSError) as error:
            raise ReplicaGone(str(error)) from None


async def _pieces(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while isinstance(event := await _next(connection, reader), h11.Data):
        yield bytes(event.data)
    if not isinstance(event, h11.EndOfMessage):
        raise ReplicaGone("it closed the connection")
