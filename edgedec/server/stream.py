"""Events of a run to OpenAI's answers: the chunks of a stream, or one answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from secrets import token_hex
from time import time
from typing import Any

from starlette.concurrency import run_in_threadpool

from edgedec.decoding.messages import Stats
from edgedec.server.answers import dumps, sse
from edgedec.server.api import TextRequest
from edgedec.server.choice import Choice, TextDelta, many_reported
from edgedec.server.completions import Completion
from edgedec.server.errors import APIError
from edgedec.server.requests import EndEvent, Event, Submission, TextEvent
from edgedec.server.shapes import ChatShape, Shape, TextShape
from edgedec.text.tokenizer import Tokenizer

Json = dict[str, Any]
DONE = "data: [DONE]\n\n"
# Stands for the text in a chunk that is made once; no other member of a chunk is this string.
_TEXT = "\0"


class TextResponse:
    """The answer to one request: use `chunks` or `whole`."""

    def __init__(
        self, run: Submission, completions: Sequence[Completion], request: TextRequest, model: str, tokenizer: Tokenizer
    ) -> None:
        self._run, self._request = run, request
        self._choices = [Choice(completion, request) for completion in completions]
        # A prompt counts once however many choices are made of it.
        self._prompts = sum(len(completion.ids) for completion in completions[:: request.texts])
        shape = ChatShape if request.messages else TextShape
        self._shape: Shape = shape(tokenizer, request.logprobs)
        # The chunks around a text, by the index of the choice and by the drafter that proposed its last token.
        self._frames: dict[tuple[int, str], tuple[str, str]] = {}
        self._head = {"id": f"{shape.prefix}-{token_hex(12)}", "created": int(time()), "model": model}

    async def whole(self) -> Json:
        async for events in self._run.events():
            for event in events:
                self._choices[event.index].add(event)
        many = many_reported(self._choices, self._request.logprobs)
        return await run_in_threadpool(self._body) if many else self._body()

    def _body(self) -> Json:
        choices = [
            {"index": i, **self._shape.whole(choice), "finish_reason": choice.reason}
            for i, choice in enumerate(self._best())
        ]
        return {**self._head, "object": self._shape.object, "choices": choices, **self._usage()}

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
            yield sse(error.body) + DONE
            return
        if self._request.usage:
            yield sse(self._chunk([]) | self._usage())
        yield DONE

    def _opening(self) -> str:
        """The role and the echoed prompt, sent before any token, so that the client sees that the request was
        accepted."""
        first = ((i, self._shape.opening(choice.text)) for i, choice in enumerate(self._choices))
        return "".join(sse(self._chunk([{"index": i, **body, "finish_reason": None}])) for i, body in first if body)

    def _chunks_of(self, event: Event) -> list[str]:
        choice, start = self._choices[event.index], len(self._choices[event.index].text)
        delta = choice.add(event)
        wants = self._request.logprobs is not None
        if isinstance(event, TextEvent) and not (wants or delta.thought or delta.pieces):
            return [self._text_chunk(event.index, delta)] if delta.text else []
        bodies: list[Json] = []
        if delta.thought or delta.text or (wants and (delta.tokens or delta.prompt)):
            shown = TextDelta(delta.thought, delta.text, delta.tokens, prompt=delta.prompt)
            bodies.append(self._piece(shown, start, delta.by))
        if delta.pieces or delta.whole:
            bodies.append({**self._shape.piece(replace(delta, text=""), start), "finish_reason": None})
        if isinstance(event, EndEvent):
            bodies.append({**self._shape.closing(), "finish_reason": choice.reason})
        return [sse(self._chunk([{"index": event.index, **body}])) for body in bodies]

    def _piece(self, shown: TextDelta, start: int, by: str) -> Json:
        more = {"edgedec": {"by": by}} if by else {}
        return {**self._shape.piece(shown, start), "finish_reason": None, **more}

    def _text_chunk(self, index: int, delta: TextDelta) -> str:
        """The chunk of text alone, in which only the text is new, unless it counts."""
        if self._request.running_usage:
            return sse(self._chunk([{"index": index, **self._piece(delta, 0, delta.by)}]))
        key = (index, delta.by)
        if key not in self._frames:
            chunk = sse(self._chunk([{"index": index, **self._piece(TextDelta(text=_TEXT), 0, delta.by)}]))
            before, _, after = chunk.partition(dumps(_TEXT))
            self._frames[key] = before, after
        before, after = self._frames[key]
        return before + dumps(delta.text) + after

    def _best(self) -> list[Choice]:
        """The n likeliest texts of each prompt, if more were generated."""
        n, texts = self._request.n, self._request.texts
        if texts == n:
            return self._choices
        groups = [self._choices[i : i + texts] for i in range(0, len(self._choices), texts)]
        return [choice for group in groups for choice in sorted(group, key=lambda c: -c.score)[:n]]

    def _chunk(self, choices: list[Json]) -> Json:
        body = {**self._head, "object": self._shape.chunk, "choices": choices}
        if self._request.running_usage:
            return {**body, "usage": self._counts()}
        return {**body, "usage": None} if self._request.usage else body

    def _counts(self) -> Json:
        """The tokens so far."""
        written = sum(len(choice.tokens) for choice in self._choices)
        prompts = self._prompts
        return {"prompt_tokens": prompts, "completion_tokens": written, "total_tokens": prompts + written}

    def _usage(self) -> Json:
        return usage([choice.end for choice in self._choices if choice.end is not None], self._request.texts)


def usage(ends: Sequence[EndEvent], n: int = 1) -> Json:
    """The tokens of a request, the savings of speculative decoding, and the speed. n: texts for each prompt."""
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
            **(
                {"log_weights": [end.stats.log_weight for end in ends]} if any(end.stats.checks for end in ends) else {}
            ),
        },
    }
