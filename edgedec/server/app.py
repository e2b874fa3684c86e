"""The application: the routes of all APIs, monitoring, and error answers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import edgedec
from edgedec.server import openapi, plugins
from edgedec.server.access import AccessMiddleware
from edgedec.server.answers import JsonAnswer
from edgedec.server.errors import APIError
from edgedec.server.ollama.routes import OllamaRoutes
from edgedec.server.page import PAGE, page
from edgedec.server.rerank import RerankRoutes
from edgedec.server.responses.routes import ResponsesRoutes
from edgedec.server.routes import OpenAIRoutes
from edgedec.server.service import Server

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger("edgedec.server")


def build(server: Server) -> Starlette:
    """The ASGI application of a server."""
    monitoring = Monitoring(server)
    routes = [
        *OpenAIRoutes(server).routes(),
        *ResponsesRoutes(server).routes(),
        *OllamaRoutes(server).routes(),
        *RerankRoutes(server).routes(),
        *plugins.routes(),
        Route("/health", monitoring.health),
        Route("/metrics", monitoring.counts),
        Route("/openapi.json", monitoring.description),
    ]
    if PAGE.is_file():
        routes.append(Route("/", lambda request: page()))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await server.pool.start()
        try:
            yield
        finally:
            await server.pool.close()

    return Starlette(
        routes=routes,
        middleware=[Middleware(AccessMiddleware, policy=server.settings.access, on_answer=server.metrics.on_answer)],
        exception_handlers={APIError: _api_error, HTTPException: _no_route, 500: _server_error},
        lifespan=lifespan,
    )


class Monitoring:
    """Health, metrics and the description."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def health(self, request: Request) -> Response:
        pool = self._server.pool
        if pool.draining:
            return JsonAnswer({"status": "shutting down"}, 503)
        if self._server.lost:
            return JsonAnswer({"status": "device lost", "reason": self._server.lost}, 503)
        engines = [served.engine for served in pool.loaded.values()]
        running, waiting = sum(engine.running for engine in engines), sum(engine.waiting for engine in engines)
        busy = {"slots": self._server.settings.limits.slots, "running": running, "waiting": waiting}
        more = {"loaded": list(pool.loaded), "max_body": self._server.most_body}
        return JsonAnswer({"status": "ok", **busy, **more})

    async def counts(self, request: Request) -> Response:
        engines = {name: served.engine for name, served in self._server.pool.loaded.items()}
        loads, slots = self._server.pool.loads, self._server.settings.limits.slots
        text = self._server.metrics.text(engines, slots, loads)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def description(self, request: Request) -> Response:
        sources, secured = self._server.pool.sources.values(), self._server.settings.access.key is not None
        adapters = [name for source in sources for name in source.adapters]
        names = [source.name for source in sources]
        return JsonAnswer(openapi.document(edgedec.__version__, secured, names, adapters))


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return JsonAnswer(error.body_for(request.url.path), error.status, error.headers)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    failure = APIError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return JsonAnswer(failure.body_for(request.url.path), error.status_code, error.headers)


async def _server_error(request: Request, error: Exception) -> Response:
    failure = APIError(500, "the server failed; see its log")
    return JsonAnswer(failure.body_for(request.url.path), 500)
