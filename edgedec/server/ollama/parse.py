"""Bodies of Ollama's requests to plain data, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.constraints.given import GivenConstraint
from edgedec.server.api import EmbedOptions, TextRequest, options_of, read_tools
from edgedec.server.bodies import checked
from edgedec.server.errors import APIError
from edgedec.server.ollama.fields import CHAT, EMBED, EMBEDDINGS, GENERATE, RENAMED, SHOW
from edgedec.server.schema import Schema
from edgedec.server.shaping import of_format

Json = dict[str, Any]


def generate(raw: bytes) -> Json:
    """The body of a request for /api/generate."""
    return _body(raw, GENERATE)


def chat(raw: bytes) -> Json:
    """The body of a request for /api/chat."""
    body = _body(raw, CHAT)
    for i, message in enumerate(body["messages"]):
        _refuse_images(message, f"messages[{i}].images")
    return body


def show(raw: bytes) -> str:
    """The model that /api/show is for."""
    body = checked(raw, SHOW)
    name = body.get("model") or body.get("name")
    if not name:
        raise APIError(400, "model: is missing", "model", "invalid_value")
    return model_name(str(name))


def embed(raw: bytes) -> tuple[TextRequest, EmbedOptions]:
    """The prompts of /api/embed, and how: texts that are too long are cut unless it says otherwise."""
    body = checked(raw, EMBED)
    given = body["input"]
    options = EmbedOptions(int(body.get("dimensions") or 0), truncate=body.get("truncate") is not False)
    return _to_embed(body, (given,) if isinstance(given, str) else tuple(given)), options


def embeddings(raw: bytes) -> TextRequest:
    """The prompt of /api/embeddings."""
    body = checked(raw, EMBEDDINGS)
    return _to_embed(body, (body["prompt"],))


def generate_request(body: Mapping[str, Any], templated: bool) -> TextRequest:
    """The text request of /api/generate. templated: the model has a chat template."""
    prompt, suffix, system = body.get("prompt", ""), body.get("suffix", ""), body.get("system", "")
    common: Json = _common(body)
    if body.get("raw") or suffix or not templated:
        text = f"{system}\n\n{prompt}" if system else prompt
        return TextRequest(prompts=(text,), suffix=suffix, **common)
    first = [{"role": "system", "content": system}] if system else []
    return TextRequest(messages=(*first, {"role": "user", "content": prompt}), **common)


def chat_request(body: Mapping[str, Any]) -> TextRequest:
    """The chat request of /api/chat."""
    tools = read_tools({"tools": [{**tool, "type": "function"} for tool in body.get("tools", [])]})
    return TextRequest(messages=tuple(map(_message, body["messages"])), tools=tools, **_common(body))


def model_name(given: str) -> str:
    """A model's name without the tag that all of ours have.

    >>> model_name("nano:latest")
    'nano'
    """
    return given.removesuffix(":latest")


def context_of(body: Mapping[str, Any]) -> int:
    """The context length that a request names; 0: none."""
    return int((body.get("options") or {}).get("num_ctx") or 0)


def _body(raw: bytes, schema: Schema) -> Json:
    body = checked(raw, schema)
    _refuse_images(body, "images")
    body["model"] = model_name(body["model"])
    return body


def _refuse_images(body: Mapping[str, Any], where: str) -> None:
    if body.get("images"):
        raise APIError(400, f"{where}: the models here read text only; leave images out", where, "invalid_value")


def _to_embed(body: Mapping[str, Any], prompts: tuple[str, ...]) -> TextRequest:
    return TextRequest({}, prompts=prompts, target=(model_name(body["model"]), None))


def _common(body: Mapping[str, Any]) -> Json:
    think = body.get("think")
    variables: Json = {} if think is None else {"enable_thinking": bool(think)}
    if isinstance(think, str):
        variables["reasoning_effort"] = think
    return {
        "options": _options(body.get("options") or {}),
        "target": (body["model"], None),
        "stream": bool(body.get("stream", True)),
        "constraint": _format(body.get("format", "")),
        "logprobs": int(body.get("top_logprobs", 0)) if body.get("logprobs") else None,
        "variables": variables,
        "before": tuple(map(int, body.get("context", ()))),
    }


def _format(given: str | Mapping[str, Any]) -> GivenConstraint | None:
    """The constraint of "json" or a schema; None for any text."""
    if not given:
        return None
    return of_format({"type": "json_object"} if given == "json" else {"type": "json_schema", "schema": given}, "format")


def _options(given: Mapping[str, Any]) -> Json:
    """Ollama's options as edgedec's; Ollama's defaults are not used: missing options have the model's defaults."""
    known = {name: value for name, value in given.items() if value is not None}
    most = known.get("num_predict", -1)
    ours = options_of({RENAMED.get(name, name): value for name, value in known.items()})
    return ours if most < 0 else {**ours, "max_tokens": int(most)}


def _message(given: Mapping[str, Any]) -> Json:
    """A message in the form for templates."""
    message = {"role": given["role"], "content": given.get("content") or ""}
    if given.get("tool_calls"):
        message["tool_calls"] = [_call(call["function"]) for call in given["tool_calls"]]
    if given.get("tool_name"):
        message["name"] = given["tool_name"]
    return message


def _call(function: Mapping[str, Any]) -> Json:
    return {
        "type": "function",
        "function": {"name": function["name"], "arguments": function.get("arguments") or {}},
    }
