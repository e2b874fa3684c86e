"""The HTTP routes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import edgedec
from edgedec.server import api, openapi
from edgedec.server.access import AccessMiddleware, AccessPolicy
from edgedec.server.completions import completions, tokens_of
from edgedec.server.engine import EngineThread, ServerLimits
from edgedec.server.errors import APIError, no_model
from edgedec.server.metrics import Metrics
from edgedec.server.page import PAGE, page
from edgedec.server.requests import EndEvent, Submission
from edgedec.server.stream import TextResponse, usage

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from edgedec.model import Model


# No limit of the server's own: a text ends where its context does.
MOST = 1 << 31
# Constrained requests that are compiled at a time.
_COMPILING = 8


@dataclass(frozen=True)
class Settings:
    """limits: of the engine; body: bytes of a request; most: tokens of a text; body_seconds: time for it."""

    limits: ServerLimits = field(default_factory=ServerLimits)
    access: AccessPolicy = field(default_factory=AccessPolicy)
    body: int = 4 << 20
    most: int = MOST
    body_seconds: float = 30.0


class Server:
    """One model's endpoints."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.name = model.bundle.manifest.name
        self.metrics, self.started = Metrics(), int(time())
        self.engine = EngineThread(model, settings.limits, self.metrics.on_end)
        self._compiling: CapacityLimiter | None = None

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.one_model),
            Route("/health", self.health),
            Route("/metrics", self.counts),
            Route("/openapi.json", self.description),
        ]
        if PAGE.is_file():
            routes.append(Route("/", lambda request: page()))
        return Starlette(
            routes=routes,
            middleware=[Middleware(AccessMiddleware, policy=self.settings.access, on_answer=self.metrics.on_answer)],
            exception_handlers={APIError: _api_error, HTTPException: _no_route, 500: _server_error},
            lifespan=self._lifespan,
        )

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, api.chat)

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, api.completion)

    async def _generate(self, request: Request, parse: Callable[[bytes, str], api.TextRequest]) -> Response:
        wanted = parse(await self._body(request), self.name)
        limits = self.settings.limits
        # A grammar may take seconds to compile: such requests have threads of their own, so no other waits for one.
        self._compiling = self._compiling or CapacityLimiter(_COMPILING)
        limiter = None if wanted.schema is None and wanted.tools is None else self._compiling
        found = await to_thread.run_sync(
            completions, self.model, wanted, limits.context, self.settings.most, limiter=limiter
        )
        run = self.engine.generate(found)
        response = TextResponse(run, found, wanted, self.name, self.model.tokenizer)
        if wanted.stream:
            return Events(response.chunks(), run)
        async with _while_connected(request.receive, run):
            return JSONResponse(await response.whole())

    async def embeddings(self, request: Request) -> Response:
        prompts, packed = api.embedding(await self._body(request), self.name)
        texts = await run_in_threadpool(tokens_of, self.model, prompts, self.settings.limits.context)
        run = self.engine.embed(texts)
        async with _while_connected(request.receive, run):
            ends = [event async for events in run.events() for event in events if isinstance(event, EndEvent)]
        ends.sort(key=lambda end: end.index)
        data = [{"object": "embedding", "index": end.index, "embedding": _vector(end, packed)} for end in ends]
        counts = usage(ends)["usage"]["prompt_tokens"]
        used = {"prompt_tokens": counts, "total_tokens": counts}
        return JSONResponse({"object": "list", "model": self.name, "data": data, "usage": used})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Response:
        wanted = request.path_params["model"]
        if wanted != self.name:
            raise no_model(wanted, self.name)
        return JSONResponse(self._card())

    async def health(self, request: Request) -> Response:
        if self.engine.draining:
            return JSONResponse({"status": "shutting down"}, 503)
        busy = {"slots": self.settings.limits.slots, "running": self.engine.running, "waiting": self.engine.waiting}
        return JSONResponse({"status": "ok", **busy})

    async def counts(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics.text(self.engine), media_type="text/plain; version=0.0.4")

    async def description(self, request: Request) -> Response:
        return JSONResponse(openapi.document(edgedec.__version__, self.settings.access.key is not None))

    def _card(self) -> dict[str, Any]:
        limits = {"context_length": self.settings.limits.context}
        return {"id": self.name, "object": "model", "created": self.started, "owned_by": "edgedec", "edgedec": limits}

    async def _body(self, request: Request) -> bytes:
        """The body, which must be JSON: a browser sends a form of any page without a CORS check."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise APIError(415, "the request's Content-Type must be application/json", code="wrong_content_type")
        body, most = bytearray(), self.settings.body
        if int(request.headers.get("content-length", "0")) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise _too_large(most)
        except TimeoutError:
            raise APIError(408, "the request's body came too slowly", code="timeout") from None
        return bytes(body)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.engine.start()
        try:
            yield
        finally:
            await run_in_threadpool(self.engine.close)


class Events(Response):
    """A stream of server-sent events; cancels its run as soon as the client disconnects."""

    def __init__(self, chunks: AsyncIterator[str], run: Submission) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._chunks, self._run = chunks, run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _while_connected(receive, self._run):
            with suppress(OSError):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for chunk in self._chunks:
                    await send({"type": "http.response.body", "body": chunk.encode(), "more_body": True})
                await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def _while_connected(receive: Receive, run: Submission) -> AsyncIterator[None]:
    """Cancel the run when the client disconnects, and in any case at the end."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        run.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        run.cancel()


def _vector(end: EndEvent, packed: bool) -> list[float] | str:
    if end.vector is None:
        status = {"timeout": 504, "closing": 503}.get(end.finish, 500)
        raise APIError(status, f"the text was not read: {end.finish} {end.why}".strip(), code=end.finish)
    if packed:
        return base64.b64encode(end.vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in end.vector]


def _too_large(most: int) -> APIError:
    return APIError(413, f"the request's body is larger than {most} bytes", code="body_too_large")


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return JSONResponse(error.body, error.status, error.headers)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    failure = APIError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(failure.body, error.status_code, error.headers)


async def _server_error(request: Request, error: Exception) -> Response:
    failure = APIError(500, "the server failed; see its log")
    return JSONResponse(failure.body, 500)
