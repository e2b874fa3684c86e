"""OpenAI's chat, completions, embeddings and models, and vLLM's tokenize and detokenize."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response
from starlette.routing import Route

from edgedec.errors import EdgedecError
from edgedec.server import api, fields, tools
from edgedec.server.answers import JsonAnswer
from edgedec.server.bodies import LARGE, checked, weight
from edgedec.server.errors import APIError
from edgedec.server.pool import ModelSource, ModelTarget
from edgedec.server.requests import EndEvent
from edgedec.server.service import Server
from edgedec.server.stream import TextResponse, usage

if TYPE_CHECKING:
    from starlette.requests import Request

Json = dict[str, Any]


class OpenAIRoutes:
    """The endpoints of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, api.chat)

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, api.completion)

    async def _generate(self, request: Request, parse: Callable[[bytes], api.TextRequest]) -> Response:
        wanted = await self._server.read(request, parse)
        started = await self._server.generate(request, wanted)
        target = started.target
        response = TextResponse(started.run, started.completions, wanted, target.name, target.model.tokenizer)
        answer = response.chunks() if wanted.stream else response.whole
        return await self._server.answer(request, started.run, answer)

    async def embeddings(self, request: Request) -> Response:
        wanted, options = await self._server.read(request, api.embedding)
        target, ends = await self._server.embed(request, wanted, options)
        size = sum(end.vector.size for end in ends if end.vector is not None)
        return await self._server.prepare(partial(_embedded, target.name, ends, options.packed), size)

    async def models(self, request: Request) -> Response:
        cards = [card for source in self._server.pool.sources.values() for card in self._cards(source)]
        return JsonAnswer({"object": "list", "data": cards})

    async def model(self, request: Request) -> Response:
        source, adapter = self._server.pool.resolve(request.path_params["model"])
        return JsonAnswer(next(card for card in self._cards(source) if card["id"] == (adapter or source.name)))

    async def tokenize(self, request: Request) -> Response:
        body = await self._server.read(request, partial(checked, schema=fields.TOKENIZE))
        if ("prompt" in body) == ("messages" in body):
            raise APIError(400, "prompt: give it or messages", "prompt", "invalid_value")
        async with self._server.pool.use(api.target_of(body)) as target:
            answer: Response = await self._server.prepare(
                partial(_named, _tokenized, target, body), weight(body, LARGE)
            )
        return answer

    async def detokenize(self, request: Request) -> Response:
        body = await self._server.read(request, partial(checked, schema=fields.DETOKENIZE))
        async with self._server.pool.use(api.target_of(body)) as target:
            answer: Response = await self._server.prepare(partial(_named, _text, target, body), weight(body, LARGE))
        return answer

    def _cards(self, source: ModelSource) -> list[Json]:
        """The cards of the model and of its adapters."""
        served = self._server.pool.loaded.get(source.name)
        more = {} if served is None else {"context_length": served.engine.limits.context}
        card = {"id": source.name, "object": "model", "created": source.created, "owned_by": "edgedec"}
        about: Json = {"edgedec": {"loaded": served is not None, **more}}
        if served is not None:
            about["max_model_len"] = served.engine.limits.context
        own = {**card, **about}
        return [own, *({**card, "id": name, "parent": source.name, **about} for name in source.adapters)]


def _named(act: Callable[[ModelTarget, Mapping[str, Any]], Any], target: ModelTarget, body: Mapping[str, Any]) -> Any:
    """The result of `act`, with its errors as answers."""
    try:
        return act(target, body)
    except EdgedecError as error:
        raise APIError(400, str(error), code="invalid_value") from None


def _tokens(target: ModelTarget, body: Mapping[str, Any]) -> list[int]:
    tokenizer = target.model.tokenizer
    if "prompt" in body:
        return tokenizer.encode(body["prompt"], around=bool(body.get("add_special_tokens", True)))
    answers = bool(body.get("add_generation_prompt", True))
    messages = [api.read_message(message) for message in body["messages"]]
    known = api.read_tools({"tools": body.get("tools")})
    text = tools.prompt(target.model, messages, known, api.template_variables(body), answers)
    return tokenizer.encode(text, around=bool(body.get("add_special_tokens", False)))


def _text(target: ModelTarget, body: Mapping[str, Any]) -> Response:
    return JsonAnswer({"prompt": target.model.tokenizer.decode(map(int, body["tokens"]))})


def _tokenized(target: ModelTarget, body: Mapping[str, Any]) -> Response:
    """The whole answer: of a long text its JSON takes time too."""
    ids, tokenizer = _tokens(target, body), target.model.tokenizer
    return JsonAnswer(
        {
            "count": len(ids),
            "max_model_len": target.engine.limits.context,
            "tokens": ids,
            "token_strs": [tokenizer.token(token) for token in ids] if body.get("return_token_strs") else None,
        }
    )


def _embedded(name: str, ends: Sequence[EndEvent], packed: bool) -> Response:
    data = [
        {"object": "embedding", "index": end.index, "embedding": _vector(end.vector, packed)}
        for end in ends
        if end.vector is not None
    ]
    counts = usage(ends)["usage"]["prompt_tokens"]
    used = {"prompt_tokens": counts, "total_tokens": counts}
    return JsonAnswer({"object": "list", "model": name, "data": data, "usage": used})


def _vector(vector: NDArray[np.float32], packed: bool) -> list[float] | str:
    if packed:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in vector]
