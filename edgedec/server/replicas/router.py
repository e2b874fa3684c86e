"""The application in front of the replicas: one address, one key; each request goes to the replica that suits it.

A stored response, which only one replica has, is found by querying them all. If a replica fails before its answer
begins, the request is sent to another one. A stream that has begun ends with an error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from edgedec.errors import EdgedecError
from edgedec.server.access import AccessMiddleware, AccessPolicy
from edgedec.server.answers import JsonAnswer, dumps, sse
from edgedec.server.bodies import LARGE, parse, read_body
from edgedec.server.errors import APIError
from edgedec.server.fairness import client_of
from edgedec.server.limits import ConnectionLimits, most_body
from edgedec.server.preparing import Preparation
from edgedec.server.replicas.balancer import Balancer, beginning, pieces
from edgedec.server.replicas.exchange import Answer, Header, ReplicaGone, ask
from edgedec.server.replicas.merging import merged, router_lines
from edgedec.server.replicas.processes import Replica
from edgedec.server.responses.parse import holder
from edgedec.server.service import CLIENT_HEADER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

_METHODS = ["GET", "POST", "DELETE", "PUT", "PATCH"]
# Headers of the connection, not of the request; the client's key, because the replicas have another one, and its name,
# which only the router gives.
_CLIENT = CLIENT_HEADER.encode()
_OWN = {
    _CLIENT,
    b"host",
    b"authorization",
    b"connection",
    b"content-length",
    b"transfer-encoding",
    b"keep-alive",
    b"expect",
}
_GONE = "the replica that made this text is gone; send the request again"


@dataclass(frozen=True)
class RouterSettings:
    """slots: of each replica; body: bytes of a request, 0: as many as the replicas take; connections: time limits."""

    access: AccessPolicy = field(default_factory=AccessPolicy)
    slots: int = 4
    body: int = 0
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


class Router:
    """Replicas at one address. `key`: the replicas' key, known only to the router."""

    def __init__(
        self, make: Callable[[int, str], Replica], count: int, settings: RouterSettings, grace: float = 0.0
    ) -> None:
        """make: creates a replica with this key."""
        self.settings, self.draining, self._grace, self._key = settings, False, grace, token_hex(24)
        self.replicas = [make(number, self._key) for number in range(count)]
        self._preparation, self._most_body = Preparation(), settings.body
        self.balancer = Balancer([replica.load for replica in self.replicas], settings.slots)

    def start(self) -> None:
        """Returns when all take requests; EdgedecError if one cannot, and then none is left."""
        for replica in self.replicas:
            replica.start()
        try:
            for replica in self.replicas:
                replica.wait()
        except (EdgedecError, KeyboardInterrupt):
            self.close()
            raise

    def close(self) -> None:
        for replica in self.replicas:
            replica.close(self._grace)

    def drain(self) -> None:
        """Reject new requests; running ones continue."""
        self.draining = True

    def app(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            try:
                yield
            finally:
                await asyncio.to_thread(self.close)

        routes = [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/responses/{name}", self.kept, methods=_METHODS),
            Route("/v1/responses/{name}/{rest:path}", self.kept, methods=_METHODS),
            Route("/{path:path}", self.forward, methods=_METHODS),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(AccessMiddleware, policy=self.settings.access, on_answer=lambda path, status: None)],
            exception_handlers={APIError: _api_error},
            lifespan=lifespan,
        )

    async def health(self, request: Request) -> Response:
        if self.draining:
            return JsonAnswer({"status": "shutting down"}, 503)
        loads = [replica.load for replica in self.replicas]
        up, running = sum(load.up for load in loads), sum(load.running for load in loads)
        busy = {"slots": self.settings.slots * len(loads), "running": running, "replicas": len(loads), "up": up}
        return JsonAnswer({"status": "ok" if up else "no replica", **busy}, 200 if up else 503)

    async def metrics(self, request: Request) -> Response:
        numbers = [replica.number for replica in self.replicas if replica.load.up]
        texts = await asyncio.gather(*(self._body(number, b"/metrics") for number in numbers))
        own = router_lines(
            {replica.number: replica.load for replica in self.replicas},
            {replica.number: replica.starts for replica in self.replicas},
        )
        found = {number: text.decode() for number, text in zip(numbers, texts) if text}
        return PlainTextResponse(merged(found) + own, media_type="text/plain; version=0.0.4")

    async def kept(self, request: Request) -> Response:
        """Forward a request about a stored response to its replica."""
        body = await self._read(request)
        number = await self._holder(request.path_params["name"])
        return Forwarded(self, request, body, [], number)

    async def forward(self, request: Request) -> Response:
        self._check_open()
        body = await self._read(request)
        act = partial(_known, body)
        before, keys = act() if len(body) < LARGE else await self._preparation.read(act, len(body))
        number = await self._holder(before) if before is not None else None
        return Forwarded(self, request, body, keys, number)

    @asynccontextmanager
    async def ask(
        self, number: int, method: str, target: bytes, headers: Sequence[Header], body: bytes, client: str = ""
    ) -> Any:
        """The answer of a replica to a client; the request counts in its load until the end."""
        replica = self.replicas[number]
        kept = ((name, value) for name, value in headers if name not in _OWN)
        own = [*kept, (_CLIENT, client.encode()), *self._authorization()]
        replica.load.running += 1
        try:
            async with ask(replica.port, method, target, own, body) as answer:
                yield answer
        finally:
            replica.load.running -= 1

    def _authorization(self) -> list[Header]:
        return [(b"authorization", b"Bearer " + self._key.encode())]

    async def _read(self, request: Request) -> bytes:
        """A body of at most as many bytes as a replica takes, which knows its models' contexts."""
        if not self._most_body and (up := [replica.number for replica in self.replicas if replica.load.up]):
            found = await self._body(up[0], b"/health")
            self._most_body = json.loads(found)["max_body"] if found else 0
        return await read_body(request, self._most_body or most_body(0), self.settings.connections.body)

    async def _body(self, number: int, target: bytes) -> bytes:
        """The body of a replica's answer to a GET; empty if the status is not 200."""
        try:
            async with ask(self.replicas[number].port, "GET", target, self._authorization()) as answer:
                body = await answer.body()
                return body if answer.status == 200 else b""
        except ReplicaGone:
            return b""

    async def _holder(self, name: str) -> int | None:
        """The replica that has stored a response, if any."""
        target = b"/v1/responses/" + quote(name, safe="").encode()
        up = [replica.number for replica in self.replicas if replica.load.up]
        found = await asyncio.gather(*(self._body(number, target) for number in up))
        return next((number for number, body in zip(up, found) if body), None)

    def _check_open(self) -> None:
        if self.draining:
            raise APIError(503, "the server is shutting down", code="shutting_down", wait=5)


