"""The parameters of every endpoint, as the JSON schemas that requests are held to and `/openapi.json` shows.

What stands here is done; everything else is refused by name. A null is as good as nothing, as OpenAI's clients have it.
"""

from __future__ import annotations

from typing import Any

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
_STOP = {
    "anyOf": [
        {"type": ["string", "null"], "minLength": 1, "maxLength": 1000},
        {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1, "maxLength": 1000}},
    ]
}
_BIAS = {"type": "number", "minimum": -100, "maximum": 100}

_WHO = {
    "model": _or_null("string"),
    # They change nothing here: names for a service's own books.
    "user": _or_null("string"),
    "safety_identifier": _or_null("string"),
    "prompt_cache_key": _or_null("string"),
    "metadata": _or_null("object"),
}
_SAMPLING = {
    "temperature": _or_null("number", minimum=0, maximum=2),
    "top_p": _or_null("number", exclusiveMinimum=0, maximum=1),
    "presence_penalty": _or_null("number", minimum=-2, maximum=2),
    "frequency_penalty": _or_null("number", minimum=-2, maximum=2),
    "seed": _or_null("integer", minimum=0, maximum=2**63 - 1),
    "logit_bias": _or_null("object", maxProperties=1024, additionalProperties=_BIAS),
    # Not OpenAI's: what other servers call these.
    "top_k": _or_null("integer", minimum=0, maximum=2**31 - 1),
    "min_p": _or_null("number", minimum=0, maximum=1),
    "typical_p": _or_null("number", exclusiveMinimum=0, maximum=1),
    "repetition_penalty": _or_null("number", minimum=0.01, maximum=100),
}
_COMMON = {
    **_WHO,
    **_SAMPLING,
    "n": _or_null("integer", minimum=1, maximum=MOST_CHOICES),
    "stop": _STOP,
    "ignore_eos": _or_null("boolean"),
    "stream": _or_null("boolean"),
    "stream_options": {
        "type": ["object", "null"],
        "properties": {"include_usage": _or_null("boolean"), "include_obfuscation": _or_null("boolean")},
        "additionalProperties": False,
    },
    "max_tokens": _or_null("integer", minimum=0, maximum=2**31 - 1),
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
