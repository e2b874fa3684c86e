"""The parameters of every endpoint, as the JSON schemas that requests are checked against and `/openapi.json` shows.

Everything else is refused by name. A null means the same as leaving the parameter out. How to generate is declared in
`edgedec.generation`: each option there is a parameter here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.generation import OPTIONS

MOST_CHOICES = 128


def _or_null(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": [kind, "null"], **more}


def _closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_TOKENS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_TEXTS = {"type": "array", "minItems": 1, "maxItems": MOST_CHOICES, "items": {"type": "string"}}
_MANY_TOKENS = {"type": "array", "minItems": 1, "maxItems": MOST_CHOICES, "items": _TOKENS}
_PROMPT = {"anyOf": [{"type": "string"}, _TEXTS, _TOKENS, _MANY_TOKENS]}
_WHO = {
    "model": _or_null("string"),
    # Without effect here.
    "user": _or_null("string"),
    "safety_identifier": _or_null("string"),
    "prompt_cache_key": _or_null("string"),
    "metadata": _or_null("object"),
}
# Narrower than the options themselves: OpenAI's limits.
_NARROWER: dict[str, dict[str, Any]] = {
    "temperature": {"maximum": 2},
    "repetition_penalty": {"minimum": 0.01, "maximum": 100},
    "logit_bias": {"additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
}


def _nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, or null: OpenAI's clients send null for what is left out."""
    if "anyOf" in schema:
        return {"anyOf": [{"type": "null"}, *schema["anyOf"]]}
    return {**schema, "type": [schema["type"], "null"]}


_COMMON = {
    **_WHO,
    **{name: _nullable({**option.schema, **_NARROWER.get(name, {})}) for name, option in OPTIONS.items()},
    "n": _or_null("integer", minimum=1, maximum=MOST_CHOICES),
    "stream": _or_null("boolean"),
    "stream_options": {
        "type": ["object", "null"],
        "properties": {"include_usage": _or_null("boolean"), "include_obfuscation": _or_null("boolean")},
        "additionalProperties": False,
    },
}

_PART = _closed(("type", "text"), type={"type": "string", "enum": ["text"]}, text={"type": "string"})
_CALL = _closed(
    ("function",),
    id={"type": "string"},
    type={"type": "string", "enum": ["function"]},
    function=_closed(("name", "arguments"), name={"type": "string"}, arguments={"type": "string"}),
)
_CALL["properties"]["index"] = {"type": "integer"}
_MESSAGE = _closed(
    ("role",),
    role={"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"]},
    content={"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": _PART}]},
    name=_or_null("string"),
    tool_calls={"type": ["array", "null"], "items": _CALL},
    tool_call_id=_or_null("string"),
    refusal=_or_null("string"),
)
_NAME = {"type": "string", "minLength": 1, "maxLength": 64}
_FUNCTION = _closed(
    ("name",),
    name=_NAME,
    description=_or_null("string"),
    parameters=_or_null("object"),
    strict=_or_null("boolean"),
)
_KIND = {"type": "string", "enum": ["function"]}
_TOOL = _closed(("type", "function"), type=_KIND, function=_FUNCTION)
_TOOL_CHOICE = {
    "anyOf": [
        {"type": ["string", "null"], "enum": ["none", "auto", "required", None]},
        _closed(("type", "function"), type=_KIND, function=_closed(("name",), name=_NAME)),
    ]
}
_FORMAT = {
    "anyOf": [
        _closed(("type",), type={"type": "string", "enum": ["text", "json_object"]}),
        _closed(
            ("type", "json_schema"),
            type={"type": "string", "enum": ["json_schema"]},
            json_schema=_closed(
                ("schema",),
                name={"type": "string"},
                description=_or_null("string"),
                schema={"type": "object"},
                strict=_or_null("boolean"),
            ),
        ),
        {"type": "null"},
    ]
}

CHAT = _closed(
    ("messages",),
    **_COMMON,
    messages={"type": "array", "minItems": 1, "maxItems": 10_000, "items": _MESSAGE},
    max_completion_tokens=_or_null("integer", minimum=0, maximum=2**31 - 1),
    logprobs=_or_null("boolean"),
    top_logprobs=_or_null("integer", minimum=0, maximum=20),
    response_format=_FORMAT,
    tools={"type": ["array", "null"], "maxItems": 128, "items": _TOOL},
    tool_choice=_TOOL_CHOICE,
    parallel_tool_calls=_or_null("boolean"),
)
COMPLETION = _closed(
    ("prompt",),
    **_COMMON,
    prompt=_PROMPT,
    echo=_or_null("boolean"),
    logprobs=_or_null("integer", minimum=0, maximum=20),
    response_format=_FORMAT,
)
EMBEDDING = _closed(
    ("input",),
    **_WHO,
    input=_PROMPT,
    encoding_format={"type": ["string", "null"], "enum": ["float", "base64", None]},
)
