"""Shared by all APIs of the server: settings, models, metrics, reading of requests and answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from edgedec.server.access import AccessPolicy
from edgedec.server.answers import JsonAnswer, StreamAnswer, while_connected
from edgedec.server.api import TextRequest
from edgedec.server.bodies import read_body
from edgedec.server.completions import Completion, completions, tokens_of
from edgedec.server.engine import EngineThread, ServerLimits
from edgedec.server.errors import APIError
from edgedec.server.metrics import Metrics
from edgedec.server.pool import ModelPool, ModelSource, ModelTarget
from edgedec.server.requests import EndEvent, Submission

if TYPE_CHECKING:
    from starlette.requests import Request

# No server-side limit: a text ends with its context.
MOST = 1 << 31
# Constraints that are compiled at a time.
_COMPILING = 8


@dataclass(frozen=True)
class Settings:
    """limits: of each model's engine; body: bytes of a request; most: tokens of a text; body_seconds: time for it;
    memory: bytes that loaded models may take together, 0: any; kept: bytes of responses that are kept for
    `previous_response_id`."""

    limits: ServerLimits = field(default_factory=ServerLimits)
    access: AccessPolicy = field(default_factory=AccessPolicy)
    body: int = 4 << 20
    most: int = MOST
    body_seconds: float = 30.0
    memory: int = 0
    kept: int = 64 << 20


@dataclass(frozen=True)
class RunningTexts:
    """A running request: its target, its texts and their events."""

    target: ModelTarget
    completions: Sequence[Completion]
    run: Submission


class Server:
    """Models behind HTTP. `app.build` makes the routes."""

    def __init__(self, sources: Sequence[ModelSource], settings: Settings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self._compiling: CapacityLimiter | None = None
        self.pool = ModelPool(sources, settings.limits, settings.memory, self.metrics.on_end)

    @property
    def title(self) -> str:
        """The model's name, or the number of models."""
        names = list(self.pool.sources)
        return names[0] if len(names) == 1 else f"{len(names)} models"

    @property
    def engine(self) -> EngineThread:
        """The engine of the model that was loaded first."""
        return next(iter(self.pool.loaded.values())).engine

    @property
    def lost(self) -> str:
        """The message of an engine's lost device, which only a new process can use again; "" if none is lost."""
        return next((served.engine.lost for served in list(self.pool.loaded.values()) if served.engine.lost), "")

    def drain(self) -> None:
        """Reject new and waiting requests; running ones continue."""
        self.pool.drain()

    async def generate(self, wanted: TextRequest) -> RunningTexts:
        """Start the texts of a request."""
        # A grammar may take seconds to compile: such requests have threads of their own, so no other waits for one.
        self._compiling = self._compiling or CapacityLimiter(_COMPILING)
        limiter = None if wanted.constraint is None and wanted.tools is None else self._compiling
        async with self.pool.use(wanted.target) as target:
            context, most = target.engine.limits.context, self.settings.most
            read = partial(completions, target.model, wanted, context, most, target.adapter)
            found = await to_thread.run_sync(read, limiter=limiter)
            return RunningTexts(target, found, target.engine.generate(found))

    async def embed(self, request: Request, wanted: TextRequest) -> tuple[ModelTarget, list[EndEvent]]:
        """The embeddings of a request's prompts."""
        async with self.pool.use(wanted.target) as target:
            texts = await run_in_threadpool(tokens_of, target.model, wanted.prompts, target.engine.limits.context)
            run = target.engine.embed(texts, target.adapter)
        async with while_connected(request.receive, run):
            ends = [event async for events in run.events() for event in events if isinstance(event, EndEvent)]
        for end in ends:
            if end.vector is None:
                status = {"timeout": 504, "closing": 503}.get(end.finish, 500)
                raise APIError(status, f"the text was not read: {end.finish} {end.why}".strip(), code=end.finish)
        return target, sorted(ends, key=lambda end: end.index)

    async def answer(
        self,
        request: Request,
        run: Submission,
        answer: AsyncIterator[str] | Callable[[], Any],
        media_type: str = "text/event-stream",
    ) -> Response:
        """A stream of chunks, or a whole answer, which is cancelled if the client disconnects."""
        if isinstance(answer, AsyncIterator):
            return StreamAnswer(answer, run, media_type)
        async with while_connected(request.receive, run):
            return JsonAnswer(await answer())

    async def body(self, request: Request) -> bytes:
        """The body, which must be JSON, because browsers send forms of any page without a CORS check."""
        if not _is_json(request):
            raise APIError(415, "the request's Content-Type must be application/json", code="wrong_content_type")
        return await read_body(request, self.settings.body, self.settings.body_seconds)


def _is_json(request: Request) -> bool:
    """Whether the content type is JSON. Some clients of Ollama omit it; that is accepted without an Origin header,
    which browsers always send."""
    headers = request.headers
    if headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
        return True
    return request.url.path.startswith("/api/") and not {"origin", "sec-fetch-site"} & set(headers.keys())
