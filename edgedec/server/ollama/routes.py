"""The endpoints of Ollama's API."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

import edgedec
from edgedec.server.answers import JsonAnswer
from edgedec.server.api import EmbedOptions, TextRequest
from edgedec.server.errors import APIError
from edgedec.server.ollama import about, parse
from edgedec.server.ollama.answer import OllamaAnswer
from edgedec.server.service import Server

if TYPE_CHECKING:
    from starlette.requests import Request

Json = dict[str, Any]
_LINES = "application/x-ndjson"


class OllamaRoutes:
    """The endpoints of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        return [
            Route("/api/generate", self.generate, methods=["POST"]),
            Route("/api/chat", self.chat, methods=["POST"]),
            Route("/api/embed", self.embed, methods=["POST"]),
            Route("/api/embeddings", self.embeddings, methods=["POST"]),
            Route("/api/tags", self.tags),
            Route("/api/ps", self.running),
            Route("/api/show", self.show, methods=["POST"]),
            Route("/api/version", self.version),
        ]

    async def generate(self, request: Request) -> Response:
        body, began = await self._server.read(request, parse.generate), perf_counter_ns()
        if not body.get("prompt") and not body.get("suffix"):
            return await self._load(body, {"response": ""})
        source, _ = self._server.pool.resolve(body["model"])
        wanted = parse.generate_request(body, source.bundle.manifest.text.chat_template is not None)
        return await self._generate(request, body, wanted, began, chats=False)

    async def chat(self, request: Request) -> Response:
        body, began = await self._server.read(request, parse.chat), perf_counter_ns()
        if not body["messages"]:
            return await self._load(body, {"message": {"role": "assistant", "content": ""}})
        return await self._generate(request, body, parse.chat_request(body), began, chats=True)

    async def embed(self, request: Request) -> Response:
        (wanted, options), began = await self._server.read(request, parse.embed), perf_counter_ns()
        vectors, count = await self._vectors(request, wanted, options) if wanted.prompts else ([], 0)
        spent = {"total_duration": perf_counter_ns() - began, "load_duration": 0, "prompt_eval_count": count}
        return await self._server.written({"model": wanted.target[0], "embeddings": vectors, **spent})

    async def embeddings(self, request: Request) -> Response:
        wanted = await self._server.read(request, parse.embeddings)
        vectors, _ = await self._vectors(request, wanted, EmbedOptions(truncate=True))
        return JsonAnswer({"embedding": vectors[0]})

    async def tags(self, request: Request) -> Response:
        sources = self._server.pool.sources.values()
        names = [(source, name) for source in sources for name in (source.name, *source.adapters)]
        return JsonAnswer({"models": [about.card(source, name) for source, name in names]})

    async def running(self, request: Request) -> Response:
        loaded = [
            {
                **about.card(served.source),
                "expires_at": "0001-01-01T00:00:00Z",
                "size_vram": 0,
                "context_length": served.engine.limits.context,
            }
            for served in self._server.pool.loaded.values()
        ]
        return JsonAnswer({"models": loaded})

    async def show(self, request: Request) -> Response:
        name = await self._server.read(request, parse.show)
        async with self._server.pool.use((name, None)) as target:
            return JsonAnswer(about.shown(target.served.source, target.model))

    async def version(self, request: Request) -> Response:
        return JsonAnswer({"version": about.API_VERSION, "edgedec": edgedec.__version__})

    async def _generate(self, request: Request, body: Json, wanted: TextRequest, began: int, chats: bool) -> Response:
        async with self._server.pool.use(wanted.target) as target:
            load, most = perf_counter_ns() - began, target.engine.limits.context
            if parse.context_of(body) > most:
                message = f"options.num_ctx: this model's context is {most} tokens (--ctx-size); ask for no more"
                raise APIError(400, message, "options.num_ctx", "invalid_value")
            started = await self._server.generate(request, wanted)
        answer = OllamaAnswer(started, wanted, body["model"], began, load, chats)
        chunks = answer.chunks() if wanted.stream else answer.whole
        return await self._server.answer(request, started.run, chunks, _LINES)

    async def _load(self, body: Json, answer: Json) -> Response:
        """A request without a prompt loads a model; with keep_alive 0 it unloads it."""
        source, _ = self._server.pool.resolve(body["model"])
        reason = "load"
        if body.get("keep_alive") in (0, "0", "0s", "0m"):
            reason = "unload"
            await self._server.pool.unload(source.name)
        else:
            async with self._server.pool.use((body["model"], None)):
                pass
        head = {"model": body["model"], "created_at": about.now()}
        return JsonAnswer({**head, **answer, "done": True, "done_reason": reason})

    async def _vectors(
        self, request: Request, wanted: TextRequest, options: EmbedOptions
    ) -> tuple[list[list[float]], int]:
        _, ends = await self._server.embed(request, wanted, options)
        found = [end.vector for end in ends if end.vector is not None]
        vectors: list[list[float]] = await self._server.prepare(
            lambda: [vector.tolist() for vector in found], sum(vector.size for vector in found)
        )
        return vectors, sum(end.stats.prompt for end in ends)
