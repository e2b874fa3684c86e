"""OpenAI's batch files: a line names a method, a URL and a body; its answer is a response to that request.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": […], …}}
{"id": …, "custom_id": "a", "response": {"status_code": 200, "request_id": …, "body": {…}}, "error": null}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from edgedec.errors import EdgedecError, UsageError
from edgedec.offline.asking import SAMPLING, Asked, Out, Result, messages

if TYPE_CHECKING:
    from edgedec.offline.asking import Asker

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_FINISH = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
_OWN = ("ignore_eos", "grammar", "regex")
_READ = {*SAMPLING, *_OWN, "max_tokens", "stop", "response_format"}
# What changes nothing here.
_PASSED = {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# What may be said as long as it asks for nothing.
_IDLE: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "logprobs": (False,),
    "echo": (False,),
    "tools": ([],),
    "tool_choice": ("none",),
    "suffix": ("",),
}


def is_line(data: Mapping[str, Any]) -> bool:
    return "custom_id" in data and "body" in data


def ask(asker: Asker, number: int, data: Mapping[str, Any]) -> Asked:
    """What a line asks for; anything wrong with it becomes a response with status 400."""
    chat, body = data.get("url") == CHAT, data["body"]
    write = _writer(asker, number, data)
    try:
        if data.get("method", "POST") != "POST" or data.get("url") not in (CHAT, COMPLETIONS):
            raise UsageError(f"method and url: must be POST and {CHAT} or {COMPLETIONS}")
        if not isinstance(body, dict):
            raise UsageError("body: must be an object")
        body = {name: value for name, value in body.items() if value is not None}
        options = _options(body, chat)
        ids = asker.model.chat_ids(messages(body.get("messages"))) if chat else asker.prompt(body.get("prompt"))
        return asker.asked(number, write, ids, options)
    except EdgedecError as wrong:
        return Asked(write, error=str(wrong))


def _options(body: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """A row's options of a request's; what cannot be done is refused by name."""
    most = {"max_tokens", "max_completion_tokens"} if chat else {"max_tokens"}
    for name, value in body.items():
        if name in _IDLE:
            if not any(value is idle or (type(value) is type(idle) and value == idle) for idle in _IDLE[name]):
                raise UsageError(f"{name}: is not supported in a batch")
        elif name not in _READ | _PASSED | most | {"messages" if chat else "prompt"}:
            raise UsageError(f"{name}: is not supported in a batch")
    options = {name: body[name] for name in (*SAMPLING, *_OWN, "stop", *sorted(most)) if name in body}
    if "max_completion_tokens" in options:
        options["max_tokens"] = options.pop("max_completion_tokens")
    form = body.get("response_format", {"type": "text"})
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "json_object":
        options["json_schema"] = '{"type": "object"}'
    elif kind == "json_schema":
        options["json_schema"] = _schema(form)
    elif kind != "text":
        raise UsageError("response_format: its type must be text, json_object or json_schema")
    return options


def _schema(form: Mapping[str, Any]) -> str:
    inner = form.get("json_schema")
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise UsageError("response_format: json_schema needs a schema, an object")
    return json.dumps(inner["schema"])


def _writer(asker: Asker, number: int, data: Mapping[str, Any]) -> Callable[[Result], Out]:
    name = blake2b(f"{asker.job} {number}".encode(), digest_size=12).hexdigest()

    def write(result: Result) -> Out:
        body = _refusal(result.error) if result.error else _answer(asker, name, data["url"] == CHAT, result)
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


def _answer(asker: Asker, name: str, chat: bool, result: Result) -> Out:
    finish = _FINISH.get(result.finish, "stop")
    choice: Out = {"index": 0}
    if chat:
        choice["message"] = {"role": "assistant", "content": result.text, "refusal": None}
    else:
        choice["text"] = result.text
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{name}",
        "object": "chat.completion" if chat else "text_completion",
        "created": asker.created,
        "model": asker.model.bundle.manifest.name,
        "choices": [{**choice, "logprobs": None, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": result.prompt,
            "completion_tokens": result.generated,
            "total_tokens": result.prompt + result.generated,
        },
    }
