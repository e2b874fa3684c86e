"""OpenAI's batch files: a line names a method, a URL and a body; its answer is a response to that request.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": […], …}}
{"id": …, "custom_id": "a", "response": {"status_code": 200, "request_id": …, "body": {…}}, "error": null}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from edgedec.constraints import given
from edgedec.constraints.given import GivenConstraint
from edgedec.decoding.config import OPTIONS
from edgedec.errors import UsageError
from edgedec.offline.row import Out, RowResult
from edgedec.search.choices import CHOICES

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_FINISH = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
_READ = {*OPTIONS, *CHOICES, *given.fields(), given.STRUCTURED, "processors", "fuse", "diffusion", "response_format"}
# Fields without effect here.
_PASSED = {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# Fields that are accepted with values that change nothing.
_IDLE: dict[str, tuple[object, ...]] = {
    "stream": (False,),
    "logprobs": (False,),
    "echo": (False,),
    "tools": ([],),
    "tool_choice": ("none",),
    "suffix": ("",),
}


def is_line(data: Mapping[str, Any]) -> bool:
    return "custom_id" in data and "body" in data


def body_of(data: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """(whether it is a chat, the body without nulls) of a line; UsageError for anything else."""
    if data.get("method", "POST") != "POST" or data.get("url") not in (CHAT, COMPLETIONS):
        raise UsageError(f"method and url: must be POST and {CHAT} or {COMPLETIONS}")
    if not isinstance(data["body"], dict):
        raise UsageError("body: must be an object")
    return data["url"] == CHAT, {name: value for name, value in data["body"].items() if value is not None}


def options(body: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """The options of a row, by name; UsageError names what is not supported."""
    most = {"max_tokens", "max_completion_tokens"} if chat else {"max_tokens"}
    for name, value in body.items():
        if name in _IDLE:
            if not any(value is idle or (type(value) is type(idle) and value == idle) for idle in _IDLE[name]):
                raise UsageError(f"{name}: is not supported in a batch")
        elif name not in _READ | _PASSED | most | {"messages" if chat else "prompt"}:
            raise UsageError(f"{name}: is not supported in a batch")
    own = ("processors", "fuse", "diffusion")
    found = {name: body[name] for name in (*OPTIONS, *CHOICES, *own, *sorted(most)) if name in body}
    if "max_completion_tokens" in found:
        found["max_tokens"] = found.pop("max_completion_tokens")
    return found


def constraint(body: Mapping[str, Any]) -> GivenConstraint | None:
    """The constraint of a line; the product of several; UsageError if it is invalid."""
    inner = body.get(given.STRUCTURED, {})
    if not isinstance(inner, dict) or not set(inner) <= set(given.guided_kinds()):
        raise UsageError(f"{given.STRUCTURED}: must be an object of {', '.join(given.guided_kinds())}")
    return given.joined([one for one in (_format(body), given.read(body)) if one is not None])


def _format(body: Mapping[str, Any]) -> GivenConstraint | None:
    """The constraint that `response_format` names."""
    form = body.get("response_format", {"type": "text"})
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return GivenConstraint("json_object", "", "response_format")
    if kind == "json_schema":
        return GivenConstraint("json_schema", _schema(form), "response_format")
    raise UsageError("response_format: its type must be text, json_object or json_schema")


def _schema(form: Mapping[str, Any]) -> str:
    inner = form.get("json_schema")
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise UsageError("response_format: json_schema needs a schema, an object")
    return json.dumps(inner["schema"])


def writer(number: int, data: Mapping[str, Any], model: str, created: int, job: str) -> Callable[[RowResult], Out]:
    """A function that writes the response of a line; created, job: the time and the name of the batch."""
    name = blake2b(f"{job} {number}".encode(), digest_size=12).hexdigest()

    def write(result: RowResult) -> Out:
        if result.error:
            body = _refusal(result.error)
        else:
            body = {**_answer(name, data["url"] == CHAT, result), "created": created, "model": model}
        response = {"status_code": 400 if result.error else 200, "request_id": f"req_{name}", "body": body}
        return {"id": f"batch_req_{name}", "custom_id": data["custom_id"], "response": response, "error": None}

    return write


def _refusal(message: str) -> Out:
    param = message.partition(":")[0]
    return {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": param if param.isidentifier() else None,
            "code": None,
        }
    }


def _answer(name: str, chat: bool, result: RowResult) -> Out:
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{name}",
        "object": "chat.completion" if chat else "text_completion",
        "choices": [_choice(index, chat, one) for index, one in enumerate(result.texts)],
        "usage": {
            "prompt_tokens": result.prompt,
            "completion_tokens": result.written,
            "total_tokens": result.prompt + result.written,
        },
    }


def _choice(index: int, chat: bool, text: RowResult) -> Out:
    finish = {"logprobs": None, "finish_reason": _FINISH.get(text.finish, "stop")}
    if chat:
        return {"index": index, "message": {"role": "assistant", "content": text.text, "refusal": None}, **finish}
    return {"index": index, "text": text.text, **finish}
