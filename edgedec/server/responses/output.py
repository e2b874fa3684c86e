"""The output items of a response as they grow, and the events that describe the growth."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

from edgedec.server.calls import CallPiece
from edgedec.server.choice import TextDelta
from edgedec.server.responses.store import item_id
from edgedec.server.shapes import chat_logprobs
from edgedec.text.tokenizer import Tokenizer

Json = dict[str, Any]
# For items with text content: the id prefix, and the name of their events.
_KINDS = {"reasoning": ("rs", "reasoning_text"), "message": ("msg", "output_text")}


class ResponseOutput:
    """The output items so far; every method returns the events of its additions, without their numbers. response: its
    id, which those of the items hold, so that a reference to an item is found by it."""

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None, response: str) -> None:
        self._tokenizer, self._logprobs, self._response = tokenizer, logprobs, response
        self.items: list[Json] = []
        self._open: Json | None = None

    @property
    def text(self) -> str:
        """The text of its messages."""
        return "".join(item["content"][0]["text"] for item in self.items if item["type"] == "message")

    def add(self, delta: TextDelta) -> list[Json]:
        """The events of a text's additions."""
        events: list[Json] = []
        if delta.thought:
            events += self._append("reasoning", delta.thought, delta)
        if delta.text:
            events += self._append("message", delta.text, delta)
        for piece in delta.pieces:
            events += self._piece(piece)
        for call in delta.whole:
            events += self._piece(CallPiece(-1, call.name, call.arguments))
        return events

    def finish(self, cut: bool = False) -> list[Json]:
        """The end of the text: an answer has at least one item. cut: the last one is incomplete."""
        begun = [] if self.items else self._begin("message")
        return [*begun, *self.close("incomplete" if cut else "completed")]

    def close(self, status: str = "completed") -> list[Json]:
        """Complete the open item."""
        item, self._open = self._open, None
        if item is None:
            return []
        if item["type"] == "function_call":
            return self._end_call(item, status)
        part, kind = item["content"][0], _KINDS[item["type"]][1]
        item["status"] = status
        more = {"logprobs": part["logprobs"]} if kind == "output_text" else {}
        where = self._where(item)
        return [
            {"type": f"response.{kind}.done", **where, "text": part["text"], **more},
            {"type": "response.content_part.done", **where, "part": dict(part)},
            self._done(item),
        ]

    def _append(self, of: str, text: str, delta: TextDelta) -> list[Json]:
        """Add text to an item of a kind; begins the item if another kind is open."""
        begun = [] if self._open is not None and self._open["type"] == of else [*self.close(), *self._begin(of)]
        assert self._open is not None
        part, kind = self._open["content"][0], _KINDS[of][1]
        part["text"] += text
        more: Json = {}
        if kind == "output_text":
            more = {"logprobs": [] if self._logprobs is None else chat_logprobs(self._tokenizer, delta.tokens)}
            part["logprobs"] += more["logprobs"]
        return [*begun, {"type": f"response.{kind}.delta", **self._where(self._open), "delta": text, **more}]

    def _begin(self, of: str) -> list[Json]:
        prefix, kind = _KINDS[of]
        part: Json = {"type": kind, "text": ""}
        item: Json = {"id": item_id(prefix, self._response, len(self.items)), "type": of, "status": "in_progress"}
        if of == "message":
            part |= {"annotations": [], "logprobs": []}
            item["role"] = "assistant"
        else:
            item["summary"] = []
        self.items.append(item)
        added = self._added({**item, "content": []})
        item["content"], self._open = [part], item
        return [added, {"type": "response.content_part.added", **self._where(item), "part": dict(part)}]

    def _piece(self, piece: CallPiece) -> list[Json]:
        """Add a piece of a call; a name begins a new one."""
        events: list[Json] = []
        if piece.name:
            item = {
                "id": item_id("fc", self._response, len(self.items)),
                "type": "function_call",
                "status": "in_progress",
                "call_id": f"call_{token_hex(12)}",
                "name": piece.name,
                "arguments": "",
            }
            events += self.close()
            self.items.append(item)
            self._open = item
            events.append(self._added(dict(item)))
        assert self._open is not None
        if piece.arguments:
            self._open["arguments"] += piece.arguments
            kind = "response.function_call_arguments.delta"
            events.append({"type": kind, **self._place(self._open), "delta": piece.arguments})
        return events

    def _end_call(self, item: Json, status: str) -> list[Json]:
        """End a call."""
        item["status"] = status
        said = {"arguments": item["arguments"], "name": item["name"]}
        return [{"type": "response.function_call_arguments.done", **self._place(item), **said}, self._done(item)]

    def _place(self, item: Json) -> Json:
        return {"item_id": item["id"], "output_index": len(self.items) - 1}

    def _where(self, item: Json) -> Json:
        return {**self._place(item), "content_index": 0}

    def _added(self, item: Json) -> Json:
        return {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": item}

    def _done(self, item: Json) -> Json:
        return {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": dict(item)}
