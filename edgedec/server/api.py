"""Bodies of requests to plain data, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.errors import UsageError
from edgedec.generation import parse_options
from edgedec.server import fields
from edgedec.server.errors import APIError, no_model
from edgedec.server.schema import Schema, check

# Tokens of a completion unless the request says more: OpenAI's.
_DEFAULT_TOKENS = 16
Prompt = str | tuple[int, ...]


@dataclass(frozen=True)
class Tools:
    """The functions that the model may call, with the schemas of their arguments; `choice`: auto or required."""

    described: tuple[Mapping[str, Any], ...]
    schemas: Mapping[str, Mapping[str, Any]]
    choice: str


@dataclass(frozen=True)
class TextRequest:
    """A chat (`messages`) or completions (`prompts`): its content, and the `options` of generation that it names.

    `schema`: of the text, as JSON schema; None: any text. `logprobs`: how many likely tokens to report.
    """

    options: Mapping[str, Any]
    messages: tuple[Mapping[str, Any], ...] = ()
    prompts: tuple[Prompt, ...] = ()
    n: int = 1
    logprobs: int | None = None
    echo: bool = False
    stream: bool = False
    usage: bool = False
    schema: Mapping[str, Any] | None = None
    tools: Tools | None = None


def parse(raw: bytes) -> dict[str, Any]:
    """A JSON object, without the members that are null."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise APIError(400, f"the request's body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise APIError(400, "the request's body must be a JSON object", code="invalid_json")
    return {key: value for key, value in body.items() if value is not None}


def chat(raw: bytes, model: str) -> TextRequest:
    """A request for /v1/chat/completions."""
    body = _checked(raw, fields.CHAT, model)
    wants = bool(body.get("logprobs"))
    if "top_logprobs" in body and not wants:
        raise APIError(400, "top_logprobs: needs logprobs: true", param="top_logprobs", code="invalid_value")
    if "max_completion_tokens" in body:
        body["max_tokens"] = body["max_completion_tokens"]
    tools, schema = _tools(body), _format(body)
    if tools is not None and schema is not None:
        raise APIError(400, "response_format: cannot be combined with tools", "response_format", "invalid_value")
    return TextRequest(
        messages=tuple(map(_message, body["messages"])),
        logprobs=int(body.get("top_logprobs", 0)) if wants else None,
        schema=schema,
        tools=tools,
        **_common(body),
    )


def completion(raw: bytes, model: str) -> TextRequest:
    """A request for /v1/completions."""
    body = _checked(raw, fields.COMPLETION, model)
    logprobs = body.get("logprobs")
    if logprobs is not None and body.get("echo"):
        raise APIError(400, "echo: cannot be combined with logprobs", "echo", "invalid_value")
    body.setdefault("max_tokens", _DEFAULT_TOKENS)
    return TextRequest(
        prompts=_prompts(body["prompt"]),
        logprobs=None if logprobs is None else int(logprobs),
        echo=bool(body.get("echo")),
        schema=_format(body),
        **_common(body),
    )


def embedding(raw: bytes, model: str) -> tuple[tuple[Prompt, ...], bool]:
    """(what to embed, whether as base64)."""
    body = _checked(raw, fields.EMBEDDING, model)
    return _prompts(body["input"]), body.get("encoding_format") == "base64"


def _checked(raw: bytes, schema: Schema, model: str) -> dict[str, Any]:
    body = parse(raw)
    for name in body:
        if name not in schema["properties"]:
            raise APIError(400, f"{name}: this server does not support it; leave it out", name, "unsupported_parameter")
    check(body, schema, "")
    if body.get("model", model) != model:
        raise no_model(body["model"], model)
    return body


def _common(body: dict[str, Any]) -> dict[str, Any]:
    if "stream_options" in body and not body.get("stream"):
        raise APIError(400, "stream_options: needs stream: true", "stream_options", "invalid_value")
    try:
        options = parse_options(body)
    except UsageError as error:
        name = str(error).partition(":")[0]
        raise APIError(400, str(error), name, "invalid_value") from None
    return {
        "options": options,
        "n": int(body.get("n", 1)),
        "stream": bool(body.get("stream")),
        "usage": bool(body.get("stream_options", {}).get("include_usage")),
    }


def _prompts(given: Any) -> tuple[Prompt, ...]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given[0], str):
        return tuple(given)
    lists = given if isinstance(given[0], list) else [given]
    return tuple(tuple(int(token) for token in tokens) for tokens in lists)


def _message(given: dict[str, Any]) -> dict[str, Any]:
    """A message as templates take it: content as one string, a developer's role as the system's."""
    message = {key: value for key, value in given.items() if value is not None}
    content = message.get("content", "")
    message["content"] = content if isinstance(content, str) else "".join(part["text"] for part in content)
    if "tool_calls" in message:
        message["tool_calls"] = [_read(call) for call in message["tool_calls"]]
    if message["role"] == "developer":
        message["role"] = "system"
    return message


def _read(call: dict[str, Any]) -> dict[str, Any]:
    """Templates write a call's arguments as JSON themselves."""
    function = call["function"]
    try:
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except (ValueError, RecursionError):
        return call


def _format(body: dict[str, Any]) -> Mapping[str, Any] | None:
    given = body.get("response_format", {"type": "text"})
    if given["type"] == "text":
        return None
    schema: Mapping[str, Any] = {"type": "object"}
    return schema if given["type"] == "json_object" else given["json_schema"]["schema"]


def _tools(body: dict[str, Any]) -> Tools | None:
    tools, choice = body.get("tools") or [], body.get("tool_choice", "auto")
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {"type": "object"} for tool in tools}
    if len(schemas) < len(tools):
        raise APIError(400, "tools: two functions have the same name", "tools", "invalid_value")
    if not tools and choice in ("auto", "none"):
        return None
    if choice == "none":
        return None
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        if name not in schemas:
            raise APIError(400, f"tool_choice: there is no function {name!r} in tools", "tool_choice", "invalid_value")
        return Tools(tuple(tools), {name: schemas[name]}, "required")
    if not tools:
        raise APIError(400, "tool_choice: there are no tools", "tool_choice", "invalid_value")
    return Tools(tuple(tools), schemas, choice)
