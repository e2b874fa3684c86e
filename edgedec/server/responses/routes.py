"""The endpoints of responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from edgedec.server.answers import JsonAnswer
from edgedec.server.responses import parse
from edgedec.server.responses.answer import ResponseAnswer
from edgedec.server.responses.store import ResponseStore
from edgedec.server.service import Server

if TYPE_CHECKING:
    from starlette.requests import Request


class ResponsesRoutes:
    """The endpoints of one server, and the responses that it keeps."""

    def __init__(self, server: Server) -> None:
        self._server, self.store = server, ResponseStore(server.settings.kept)

    def routes(self) -> list[Route]:
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses/{response_id}", self.one, methods=["GET"]),
            Route("/v1/responses/{response_id}", self.delete, methods=["DELETE"]),
            Route("/v1/responses/{response_id}/input_items", self.items, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Response:
        body = await self._server.read(request, parse.response)
        items = tuple(self._whole(item, f"input[{i}].id") for i, item in enumerate(parse.items_of(body)))
        asked = parse.ResponseRequest(body, items, self._earlier(body.get("previous_response_id")))
        wanted = asked.text_request()
        started = await self._server.generate(request, wanted)
        answer = ResponseAnswer(started, asked, wanted, self.store.add)
        return await self._server.answer(request, started.run, answer.chunks() if wanted.stream else answer.whole)

    async def one(self, request: Request) -> Response:
        return JsonAnswer(self.store.get(request.path_params["response_id"]).response)

    async def delete(self, request: Request) -> Response:
        name = request.path_params["response_id"]
        self.store.remove(name)
        return JsonAnswer({"id": name, "object": "response", "deleted": True})

    async def items(self, request: Request) -> Response:
        """The input of a response, the newest first, as OpenAI lists it."""
        name = request.path_params["response_id"]
        given = self.store.get(name).history
        listed = [{"type": "message", "id": f"item_{i}", **item} for i, item in enumerate(given)][::-1]
        ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
        return JsonAnswer({"object": "list", "data": listed, "has_more": False, **ends})

    def _whole(self, item: dict[str, Any], param: str) -> dict[str, Any]:
        """An item of the input; a reference is replaced by the item that it names."""
        return self.store.item(item["id"], param) if item.get("type") == parse.REFERENCE else item

    def _earlier(self, name: str | None) -> tuple[dict[str, Any], ...]:
        if name is None:
            return ()
        kept = self.store.get(name, "previous_response_id")
        return (*kept.history, *kept.response["output"])