class Forwarded(Response):
    """A forwarded request. number: the only replica that can answer, None if any can."""

    def __init__(self, router: Router, request: Request, body: bytes, keys: list[int], number: int | None) -> None:
        super().__init__()
        self._router, self._request, self._body = router, request, body
        self._keys, self._number = keys, number

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        sending = asyncio.create_task(self._send(scope, send))
        leaving = asyncio.create_task(gone())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaving, sending):
                task.cancel()
            results = await asyncio.gather(sending, return_exceptions=True)
        failure = results[0]
        if isinstance(failure, Exception) and not isinstance(failure, OSError):
            raise failure

    async def _send(self, scope: Scope, send: Send) -> None:
        tried, client = set[int](), client_of(self._request.client.host) if self._request.client else ""
        while True:
            number = self._number
            if number is None:
                number = self._router.balancer.choose(self._keys, frozenset(tried))
            if number is None or number in tried:
                raise APIError(503, "no replica takes requests; see the server's log", code="no_replica", wait=1)
            tried.add(number)
            path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
            try:
                headers = self._request.headers.raw
                async with self._router.ask(number, scope["method"], path, headers, self._body, client) as answer:
                    await _pass_on(answer, send)
                return
            except ReplicaGone:
                continue


async def _pass_on(answer: Answer, send: Send) -> None:
    """An answer to the client. ReplicaGone only if nothing of it was sent."""
    kind = next((value for name, value in answer.headers if name == b"content-type"), b"")
    ending = _error_at_end(kind.partition(b";")[0])
    whole = b"" if ending else await answer.body()
    headers = [(name, value) for name, value in answer.headers if name not in (b"connection", b"date")]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for piece in answer.pieces if ending else _once(whole):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        ending = b""
    except ReplicaGone:
        pass
    await send({"type": "http.response.body", "body": ending})


async def _once(whole: bytes) -> AsyncIterator[bytes]:
    yield whole


def _error_at_end(kind: bytes) -> bytes:
    """The error event at the end of a stream whose replica is gone; empty if it is not a stream."""
    error = APIError(502, _GONE, code="replica_gone")
    if kind == b"text/event-stream":
        return sse(error.body).encode()
    return dumps(error.body_for("/api/")).encode() + b"\n" if kind == b"application/x-ndjson" else b""


def _known(body: bytes) -> tuple[str | None, list[int]]:
    """(the stored response that a request needs, the pieces of its beginning)."""
    wanted = _object(body)
    return holder(wanted), list(pieces(beginning(wanted))) if wanted else []


def _object(body: bytes) -> dict[str, Any]:
    """The body as JSON; empty if it is invalid: the replica then answers with an error."""
    try:
        return parse(body)
    except APIError:
        return {}


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return JsonAnswer(error.body_for(request.url.path), error.status, error.headers)
