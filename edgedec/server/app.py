"""The routes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import edgedec
from edgedec.server import api, openapi
from edgedec.server.engine import Engine, Limits
from edgedec.server.gate import Doors, Gate
from edgedec.server.metrics import Metrics
from edgedec.server.page import PAGE, page
from edgedec.server.plans import plans, tokens_of
from edgedec.server.problems import Problem, no_model
from edgedec.server.stream import Answer, usage
from edgedec.server.tickets import End, Run

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from edgedec.model import Model


# No limit of its own: a text ends where its context does.
MOST = 1 << 31


@dataclass(frozen=True)
class Settings:
    """limits: of the engine; body: bytes of a request; most: tokens of a text; patience: seconds for a body."""

    limits: Limits = field(default_factory=Limits)
    doors: Doors = field(default_factory=Doors)
    body: int = 4 << 20
    most: int = MOST
    patience: float = 30.0


class Server:
    """One model's endpoints."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.name = model.bundle.manifest.name
        self.metrics, self.started = Metrics(), int(time())
        self.engine = Engine(model, settings.limits, self.metrics.ended)

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
            middleware=[Middleware(Gate, doors=self.settings.doors, answered=self.metrics.answered)],
            exception_handlers={Problem: _refused, HTTPException: _unrouted, 500: _broken},
            lifespan=self._lifespan,
        )

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, api.chat)

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, api.completion)

    async def _generate(self, request: Request, parse: Callable[[bytes, str], api.Asked]) -> Response:
        asked = parse(await self._body(request), self.name)
        limits = self.settings.limits
        todo = await run_in_threadpool(plans, self.model, asked, limits.context, self.settings.most)
        run = self.engine.write(todo)
        answer = Answer(run, todo, asked, self.name, self.model.tokenizer)
        if asked.stream:
            return Events(answer.chunks(), run)
        async with _while_there(request.receive, run):
            return JSONResponse(await answer.whole())

    async def embeddings(self, request: Request) -> Response:
        prompts, packed = api.embedding(await self._body(request), self.name)
        texts = await run_in_threadpool(tokens_of, self.model, prompts, self.settings.limits.context)
        run = self.engine.read(texts)
        async with _while_there(request.receive, run):
            ends = [event async for events in run.events() for event in events if isinstance(event, End)]
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
        return JSONResponse(openapi.document(edgedec.__version__, self.settings.doors.key is not None))

    def _card(self) -> dict[str, Any]:
        limits = {"context_length": self.settings.limits.context}
        return {"id": self.name, "object": "model", "created": self.started, "owned_by": "edgedec", "edgedec": limits}

    async def _body(self, request: Request) -> bytes:
        """Of a page's form no browser asks first: only JSON is read (no request from strange pages)."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Problem(415, "the request's Content-Type must be application/json", code="wrong_content_type")
        body, most = bytearray(), self.settings.body
        if int(request.headers.get("content-length", "0")) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self.settings.patience):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise _too_large(most)
        except TimeoutError:
            raise Problem(408, "the request's body came too slowly", code="timeout") from None
        return bytes(body)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.engine.start()
        try:
            yield
        finally:
            await run_in_threadpool(self.engine.close)


class Events(Response):
    """A stream of server-sent events; ends its run as soon as the client is gone."""

    def __init__(self, chunks: AsyncIterator[str], run: Run) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._chunks, self._run = chunks, run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _while_there(receive, self._run):
            with suppress(OSError):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for chunk in self._chunks:
                    await send({"type": "http.response.body", "body": chunk.encode(), "more_body": True})
                await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def _while_there(receive: Receive, run: Run) -> AsyncIterator[None]:
    """Cancel the run when the client leaves, and in any case when this ends."""

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


def _vector(end: End, packed: bool) -> list[float] | str:
    if end.vector is None:
        status = {"timeout": 504, "closing": 503}.get(end.finish, 500)
        raise Problem(status, f"the text was not read: {end.finish} {end.why}".strip(), code=end.finish)
    if packed:
        return base64.b64encode(end.vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in end.vector]


def _too_large(most: int) -> Problem:
    return Problem(413, f"the request's body is larger than {most} bytes", code="body_too_large")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return JSONResponse(error.body, error.status, error.headers)


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = Problem(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(problem.body, error.status_code, error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    problem = Problem(500, "the server failed; its log says why")
    return JSONResponse(problem.body, 500)
