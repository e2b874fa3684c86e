"""Bodies of requests for responses, and their items as the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgedec.server.api import (
    TextRequest,
    options_of,
    read_message,
    read_tools,
    target_of,
    template_variables,
    text_of,
)
from edgedec.server.bodies import checked
from edgedec.server.errors import APIError
from edgedec.server.responses.fields import LOGPROBS, RESPONSE
from edgedec.server.responses.store import response_of
from edgedec.server.shaping import of_format, shaping_of

Json = dict[str, Any]
REFERENCE = "item_reference"


@dataclass(frozen=True)
class ResponseRequest:
    """`body`: the checked body; `items`: the request's items; `earlier`: the input and output items of the response
    that it continues."""

    body: Mapping[str, Any]
    items: tuple[Json, ...]
    earlier: tuple[Json, ...] = ()

    @property
    def stores(self) -> bool:
        return bool(self.body.get("store", True))

    @property
    def history(self) -> tuple[Json, ...]:
        """All items, the oldest first."""
        return (*self.earlier, *self.items)

    def text_request(self) -> TextRequest:
        """The request as a chat."""
        body = self.body
        given, reasoning = body.get("text", {}).get("format"), body.get("reasoning", {})
        tools = read_tools({**body, "tools": list(map(_tool, body.get("tools", [])))} | _choice(body))
        form = None if given is None else of_format(given, "text.format")
        options = options_of({key: value for key, value in body.items() if key not in ("max_tokens", "logprobs")})
        if "max_output_tokens" in body:
            options["max_tokens"] = int(body["max_output_tokens"])
        return TextRequest(
            options,
            messages=messages_of(self.history, body.get("instructions")),
            target=target_of(body),
            logprobs=_logprobs(body),
            stream=bool(body.get("stream")),
            tools=tools,
            variables=template_variables({"reasoning_effort": reasoning.get("effort")}),
            **shaping_of(body, form, tools.choice if tools else ""),
        )


def response(raw: bytes) -> Json:
    """The body of a request for /v1/responses."""
    body = checked(raw, RESPONSE)
    if not body.get("input") and "previous_response_id" not in body:
        raise APIError(400, "input: is missing or empty", "input", "invalid_value")
    return body


def holder(body: Mapping[str, Any]) -> str | None:
    """The kept response that a body needs, whose replica must answer; None if it needs none."""
    before, given = body.get("previous_response_id"), body.get("input")
    if isinstance(before, str):
        return before
    items = [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []
    named = [item.get("id") for item in items if item.get("type") == REFERENCE]
    return next((response_of(name) for name in reversed(named) if isinstance(name, str)), None)


def items_of(body: Mapping[str, Any]) -> tuple[Json, ...]:
    """The input as items: text is a user's message."""
    given = body.get("input", [])
    return tuple(given) if isinstance(given, list) else ({"type": "message", "role": "user", "content": given},)


def messages_of(items: Sequence[Mapping[str, Any]], instructions: str | None) -> tuple[Json, ...]:
    """Items as a chat's messages: calls belong to the assistant's message before them.

    >>> call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    >>> [message["role"] for message in messages_of([{"role": "user", "content": "Go."}, call, call], "Be kind.")]
    ['system', 'user', 'assistant']
    """
    found: list[Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            found.append({"role": item["role"], "content": text_of(item["content"])})
        elif kind == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item["call_id"], "content": text_of(item["output"])})
        elif kind == "function_call":
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": ""})
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            found[-1]["tool_calls"] = [*found[-1].get("tool_calls", []), call]
    if not found:
        raise APIError(400, "input: there is no message in it", "input", "invalid_value")
    return tuple(map(read_message, found))


def _tool(given: Mapping[str, Any]) -> Json:
    """A function as chats describe it."""
    return {"type": "function", "function": {key: value for key, value in given.items() if key != "type"}}


def _choice(body: Mapping[str, Any]) -> Json:
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return {"tool_choice": {"type": "function", "function": {"name": choice["name"]}}}
    return {}


def _logprobs(body: Mapping[str, Any]) -> int | None:
    if LOGPROBS in body.get("include", ()) or "top_logprobs" in body:
        return int(body.get("top_logprobs", 0))
    return None
