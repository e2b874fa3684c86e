"""Requests as they come to plain data: checked, with nothing of HTTP left in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.server import fields
from edgedec.server.problems import Problem, no_model
from edgedec.server.schema import Schema, check

# As many as a completion of OpenAI's has, if nothing is said.
_FEW = 16
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
)
Prompt = str | tuple[int, ...]


@dataclass(frozen=True)
class Tools:
    """What may be called: `names` of functions with the schemas of their arguments; `choice`: auto or required."""

    described: tuple[Mapping[str, Any], ...]
    schemas: Mapping[str, Mapping[str, Any]]
    choice: str


@dataclass(frozen=True)
class Asked:
    """A chat (`messages`) or completions (`prompts`), and how to generate.

    `max_tokens` None: as many as there is room for. `schema`: of the text; None: any text.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    prompts: tuple[Prompt, ...] = ()
    n: int = 1
    max_tokens: int | None = None
    sampling: tuple[tuple[str, Any], ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
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
        raise Problem(400, f"the request's body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise Problem(400, "the request's body must be a JSON object", code="invalid_json")
    return {key: value for key, value in body.items() if value is not None}


def chat(raw: bytes, model: str) -> Asked:
    body = _checked(raw, fields.CHAT, model)
    wants = bool(body.get("logprobs"))
    if "top_logprobs" in body and not wants:
        raise Problem(400, "top_logprobs: needs logprobs: true", param="top_logprobs", code="invalid_value")
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    tools, schema = _tools(body), _format(body)
    if tools is not None and schema is not None:
        raise Problem(400, "response_format: cannot be had together with tools", "response_format", "invalid_value")
    return Asked(
        messages=tuple(map(_message, body["messages"])),
        max_tokens=None if most is None else int(most),
        logprobs=int(body.get("top_logprobs", 0)) if wants else None,
        schema=schema,
        tools=tools,
        **_common(body),
    )


def completion(raw: bytes, model: str) -> Asked:
    body = _checked(raw, fields.COMPLETION, model)
    logprobs = body.get("logprobs")
    if logprobs is not None and body.get("echo"):
        raise Problem(400, "echo: cannot be had together with logprobs", "echo", "invalid_value")
    return Asked(
        prompts=_prompts(body["prompt"]),
        max_tokens=int(body.get("max_tokens", _FEW)),
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
            raise Problem(400, f"{name}: this server does not support it; leave it out", name, "unsupported_parameter")
    check(body, schema, "")
    if body.get("model", model) != model:
        raise no_model(body["model"], model)
    return body


def _common(body: dict[str, Any]) -> dict[str, Any]:
    stop = body.get("stop", ())
    if "stream_options" in body and not body.get("stream"):
        raise Problem(400, "stream_options: needs stream: true", "stream_options", "invalid_value")
    return {
        "n": int(body.get("n", 1)),
        "sampling": tuple((name, _setting(name, body[name])) for name in _SAMPLING if name in body),
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
        "ignore_eos": bool(body.get("ignore_eos")),
        "stream": bool(body.get("stream")),
        "usage": bool(body.get("stream_options", {}).get("include_usage")),
    }


def _setting(name: str, value: Any) -> Any:
    if name in ("top_k", "seed"):
        return int(value)
    if name != "logit_bias":
        return float(value)
    try:
        # OpenAI's -100 and 100: "ban or exclusive selection".
        return tuple((int(token), float(bias)) for token, bias in value.items())
    except ValueError:
        raise Problem(400, "logit_bias: its keys must be token ids", "logit_bias", "invalid_value") from None


def _prompts(given: Any) -> tuple[Prompt, ...]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given[0], str):
        return tuple(given)
    lists = given if isinstance(given[0], list) else [given]
    return tuple(tuple(int(token) for token in tokens) for tokens in lists)


def _message(given: dict[str, Any]) -> dict[str, Any]:
    """As templates know it: content one string, the role of a developer the system's."""
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
        raise Problem(400, "tools: two functions have the same name", "tools", "invalid_value")
    if not tools and choice in ("auto", "none"):
        return None
    if choice == "none":
        return None
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        if name not in schemas:
            raise Problem(400, f"tool_choice: there is no function {name!r} in tools", "tool_choice", "invalid_value")
        return Tools(tuple(tools), {name: schemas[name]}, "required")
    if not tools:
        raise Problem(400, "tool_choice: there are no tools", "tool_choice", "invalid_value")
    return Tools(tuple(tools), schemas, choice)
