"""The parameters of every endpoint, as the JSON schemas that requests are checked against and `/openapi.json` shows.

Unknown parameters are rejected by name; unknown members of a message are ignored, because clients send messages back
with what their packages added. A null is equivalent to a missing parameter. The options of generation are declared in
`edgedec.decoding.config`: each of them is a parameter here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec import fusion, processors
from edgedec.constraints import given
from edgedec.decoding.config import OPTIONS
from edgedec.plugins.about import schema as schema_of_family
from edgedec.search.choices import MOST

MOST_CHOICES = MOST


def or_null(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": [kind, "null"], **more}


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def open_(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object whose other members are ignored."""
    return {"type": "object", "properties": properties, "required": list(required)}


_TOKENS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_TEXTS = {"type": "array", "minItems": 1, "maxItems": MOST_CHOICES, "items": {"type": "string"}}
_MANY_TOKENS = {"type": "array", "minItems": 1, "maxItems": MOST_CHOICES, "items": _TOKENS}
_PROMPT = {"anyOf": [{"type": "string"}, _TEXTS, _TOKENS, _MANY_TOKENS]}
# As OpenAI allows.
_MOST_EMBEDDED = 2048
_EMBEDDED = {
    "anyOf": [
        {"type": "string"},
        {**_TEXTS, "maxItems": _MOST_EMBEDDED},
        _TOKENS,
        {**_MANY_TOKENS, "maxItems": _MOST_EMBEDDED},
    ]
}
WHO = {
    "model": or_null("string"),
    "adapter": or_null("string"),
    # Without effect here.
    "user": or_null("string"),
    "safety_identifier": or_null("string"),
    "prompt_cache_key": or_null("string"),
    "prompt_cache_retention": or_null("string"),
    "prompt_cache_options": or_null("object"),
    "service_tier": or_null("string"),
    "store": or_null("boolean"),
    "metadata": or_null("object"),
}
# Narrower than the options themselves: OpenAI's limits.
NARROWER: dict[str, dict[str, Any]] = {
    "temperature": {"maximum": 2},
    "repetition_penalty": {"minimum": 0.01, "maximum": 100},
    "logit_bias": {"additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
}


def nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, or null: OpenAI's clients send null for missing parameters."""
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


GENERATION = {name: nullable({**option.schema, **NARROWER.get(name, {})}) for name, option in OPTIONS.items()}
# Constraints by the names of their kinds and by vLLM's names; logits processors, fusions.
SHAPING: dict[str, Any] = {
    **{name: nullable(given.schema(kind)) for name, kind in given.fields().items()},
    given.STRUCTURED: nullable(given.structured_schema()),
    "processors": nullable(schema_of_family(processors.FAMILY)),
    "fuse": nullable(schema_of_family(fusion.FAMILY)),
    # vLLM's names of a search.
    "use_beam_search": or_null("boolean"),
    "length_penalty": or_null("number", minimum=-10, maximum=10),
    "diffusion": {"type": ["string", "null"], "description": "How a diffusion model fills its blocks, as --diffusion."},
}
_COMMON = {
    **WHO,
    **GENERATION,
    **SHAPING,
    "n": or_null("integer", minimum=1, maximum=MOST_CHOICES),
    "stream": or_null("boolean"),
    "stream_options": {
        "type": ["object", "null"],
        "properties": {
            "include_usage": or_null("boolean"),
            "continuous_usage_stats": or_null("boolean"),
            "include_obfuscation": or_null("boolean"),
        },
        "additionalProperties": False,
    },
}

_PART = open_(("type", "text"), type={"type": "string", "enum": ["text"]}, text={"type": "string"})
_REFUSAL = open_(("type", "refusal"), type={"type": "string", "enum": ["refusal"]}, refusal={"type": "string"})
_CALL = open_(
    ("function",),
    id=or_null("string"),
    type={"type": ["string", "null"], "enum": ["function", None]},
    function=open_(("name",), name={"type": "string"}, arguments={"type": ["string", "object", "null"]}),
)
# Members that would change the answer if they were supported.
REFUSED = {name: {"type": "null"} for name in ("audio", "images", "function_call")} | {
    name: {"type": ["boolean", "null"], "enum": [False, None]} for name in ("prefix", "partial")
}
_MESSAGE = open_(
    ("role",),
    role={"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"]},
    content={"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"anyOf": [_PART, _REFUSAL]}}]},
    name=or_null("string"),
    tool_calls={"type": ["array", "null"], "items": _CALL},
    tool_call_id=or_null("string"),
    reasoning_content=or_null("string"),
    **REFUSED,
)
NAME = {"type": "string", "minLength": 1, "maxLength": 64}
_FUNCTION = closed(
    ("name",),
    name=NAME,
    description=or_null("string"),
    parameters=or_null("object"),
    strict=or_null("boolean"),
)
_KIND = {"type": "string", "enum": ["function"]}
_TOOL = closed(("type", "function"), type=_KIND, function=_FUNCTION)
_TOOL_CHOICE = {
    "anyOf": [
        {"type": ["string", "null"], "enum": ["none", "auto", "required", None]},
        closed(("type", "function"), type=_KIND, function=closed(("name",), name=NAME)),
    ]
}
_FORMAT = {
    "anyOf": [
        closed(("type",), type={"type": "string", "enum": ["text", "json_object"]}),
        closed(
            ("type", "json_schema"),
            type={"type": "string", "enum": ["json_schema"]},
            json_schema=closed(
                ("schema",),
                name={"type": "string"},
                description=or_null("string"),
                schema={"type": "object"},
                strict=or_null("boolean"),
            ),
        ),
        {"type": "null"},
    ]
}

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_TOOLS: dict[str, Any] = {"type": ["array", "null"], "maxItems": 128, "items": _TOOL}
CHAT = closed(
    ("messages",),
    **_COMMON,
    messages={"type": "array", "minItems": 1, "maxItems": 10_000, "items": _MESSAGE},
    max_completion_tokens=or_null("integer", minimum=0, maximum=2**31 - 1),
    logprobs=or_null("boolean"),
    top_logprobs=or_null("integer", minimum=0, maximum=20),
    response_format=_FORMAT,
    tools={"type": ["array", "null"], "maxItems": 128, "items": _TOOL},
    tool_choice=_TOOL_CHOICE,
    parallel_tool_calls=or_null("boolean"),
    reasoning_effort={"type": ["string", "null"], "enum": [*EFFORTS, None]},
    chat_template_kwargs=or_null("object"),
)
COMPLETION = closed(
    ("prompt",),
    **_COMMON,
    prompt=_PROMPT,
    suffix=or_null("string"),
    best_of=or_null("integer", minimum=1, maximum=MOST_CHOICES),
    echo=or_null("boolean"),
    logprobs=or_null("integer", minimum=0, maximum=20),
    response_format=_FORMAT,
)
EMBEDDING = closed(
    ("input",),
    **WHO,
    input=_EMBEDDED,
    dimensions=or_null("integer", minimum=1),
    prompt_name=or_null("string"),
    truncate=or_null("boolean"),
    encoding_format={"type": ["string", "null"], "enum": ["float", "base64", None]},
)
TOKENIZE = closed(
    (),
    **WHO,
    prompt=or_null("string"),
    messages={"type": ["array", "null"], "minItems": 1, "maxItems": 10_000, "items": _MESSAGE},
    tools=_TOOLS,
    chat_template_kwargs=or_null("object"),
    add_special_tokens=or_null("boolean"),
    add_generation_prompt=or_null("boolean"),
    return_token_strs=or_null("boolean"),
)
DETOKENIZE = closed(("tokens",), **WHO, tokens={**_TOKENS, "minItems": 0})
