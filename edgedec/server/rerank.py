"""/v1/rerank as Jina's API has it, /v2/rerank as Cohere's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from starlette.responses import Response
from starlette.routing import Route

from edgedec.server import fields
from edgedec.server.answers import JsonAnswer
from edgedec.server.bodies import checked
from edgedec.server.service import Server

if TYPE_CHECKING:
    from starlette.requests import Request

Json = dict[str, Any]
_MOST = 1000
_DOCUMENT = {"anyOf": [{"type": "string"}, fields.open_(("text",), text={"type": "string"})]}
_COMMON: Json = {
    **fields.WHO,
    "query": {"type": "string"},
    "documents": {"type": "array", "minItems": 1, "maxItems": _MOST, "items": _DOCUMENT},
    "top_n": fields.or_null("integer", minimum=1),
    "return_documents": fields.or_null("boolean"),
}
JINA = fields.closed(("query", "documents"), **_COMMON, truncation=fields.or_null("boolean"))
COHERE = fields.closed(("query", "documents"), **_COMMON, max_tokens_per_doc=fields.or_null("integer", minimum=1))


@dataclass(frozen=True)
class RerankRequest:
    """truncate: cut documents that are too long; top: how many to return; texts: whether with their texts."""

    target: tuple[str | None, str | None]
    query: str
    documents: tuple[str, ...]
    top: int
    texts: bool
    truncate: bool


def jina(raw: bytes) -> RerankRequest:
    """A request for /v1/rerank; documents are returned unless it says otherwise."""
    body = checked(raw, JINA)
    return _request(body, body.get("return_documents") is not False, body.get("truncation") is not False)


def cohere(raw: bytes) -> RerankRequest:
    """A request for /v2/rerank."""
    body = checked(raw, COHERE)
    return _request(body, bool(body.get("return_documents")), True)


def _request(body: Mapping[str, Any], texts: bool, truncate: bool) -> RerankRequest:
    documents = tuple(text if isinstance(text, str) else text["text"] for text in body["documents"])
    top = body.get("top_n") or len(documents)
    return RerankRequest((body.get("model"), body.get("adapter")), body["query"], documents, top, texts, truncate)


class RerankRoutes:
    """The endpoints of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        return [
            Route("/v1/rerank", self.jina, methods=["POST"]),
            Route("/v2/rerank", self.cohere, methods=["POST"]),
        ]

    async def jina(self, request: Request) -> Response:
        name, results, tokens = await self._ranked(request, jina)
        used = {"total_tokens": tokens, "prompt_tokens": tokens}
        return JsonAnswer({"model": name, "object": "list", "usage": used, "results": results})

    async def cohere(self, request: Request) -> Response:
        _, results, tokens = await self._ranked(request, cohere)
        meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}}
        return JsonAnswer({"id": str(uuid4()), "results": results, "meta": meta})

    async def _ranked(
        self, request: Request, parse: Callable[[bytes], RerankRequest]
    ) -> tuple[str, Sequence[Json], int]:
        """The model's name, documents by their scores, and the tokens that were read."""
        wanted = await self._server.read(request, parse)
        target, scores, tokens = await self._server.score(request, wanted)
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: wanted.top]
        results: list[Json] = [{"index": i, "relevance_score": scores[i]} for i in order]
        for result in results if wanted.texts else ():
            result["document"] = {"text": wanted.documents[result["index"]]}
        return target.name, results, tokens
