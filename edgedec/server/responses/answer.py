"""The response object, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from time import time
from typing import Any

from starlette.concurrency import run_in_threadpool

from edgedec.server.answers import sse
from edgedec.server.api import TextRequest
from edgedec.server.choice import Choice
from edgedec.server.errors import APIError
from edgedec.server.requests import Event
from edgedec.server.responses.output import ResponseOutput
from edgedec.server.responses.parse import ResponseRequest
from edgedec.server.responses.store import KeptResponse, response_id
from edgedec.server.service import RunningTexts
from edgedec.server.stream import usage

Json = dict[str, Any]
# Parameters that the object repeats, with their values if missing.
_SHOWN: Json = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}


class ResponseAnswer:
    """The answer to one request: use `chunks` or `whole`. `keep` gets the response when it is complete."""

    def __init__(
        self,
        started: RunningTexts,
        request: ResponseRequest,
        wanted: TextRequest,
        keep: Callable[[KeptResponse], None],
    ) -> None:
        self._run, self._request, self._keep = started.run, request, keep
        self._choice = Choice(started.completions[0], wanted)
        name = response_id()
        self._output = ResponseOutput(started.target.model.tokenizer, wanted.logprobs, name)
        self._sequence = 0
        sampling = started.completions[0].config.sampling
        shown = {**_SHOWN, "temperature": sampling.temperature, "top_p": sampling.top_p}
        body = request.body
        self._head: Json = {
            "id": name,
            "object": "response",
            "created_at": int(time()),
            "model": started.target.name,
            "error": None,
            "incomplete_details": None,
            **{name: body.get(name, value) for name, value in shown.items()},
            "reasoning": {"effort": None, "summary": None} | dict(body.get("reasoning", {})),
            "text": {"format": {"type": "text"}} | dict(body.get("text", {})),
        }

    async def whole(self) -> Json:
        async for events in self._run.events():
            for event in events:
                self._output.add(self._choice.add(event))
        self._output.finish(self._cut)
        return await self._kept(self._completed())

    async def chunks(self) -> AsyncIterator[str]:
        """Server-sent events, all that are ready at a time."""
        begun = self._response("in_progress", [])
        yield self._event("response.created", begun) + self._event("response.in_progress", begun)
        try:
            async for events in self._run.events():
                text = "".join(self._grown(event) for event in events)
                if text:
                    yield text
        except APIError as error:
            self._run.cancel()
            yield self._failed(error)
            return
        yield "".join(map(self._sent, self._output.finish(self._cut)))
        response = await self._kept(self._completed())
        yield await run_in_threadpool(self._event, f"response.{response['status']}", response)

    def _grown(self, event: Event) -> str:
        return "".join(map(self._sent, self._output.add(self._choice.add(event))))

    def _failed(self, error: APIError) -> str:
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        response = {**self._response("failed", self._output.items), "error": {"code": code, "message": error.message}}
        return self._event("response.failed", response)

    def _completed(self) -> Json:
        """The whole response."""
        response = self._response("incomplete" if self._cut else "completed", self._output.items)
        if self._cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return response | self._usage()

    async def _kept(self, response: Json) -> Json:
        """The response, stored if the request says so, as JSON, which is made in a thread."""
        if self._request.stores:
            await run_in_threadpool(self._keep, KeptResponse(response, self._request.history))
        return response

    @property
    def _cut(self) -> bool:
        return self._choice.reason == "length"

    def _response(self, status: str, output: list[Json]) -> Json:
        return {**self._head, "status": status, "output": list(output), "usage": None}

    def _usage(self) -> Json:
        assert self._choice.end is not None
        found = usage([self._choice.end])
        used, own = found["usage"], found["edgedec"]
        return {
            "usage": {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": used["prompt_tokens_details"],
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._choice.thought_tokens},
                "total_tokens": used["total_tokens"],
            },
            "edgedec": own,
        }

    def _event(self, kind: str, response: Json) -> str:
        return self._sent({"type": kind, "response": response})

    def _sent(self, event: Json) -> str:
        self._sequence += 1
        return sse({**event, "sequence_number": self._sequence - 1}, event["type"])
