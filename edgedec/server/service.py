"""Shared by all APIs of the server: settings, models, metrics, reading of requests and answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from edgedec.errors import EdgedecError
from edgedec.server import encoding
from edgedec.server.access import AccessPolicy
from edgedec.server.answers import JsonAnswer, StreamAnswer, while_connected
from edgedec.server.api import EmbedOptions, TextRequest
from edgedec.server.bodies import LARGE, read_body, weight
from edgedec.server.completions import Completion, completions, tokens_of
from edgedec.server.engine import EngineThread
from edgedec.server.errors import APIError
from edgedec.server.fairness import client_of
from edgedec.server.fields import MOST_CHOICES
from edgedec.server.limits import ConnectionLimits, ServerLimits, most_body
from edgedec.server.metrics import Metrics
from edgedec.server.pool import ModelPool, ModelSource, ModelTarget, limits_of
from edgedec.server.preparing import Preparation
from edgedec.server.requests import EndEvent, Submission
from edgedec.server.searching import check_search

if TYPE_CHECKING:
    from starlette.requests import Request

    from edgedec.encoding.numeric import Array
    from edgedec.encoding.texts import EncodedText
    from edgedec.server.rerank import RerankRequest

# No server-side limit: a text ends with its context.
MOST = 1 << 31
_AS_USUAL = EmbedOptions()
# The header in which a router names the client of a request; set to 1 in the environment of what stands behind one.
CLIENT_HEADER, ROUTED = "edgedec-client", "EDGEDEC_ROUTED"
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Settings:
    """limits: of each model's engine; body: bytes of a request, 0: as many as the context needs; most: tokens of a
    text; memory: bytes that loaded models may take together, 0: any; kept: bytes of responses that are kept for
    `previous_response_id`; connections: time limits; routed: a router stands before it, which names its clients."""

    limits: ServerLimits = field(default_factory=ServerLimits)
    access: AccessPolicy = field(default_factory=AccessPolicy)
    body: int = 0
    most: int = MOST
    memory: int = 0
    kept: int = 64 << 20
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    routed: bool = False


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
        self._preparation, self._encoders = Preparation(), encoding.EncoderThread()
        contexts = [limits_of(settings.limits, source.bundle.manifest.spec).context for source in sources]
        self.most_body = settings.body or most_body(max(contexts))
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

    async def generate(self, request: Request, wanted: TextRequest) -> RunningTexts:
        """Start the texts of a request."""
        async with self.pool.use(wanted.target) as target:
            _require_decoder(target)
            limits, most = target.engine.limits, self.settings.most
            check_search(wanted.options, wanted.stream, limits.scorers)
            read = partial(completions, target.model, wanted, limits.context, most, target.adapter, limits.room)
            if wanted.constraint is None and wanted.tools is None:
                found = await self._preparation.read(read, wanted.size)
            else:
                found = await self._preparation.compile(read, request.receive, limits.seconds)
            return RunningTexts(target, found, target.engine.generate(found, self._client(request)))

    async def embed(
        self, request: Request, wanted: TextRequest, options: EmbedOptions = _AS_USUAL
    ) -> tuple[ModelTarget, list[EndEvent]]:
        """The embeddings of a request's prompts."""
        async with self.pool.use(wanted.target) as target:
            if target.model.bundle.output is not None:
                encoder = target.model.encoder
                reading = encoding.read_texts(encoder, wanted.prompts, options)
                found = await self._encoded(request, target, reading)
                return target, encoding.as_ends(found, encoder, options.dimensions)
            if len(wanted.prompts) > MOST_CHOICES:
                raise APIError(400, f"input: {len(wanted.prompts)} texts, at most {MOST_CHOICES}", "input")
            read = partial(tokens_of, target.model, wanted.prompts, target.engine.limits.context)
            texts = await self._preparation.read(read, wanted.size)
            run = target.engine.embed(texts, target.adapter, self._client(request))
        async with while_connected(request.receive, run):
            ends = [event async for events in run.events() for event in events if isinstance(event, EndEvent)]
        for end in ends:
            if end.vector is None:
                status = {"timeout": 504, "closing": 503}.get(end.finish, 500)
                raise APIError(status, f"the text was not read: {end.finish} {end.why}".strip(), code=end.finish)
        ends = [
            replace(end, vector=encoding.narrowed(end.vector, options.dimensions))
            for end in ends
            if end.vector is not None
        ]
        return target, sorted(ends, key=lambda end: end.index)

    async def score(self, request: Request, wanted: RerankRequest) -> tuple[ModelTarget, list[float], int]:
        """How well each document fits the query, and the tokens that were read."""
        async with self.pool.use(wanted.target) as target:
            try:
                encoder = target.model.encoder
            except EdgedecError as error:
                raise APIError(400, str(error), "model", "invalid_value") from None
            texts = partial(encoder.read_ranking, wanted.query, wanted.documents, wanted.truncate)
            found = await self._encoded(request, target, texts)
        return target, encoder.fits([result for _, result in found]), sum(tokens for tokens, _ in found)

    async def _encoded(
        self, request: Request, target: ModelTarget, texts: Callable[[], Sequence[EncodedText]]
    ) -> list[tuple[int, Array]]:
        seconds, client = target.engine.limits.seconds, self._client(request)
        return await self._encoders.run(texts, target.model.encoder, request.receive, seconds, client)

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
            return await self.written(await answer())

    async def body(self, request: Request) -> bytes:
        """The body, which must be JSON, because browsers send forms of any page without a CORS check."""
        if not _is_json(request):
            raise APIError(415, "the request's Content-Type must be application/json", code="wrong_content_type")
        return await read_body(request, self.most_body, self.settings.connections.body)

    async def read(self, request: Request, parse: Callable[[bytes], Parsed]) -> Parsed:
        """The parsed body. A large one is parsed in a thread, one at a time, so that no text waits for it."""
        raw = await self.body(request)
        return parse(raw) if len(raw) < LARGE else await self._preparation.read(partial(parse, raw), len(raw))

    async def prepare(self, act: Callable[[], Parsed], size: int) -> Parsed:
        """What `act` returns, in a thread; large ones have turns. size: the weight of what it reads or makes."""
        return await self._preparation.read(act, size)

    async def written(self, body: Any) -> Response:
        """A whole answer; a large one is written in a thread."""
        size = weight(body, LARGE)
        return JsonAnswer(body) if size < LARGE else await self.prepare(partial(JsonAnswer, body), size)

    def _client(self, request: Request) -> str:
        """Whose request it is: that of an address."""
        if self.settings.routed:
            return request.headers.get(CLIENT_HEADER, "")
        return "" if request.client is None else client_of(request.client.host)


def _require_decoder(target: ModelTarget) -> None:
    """APIError 400 for a text encoder."""
    try:
        target.model.require_decoder()
    except EdgedecError as error:
        raise APIError(400, str(error), "model", "invalid_value") from None


def _is_json(request: Request) -> bool:
    """Whether the content type is JSON. Some clients of Ollama omit it; that is accepted without an Origin header,
    which browsers always send."""
    headers = request.headers
    if headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
        return True
    return request.url.path.startswith("/api/") and not {"origin", "sec-fetch-site"} & set(headers.keys())
