"""Ollama's answers: lines of JSON as the text grows, or one object."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from time import perf_counter_ns
from typing import Any

from starlette.concurrency import run_in_threadpool

from edgedec.server.answers import dumps
from edgedec.server.api import TextRequest
from edgedec.server.choice import Choice, TextDelta, many_reported
from edgedec.server.closing import closed
from edgedec.server.errors import APIError
from edgedec.server.ollama.about import now
from edgedec.server.requests import Event
from edgedec.server.service import RunningTexts
from edgedec.server.shapes import chat_logprobs

Json = dict[str, Any]


class OllamaAnswer:
    """The answer to one request: use `chunks` or `whole`. began: when the request came (perf_counter_ns); chats: a
    message is returned, not a text; load: nanoseconds until the model was ready."""

    def __init__(
        self, started: RunningTexts, wanted: TextRequest, model: str, began: int, load: int, chats: bool
    ) -> None:
        self._run, self._began, self._load, self._chats = started.run, began, load, chats
        self._ids = started.completions[0].ids
        self._choice = Choice(started.completions[0], wanted)
        self._tokenizer, self._logprobs = started.target.model.tokenizer, wanted.logprobs
        self._model = model

    async def whole(self) -> Json:
        async for events in self._run.events():
            for event in events:
                self._choice.add(event)
        choice = self._choice
        whole = TextDelta(choice.thought.rstrip(), choice.text, choice.tokens, choice.calls)
        made = partial(self._body, whole)
        body = await run_in_threadpool(made) if many_reported([choice], self._logprobs) else made()
        return {**body, **self._end()}

    async def chunks(self) -> AsyncIterator[str]:
        """Lines of JSON, all that are ready at a time."""
        try:
            async for events in self._run.events():
                text = "".join(map(self._line, events))
                if text:
                    yield text
        except APIError as error:
            self._run.cancel()
            yield dumps({"error": error.message}) + "\n"
            return
        yield dumps({**self._body(TextDelta()), **self._end()}) + "\n"

    def _line(self, event: Event) -> str:
        delta = self._choice.add(event)
        if not (delta.thought or delta.text or delta.calls):
            return ""
        return dumps({**self._body(delta), "done": False}) + "\n"

    def _body(self, delta: TextDelta) -> Json:
        thought = {"thinking": delta.thought} if delta.thought else {}
        head = {"model": self._model, "created_at": now()}
        odds = {}
        if self._logprobs is not None and delta.tokens:
            odds = {"logprobs": chat_logprobs(self._tokenizer, delta.tokens)}
        if not self._chats:
            return {**head, "response": delta.text, **thought, **odds}
        calls = [{"function": {"name": call.name, "arguments": closed(call.arguments)}} for call in delta.calls]
        more = {"tool_calls": calls} if calls else {}
        return {**head, "message": {"role": "assistant", "content": delta.text, **thought, **more}, **odds}

    def _end(self) -> Json:
        end = self._choice.end
        assert end is not None
        _, first, later = end.seconds
        reason = "length" if self._choice.reason == "length" else "stop"
        context = {} if self._chats else {"context": [*self._ids, *map(int, self._choice.tokens)]}
        return {
            "done": True,
            "done_reason": reason,
            **context,
            "total_duration": perf_counter_ns() - self._began,
            "load_duration": self._load,
            "prompt_eval_count": end.stats.prompt,
            "prompt_eval_duration": int(first * 1e9),
            "eval_count": end.stats.generated,
            "eval_duration": int(later * 1e9),
        }
