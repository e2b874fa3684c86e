"""The parameters of Ollama's endpoints as JSON schemas."""

from __future__ import annotations

from typing import Any

from edgedec.decoding.config import OPTIONS as OURS
from edgedec.server.fields import REFUSED, closed, nullable, open_, or_null

_TOKENS = {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_IMAGES = {"type": ["array", "null"], "items": {"type": "string"}}
_KEEP = {"type": ["string", "number", "null"]}
# Options of model loading, which are fixed here when the server starts: accepted without effect.
_SETTLED = (
    *("num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa", "low_vram"),
    *("f16_kv", "logits_all"),
)
# Methods that are not here, with the value that turns each off.
_OFF: dict[str, float] = {"tfs_z": 1}
# Ollama's names of our options.
RENAMED = {"repeat_penalty": "repetition_penalty"}
_SAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "seed", "stop"),
    *("repeat_last_n", "mirostat", "mirostat_tau", "mirostat_eta"),
)
OPTIONS = {
    "type": ["object", "null"],
    "properties": {
        **{name: nullable(OURS[name].schema) for name in _SAME},
        "repeat_penalty": or_null("number", minimum=0.01, maximum=100),
        "num_predict": or_null("integer", minimum=-2, maximum=2**31 - 1),
        "num_ctx": or_null("integer", minimum=1, maximum=2**31 - 1),
        **{name: {"type": ["integer", "boolean", "null"]} for name in _SETTLED},
        **{name: {"type": ["number", "null"], "enum": [value, None]} for name, value in _OFF.items()},
    },
    # Ollama's package sends all that it knows, most of them null.
    "additionalProperties": {"type": "null"},
}
_FORMAT = {"anyOf": [{"type": ["string", "null"], "enum": ["", "json", None]}, {"type": "object"}]}
_THINK = {"anyOf": [{"type": ["boolean", "null"]}, {"type": "string", "enum": ["low", "medium", "high"]}]}
_CALL = open_(("function",), function=open_(("name",), name={"type": "string"}, arguments=or_null("object")))
_MESSAGE = open_(
    ("role",),
    role={"type": "string", "enum": ["system", "user", "assistant", "tool"]},
    content=or_null("string"),
    tool_calls={"type": ["array", "null"], "items": _CALL},
    tool_name=or_null("string"),
    **{**REFUSED, "images": _IMAGES},
)
_TOOL = closed(
    ("function",),
    type=or_null("string"),
    function=closed(
        ("name",),
        name={"type": "string", "minLength": 1, "maxLength": 64},
        description=or_null("string"),
        parameters=or_null("object"),
    ),
)
_COMMON: dict[str, Any] = {
    "model": {"type": "string", "minLength": 1},
    "format": _FORMAT,
    "options": OPTIONS,
    "stream": or_null("boolean"),
    "keep_alive": _KEEP,
    "think": _THINK,
    "logprobs": or_null("boolean"),
    "top_logprobs": or_null("integer", minimum=0, maximum=20),
    "truncate": or_null("boolean"),
    "shift": or_null("boolean"),
}
GENERATE = closed(
    ("model",),
    **_COMMON,
    prompt=or_null("string"),
    suffix=or_null("string"),
    system=or_null("string"),
    images=_IMAGES,
    context=_TOKENS,
    raw=or_null("boolean"),
)
CHAT = closed(
    ("model", "messages"),
    **_COMMON,
    messages={"type": "array", "maxItems": 10_000, "items": _MESSAGE},
    tools={"type": ["array", "null"], "maxItems": 128, "items": _TOOL},
)
EMBED = closed(
    ("model", "input"),
    model=_COMMON["model"],
    input={"anyOf": [{"type": "string"}, {"type": "array", "maxItems": 128, "items": {"type": "string"}}]},
    truncate=or_null("boolean"),
    dimensions=or_null("integer", minimum=1),
    options=OPTIONS,
    keep_alive=_KEEP,
)
EMBEDDINGS = closed(
    ("model", "prompt"), model=_COMMON["model"], prompt={"type": "string"}, options=OPTIONS, keep_alive=_KEEP
)
SHOW = closed((), model=or_null("string"), name=or_null("string"), verbose=or_null("boolean"))
