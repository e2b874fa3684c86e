"""Bodies of requests of OpenAI's chat, completions and embeddings, and of vLLM's tokenize, to plain data, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgedec.constraints.given import GivenConstraint
from edgedec.decoding.config import parse_options
from edgedec.errors import UsageError
from edgedec.plugins import Words
from edgedec.server import fields
from edgedec.server.bodies import LARGE, MOST_DEPTH, checked, depth, weight
from edgedec.server.errors import APIError
from edgedec.server.searching import with_beams
from edgedec.server.shaping import of_format, shaping_of

# Default tokens of a completion, as OpenAI's.
_DEFAULT_TOKENS = 16
Prompt = str | tuple[int, ...]
# Members of a message that reach the template.
_KNOWN = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")


@dataclass(frozen=True)
class Tools:
    """The functions that the model may call, with the schemas of their arguments; `choice`: auto or required;
    `parallel`: whether it may call several in one turn."""

    described: tuple[Mapping[str, Any], ...]
    schemas: Mapping[str, Mapping[str, Any]]
    choice: str
    parallel: bool = False


@dataclass(frozen=True)
class TextRequest:
    """A chat (`messages`) or completions (`prompts`): its content, and the `options` of generation that it names.

    `target`: the model and the adapter that it names. `best_of`: how many texts are generated for each prompt, of
    which the n best are returned; 0: n. `logprobs`: how many likely tokens to report. `constraint`: the form of the
    text; None: any text. `usage`: a stream ends with the counts of tokens; `running_usage`: each chunk has those so
    far. `processors`, `fuse`: logits processors and fusions by name (None: the server's). `diffusion`: how a diffusion
    model fills its blocks; None: as the server says. `variables`: names for the chat template. `before`: tokens in
    front of the prompt.
    """

    options: Mapping[str, Any]
    messages: tuple[Mapping[str, Any], ...] = ()
    prompts: tuple[Prompt, ...] = ()
    target: tuple[str | None, str | None] = (None, None)
    n: int = 1
    best_of: int = 0
    logprobs: int | None = None
    echo: bool = False
    suffix: str = ""
    stream: bool = False
    usage: bool = False
    running_usage: bool = False
    constraint: GivenConstraint | None = None
    processors: Words = ()
    fuse: Words | None = None
    diffusion: str | None = None
    tools: Tools | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[int, ...] = ()

    @property
    def texts(self) -> int:
        """The number of texts that are generated for each prompt."""
        return self.best_of or self.n

    @property
    def size(self) -> int:
        """The weight of its prompts and functions, up to that of a large one."""
        described = self.tools.described if self.tools else ()
        return weight((self.messages, self.prompts, self.suffix, self.before, described), LARGE)


def chat(raw: bytes) -> TextRequest:
    """A request for /v1/chat/completions."""
    body = checked(raw, fields.CHAT)
    wants = bool(body.get("logprobs"))
    if "top_logprobs" in body and not wants:
        raise APIError(400, "top_logprobs: needs logprobs: true", param="top_logprobs", code="invalid_value")
    if "max_completion_tokens" in body:
        body["max_tokens"] = body["max_completion_tokens"]
    tools = read_tools(body)
    return TextRequest(
        messages=tuple(map(read_message, body["messages"])),
        logprobs=int(body.get("top_logprobs", 0)) if wants else None,
        tools=tools,
        variables=template_variables(body),
        **_common(body, tools),
    )


def completion(raw: bytes) -> TextRequest:
    """A request for /v1/completions."""
    body = checked(raw, fields.COMPLETION)
    logprobs, n, best_of = body.get("logprobs"), int(body.get("n", 1)), int(body.get("best_of", 0))
    body.setdefault("max_tokens", _DEFAULT_TOKENS)
    if best_of and best_of < n:
        raise APIError(400, f"best_of: {best_of} is below n, which is {n}", "best_of", "invalid_value")
    if best_of > n and body.get("stream"):
        raise APIError(400, "best_of: cannot be streamed; leave it or stream out", "best_of", "invalid_value")
    if body.get("suffix") and body.get("echo"):
        raise APIError(400, "suffix: cannot be combined with echo", "suffix", "invalid_value")
    return TextRequest(
        prompts=_prompts(body["prompt"]),
        best_of=0 if body.get("use_beam_search") else best_of,
        logprobs=None if logprobs is None else int(logprobs),
        echo=bool(body.get("echo")),
        suffix=body.get("suffix", ""),
        **_common(body),
    )


@dataclass(frozen=True)
class EmbedOptions:
    """dimensions: the first so many values, 0: all; prompt: the model's words in front by name, None: its usual ones;
    truncate: cut texts that are too long; packed: the answer is in base64."""

    dimensions: int = 0
    prompt: str | None = None
    truncate: bool = False
    packed: bool = False


def embedding(raw: bytes) -> tuple[TextRequest, EmbedOptions]:
    """The prompts to embed, and how."""
    body = checked(raw, fields.EMBEDDING)
    options = EmbedOptions(
        int(body.get("dimensions") or 0),
        body.get("prompt_name"),
        bool(body.get("truncate")),
        body.get("encoding_format") == "base64",
    )
    return TextRequest({}, prompts=_prompts(body["input"]), target=target_of(body)), options


def target_of(body: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The model and the adapter that a request names."""
    return body.get("model"), body.get("adapter")


def options_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The options of generation in a body; APIError 400 names an invalid one."""
    try:
        return parse_options(body)
    except UsageError as error:
        name = str(error).partition(":")[0]
        raise APIError(400, str(error), name, "invalid_value") from None


def read_message(given: Mapping[str, Any]) -> dict[str, Any]:
    """A message in the form for templates: the members that they know, content as one string, the role developer as
    system."""
    message = {key: given[key] for key in _KNOWN if given.get(key) is not None}
    message["content"] = text_of(message.get("content", ""))
    if "tool_calls" in message:
        message["tool_calls"] = [_read(call) for call in message["tool_calls"]]
    if message["role"] == "developer":
        message["role"] = "system"
    return message


def text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Content as one string."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", part.get("refusal", "")) for part in content)


def template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """The template variables of a request. Templates of thinking models use `enable_thinking`."""
    effort = body.get("reasoning_effort")
    variables = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return variables | dict(body.get("chat_template_kwargs", {}))


def read_tools(body: Mapping[str, Any]) -> Tools | None:
    """The functions that the model may call; None if there are none."""
    tools, choice = body.get("tools") or [], body.get("tool_choice", "auto")
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {"type": "object"} for tool in tools}
    if len(schemas) < len(tools):
        raise APIError(400, "tools: two functions have the same name", "tools", "invalid_value")
    if choice == "none" or (not tools and choice == "auto"):
        return None
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        if name not in schemas:
            raise APIError(400, f"tool_choice: there is no function {name!r} in tools", "tool_choice", "invalid_value")
        return Tools(tuple(tools), {name: schemas[name]}, "required")
    if not tools:
        raise APIError(400, "tool_choice: there are no tools", "tool_choice", "invalid_value")
    return Tools(tuple(tools), schemas, choice, bool(body.get("parallel_tool_calls", True)))


def _common(body: Mapping[str, Any], tools: Tools | None = None) -> dict[str, Any]:
    if "stream_options" in body and not body.get("stream"):
        raise APIError(400, "stream_options: needs stream: true", "stream_options", "invalid_value")
    wants = body.get("stream_options", {})
    return {
        **shaping_of(body, _format(body), tools.choice if tools else ""),
        "options": with_beams(body, options_of(body)),
        "target": target_of(body),
        "n": int(body.get("n", 1)),
        "stream": bool(body.get("stream")),
        "usage": bool(wants.get("include_usage")),
        "running_usage": bool(wants.get("include_usage") and wants.get("continuous_usage_stats")),
    }


def _prompts(given: str | Sequence[Any]) -> tuple[Prompt, ...]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given[0], str):
        return tuple(given)
    lists = given if isinstance(given[0], list) else [given]
    return tuple(tuple(int(token) for token in tokens) for tokens in lists)


def _read(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with its arguments as an object, because templates write the JSON themselves; arguments that are not
    JSON, as of a call that was cut, stay text."""
    function = {"name": call["function"]["name"], "arguments": call["function"].get("arguments") or "{}"}
    known = {"type": "function", **({"id": call["id"]} if call.get("id") else {})}
    try:
        arguments = json.loads(function["arguments"])
    except (TypeError, ValueError, RecursionError):
        return {**known, "function": function}
    return {**known, "function": function if depth(arguments) > MOST_DEPTH else {**function, "arguments": arguments}}


def _format(body: Mapping[str, Any]) -> GivenConstraint | None:
    form = body.get("response_format", {"type": "text"})
    return of_format({**form, **form.get("json_schema", {})}, "response_format")
