"""The parameters of /v1/responses as a JSON schema."""

from __future__ import annotations

from edgedec.server.fields import EFFORTS, GENERATION, NAME, REFUSED, SHAPING, WHO, closed, open_, or_null

_TEXT = {"type": "string"}
_PART = open_(("type", "text"), type={"type": "string", "enum": ["input_text", "output_text", "text"]}, text=_TEXT)
_REFUSAL = open_(("type", "refusal"), type={"type": "string", "enum": ["refusal"]}, refusal=_TEXT)
_CONTENT = {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [_PART, _REFUSAL]}}]}
_MESSAGE = open_(
    ("role", "content"),
    type={"type": "string", "enum": ["message"]},
    role={"type": "string", "enum": ["system", "developer", "user", "assistant"]},
    content=_CONTENT,
    **REFUSED,
)
_CALL = open_(
    ("type", "call_id", "name", "arguments"),
    type={"type": "string", "enum": ["function_call"]},
    call_id=_TEXT,
    name=_TEXT,
    arguments=_TEXT,
)
_RESULT = open_(
    ("type", "call_id", "output"),
    type={"type": "string", "enum": ["function_call_output"]},
    call_id=_TEXT,
    output={"anyOf": [_TEXT, {"type": "array", "items": _PART}]},
)
_THOUGHT = open_(("type",), type={"type": "string", "enum": ["reasoning"]})
REFERENCE = open_(("type", "id"), type={"type": "string", "enum": ["item_reference"]}, id=_TEXT)
_TOOL = closed(
    ("type", "name"),
    type={"type": "string", "enum": ["function"]},
    name=NAME,
    description=or_null("string"),
    parameters=or_null("object"),
    strict=or_null("boolean"),
)
_TOOL_CHOICE = {
    "anyOf": [
        {"type": ["string", "null"], "enum": ["none", "auto", "required", None]},
        closed(("type", "name"), type={"type": "string", "enum": ["function"]}, name=NAME),
    ]
}
_FORMAT = {
    "anyOf": [
        closed(("type",), type={"type": "string", "enum": ["text", "json_object"]}),
        closed(
            ("type", "schema"),
            type={"type": "string", "enum": ["json_schema"]},
            name={"type": "string"},
            description=or_null("string"),
            schema={"type": "object"},
            strict=or_null("boolean"),
        ),
        {"type": "null"},
    ]
}
_OPTIONS = {name: schema for name, schema in GENERATION.items() if name not in ("max_tokens", "logprobs")}
LOGPROBS = "message.output_text.logprobs"

RESPONSE = closed(
    (),
    **WHO,
    **_OPTIONS,
    **SHAPING,
    input={
        "anyOf": [
            _TEXT,
            {"type": "array", "maxItems": 10_000, "items": {"anyOf": [_MESSAGE, _CALL, _RESULT, _THOUGHT, REFERENCE]}},
        ]
    },
    instructions=or_null("string"),
    previous_response_id=or_null("string"),
    max_output_tokens=or_null("integer", minimum=1, maximum=2**31 - 1),
    top_logprobs=or_null("integer", minimum=0, maximum=20),
    include={"type": ["array", "null"], "items": {"type": "string", "enum": [LOGPROBS, "reasoning.encrypted_content"]}},
    tools={"type": ["array", "null"], "maxItems": 128, "items": _TOOL},
    tool_choice=_TOOL_CHOICE,
    parallel_tool_calls=or_null("boolean"),
    text={
        "type": ["object", "null"],
        "properties": {"format": _FORMAT, "verbosity": or_null("string")},
        "additionalProperties": False,
    },
    reasoning={
        "type": ["object", "null"],
        "properties": {
            "effort": {"type": ["string", "null"], "enum": [*EFFORTS, None]},
            "summary": or_null("string"),
            "generate_summary": or_null("string"),
        },
        "additionalProperties": False,
    },
    truncation={"type": ["string", "null"], "enum": ["disabled", None]},
    background={"type": ["boolean", "null"], "enum": [False, None]},
    stream=or_null("boolean"),
    stream_options={
        "type": ["object", "null"],
        "properties": {"include_obfuscation": or_null("boolean")},
        "additionalProperties": False,
    },
)
