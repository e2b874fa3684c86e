"""Events of a run to HTTP: the chunks of a stream, or one answer. The two interfaces differ in shape only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from time import time
from typing import Any

from edgedec.decoding.step import Stats, Token
from edgedec.server.api import TextRequest
from edgedec.server.completions import Completion
from edgedec.server.errors import APIError
from edgedec.server.requests import EndEvent, Event, Submission
from edgedec.server.shapes import ChatShape, Shape, TextShape
from edgedec.server.tools import may_be_call, read_call
from edgedec.text.tokenizer import Tokenizer

Json = dict[str, Any]
DONE = "data: [DONE]\n\n"
_ENDS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}


@dataclass
class Choice:
    """One text so far. `held`: text held back, as it may be a function call; `unsent`: tokens not yet in a chunk."""

    text: str = ""
    held: str = ""
    unsent: list[Token] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    call: tuple[str, str] | None = None
    end: EndEvent | None = None


class TextResponse:
    """The answer to one request: use `chunks` or `whole`."""

    def __init__(
        self, run: Submission, completions: Sequence[Completion], request: TextRequest, model: str, tokenizer: Tokenizer
    ) -> None:
        self._run, self._request = run, request
        self._choices = [Choice(text=completion.echo) for completion in completions]
        shape = ChatShape if request.messages else TextShape
        self._shape: Shape = shape(tokenizer, request.logprobs)
        self._head = {"id": f"{shape.prefix}-{token_hex(12)}", "created": int(time()), "model": model}

    async def whole(self) -> Json:
        async for events in self._run.events():
            for event in events:
                self._add(event)
                if isinstance(event, EndEvent):
                    _check(event)
        return self._answer()

    async def chunks(self) -> AsyncIterator[str]:
        """Server-sent events, all that are ready at a time."""
        yield self._opening()
        try:
            async for events in self._run.events():
                text = "".join(chunk for event in events for chunk in self._chunks_of(event))
                if text:
                    yield text
        except APIError as error:
            self._run.cancel()
            yield _sse(error.body) + DONE
            return
        if self._request.usage:
            yield _sse(self._chunk([]) | self._usage())
        yield DONE

    def _opening(self) -> str:
        """The role and the echoed prompt: before any token, so that a client knows that the request was accepted."""
        first = ((i, self._shape.opening(choice.text)) for i, choice in enumerate(self._choices))
        return "".join(_sse(self._chunk([{"index": i, **body, "finish_reason": None}])) for i, body in first if body)

    def _chunks_of(self, event: Event) -> list[str]:
        choice, start = self._choices[event.index], len(self._choices[event.index].text)
        self._add(event)
        if isinstance(event, EndEvent):
            _check(event)
        bodies: list[Json] = []
        text = choice.text[start:]
        if text or (choice.unsent and self._request.logprobs is not None):
            by = next((token.by for token in reversed(choice.unsent) if token.by), "")
            more = {"edgedec": {"by": by}} if by else {}
            bodies.append({**self._shape.piece(text, choice.unsent, start), "finish_reason": None, **more})
            choice.unsent.clear()
        if choice.call:
            bodies.append({**self._shape.calling(*choice.call, whole=False), "finish_reason": None})
        if choice.end is not None:
            bodies.append({**self._shape.closing(), "finish_reason": self._reason(choice)})
        return [_sse(self._chunk([{"index": event.index, **body}])) for body in bodies]

    def _add(self, event: Event) -> None:
        """Add an event to its choice; text that may be a call is held back until the end."""
        choice, tools = self._choices[event.index], self._request.tools
        if isinstance(event, EndEvent):
            choice.end = event
            choice.call = None if tools is None else read_call(choice.held, tools.schemas)
            if choice.call is None:
                choice.text += choice.held
            else:
                choice.unsent.clear()
            return
        if event.token is not None:
            choice.unsent.append(event.token)
            choice.tokens.append(event.token)
        choice.held += event.text
        waits = tools is not None and not choice.text and may_be_call(choice.held)
        if not waits and not (tools is not None and tools.choice == "required"):
            choice.text, choice.held = choice.text + choice.held, ""

    def _answer(self) -> Json:
        choices = []
        for i, choice in enumerate(self._choices):
            if choice.call:
                body = self._shape.calling(*choice.call, whole=True)
            else:
                body = self._shape.whole(choice.text, choice.tokens)
            choices.append({"index": i, **body, "finish_reason": self._reason(choice)})
        return {**self._head, "object": self._shape.object, "choices": choices, **self._usage()}

    def _reason(self, choice: Choice) -> str:
        assert choice.end is not None
        return "tool_calls" if choice.call else _ENDS.get(choice.end.finish, "stop")

    def _chunk(self, choices: list[Json]) -> Json:
        body = {**self._head, "object": self._shape.chunk, "choices": choices}
        return {**body, "usage": None} if self._request.usage else body

    def _usage(self) -> Json:
        return usage([choice.end for choice in self._choices if choice.end is not None], self._request.n)


def usage(ends: Sequence[EndEvent], n: int = 1) -> Json:
    """Tokens of a request, what speculative decoding saved, and the speed."""
    stats = Stats()
    for end in ends:
        stats.generated += end.stats.generated
        stats.calls += end.stats.calls
        stats.proposed += end.stats.proposed
        stats.accepted += end.stats.accepted
    # A prompt counts once however many choices were made of it.
    prompt = sum(end.stats.prompt for end in ends[::n])
    later = sum(max(end.stats.generated - 1, 0) for end in ends)
    seconds = sum(end.seconds[2] for end in ends)
    return {
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": stats.generated,
            "total_tokens": prompt + stats.generated,
            "prompt_tokens_details": {"cached_tokens": sum(end.stats.cached for end in ends[::n])},
            "completion_tokens_details": {
                "accepted_prediction_tokens": stats.accepted,
                "rejected_prediction_tokens": stats.proposed - stats.accepted,
                "calls": stats.calls,
            },
        },
        "edgedec": {
            "tokens_per_second": round(later / seconds, 2) if seconds else None,
            "tokens_per_call": round(stats.generated / stats.calls, 3) if stats.calls else None,
        },
    }


def _check(end: EndEvent) -> None:
    """APIError, if a text was ended by an error or from outside."""
    if end.finish == "timeout":
        raise APIError(504, "the request took too long", code="timeout")
    if end.finish == "closing":
        raise APIError(503, "the server is shutting down", code="shutting_down", wait=5)
    if end.finish == "cancelled":
        raise APIError(499, "the client has disconnected", code="cancelled")
    if end.finish == "failed":
        status = 500 if end.fault else 400
        raise APIError(status, f"the server failed: {end.why}" if end.fault else end.why, code="failed")


def _sse(body: Json) -> str:
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"
