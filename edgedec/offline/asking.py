"""A row -> what to generate, and how the result is written under the row's own columns."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from edgedec.errors import EdgedecError, UsageError
from edgedec.sampling import Sampling
from edgedec.text.tokenizer import StopStrings, one_line

if TYPE_CHECKING:
    from edgedec.constraints import Constraint
    from edgedec.model import Model

SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
)
CONSTRAINTS = ("json_schema", "grammar", "regex")
_OTHERS = ("max_tokens", "stop", "ignore_eos", *CONSTRAINTS)
RESULTS = ("row", "text", "finish_reason", "prompt_tokens", "generated_tokens", "seed", "error")
_WHOLE = ("top_k", "seed", "max_tokens")
_KEPT = 16

Out = dict[str, Any]


class Result(NamedTuple):
    """What became of a row; `error` if nothing did."""

    text: str = ""
    finish: str = ""
    prompt: int = 0
    generated: int = 0
    seed: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Asked:
    """What to generate for a row, and `write`, which makes its place in the output of the result.

    `error`: why nothing can be generated. `must`: kind and text of a constraint.
    """

    write: Callable[[Result], Out]
    ids: Sequence[int] = ()
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    must: tuple[str, str] | None = None
    error: str = ""


@dataclass(frozen=True)
class Asking:
    """What holds for rows that say nothing else. `seed`: row i draws with seed + i; `column` holds the prompt."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    must: tuple[str, str] | None = None
    seed: int = 0
    column: str = "prompt"


class Asker:
    """Reads rows for one model."""

    def __init__(self, model: Model, asking: Asking, created: int = 0, job: str = "") -> None:
        """created, job: what OpenAI's format tells of when and under which name this was begun."""
        self.model, self.asking, self.created, self.job = model, asking, created, job
        self._compiled: OrderedDict[tuple[str, str], Constraint] = OrderedDict()

    def ask(self, number: int, data: Mapping[str, Any], error: str = "") -> Asked:
        """What a row asks for; anything wrong with it is its `error`."""
        from edgedec.offline import openai

        if not error and openai.is_line(data):
            return openai.ask(self, number, data)
        write = _writer(number, data, self.asking.column)
        if error:
            return Asked(write, error=error)
        try:
            return self.asked(number, write, self._ids(data), data)
        except EdgedecError as wrong:
            return Asked(write, error=str(wrong))

    def asked(self, number: int, write: Callable[[Result], Out], ids: Sequence[int], data: Mapping[str, Any]) -> Asked:
        """The options in `data`, over what holds otherwise. Raises what is wrong with them."""
        asking = self.asking
        given = {name: _value(name, data[name]) for name in (*SAMPLING, *_OTHERS) if name in data}
        sampling = replace(asking.sampling, **{name: given[name] for name in SAMPLING if name in given})
        if sampling.temperature > 0 and "seed" not in given:
            sampling = replace(sampling, seed=(asking.seed + number) % 2**32)
        musts = [(name, given[name]) for name in CONSTRAINTS if name in given]
        if len(musts) > 1:
            raise UsageError(f"{' and '.join(name for name, _ in musts)}: give one of them")
        most = given.get("max_tokens", asking.max_tokens)
        if most is not None and most < 0:
            raise UsageError(f"max_tokens {most}: must be 0 or more")
        stop = given.get("stop", asking.stop)
        StopStrings(stop)
        return Asked(
            write,
            ids,
            sampling,
            most,
            stop,
            given.get("ignore_eos", asking.ignore_eos),
            musts[0] if musts else asking.must,
        )

    def constraint(self, must: tuple[str, str]) -> Constraint:
        """A constraint of its own for one text; compiled once for many."""
        from edgedec import constraints

        if must not in self._compiled:
            self._compiled[must] = getattr(constraints, must[0])(self.model, must[1])
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(must)
        return self._compiled[must].fork()

    def _ids(self, data: Mapping[str, Any]) -> Sequence[int]:
        column = self.asking.column
        if "messages" in data:
            if column in data:
                raise UsageError(f"{column} and messages: give one of them")
            return self.model.chat_ids(messages(_parsed("messages", data["messages"])))
        if column not in data:
            raise UsageError(f"no prompt: needs a column {column!r} or 'messages'")
        return self.prompt(data[column])

    def prompt(self, prompt: object) -> Sequence[int]:
        """Text, or its tokens."""
        if isinstance(prompt, str):
            return self.model.tokenizer.encode(prompt)
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            return prompt
        raise UsageError("prompt: must be text or a list of tokens")


def messages(given: object) -> list[dict[str, object]]:
    """Messages for a chat template; content in parts of text is joined."""
    if not isinstance(given, list) or not given or not all(isinstance(message, dict) for message in given):
        raise UsageError('messages: must be a list of {"role": …, "content": …}')
    found = []
    for message in given:
        content = message.get("content")
        if isinstance(content, list):
            parts = [part if isinstance(part, dict) else {} for part in content]
            if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
                raise UsageError("messages: of the parts of a content only text can be read")
            content = "".join(part["text"] for part in parts)
        if not isinstance(message.get("role"), str) or not isinstance(content, str):
            raise UsageError("messages: each needs a role and a content, both text")
        found.append({**message, "content": content})
    return found


def _writer(number: int, data: Mapping[str, Any], column: str) -> Callable[[Result], Out]:
    """The row's number, its columns that mean nothing here, and the result."""
    known = {*SAMPLING, *_OTHERS, column, "messages"}
    kept: Out = {}
    for name, value in data.items():
        if name not in known:
            while name in RESULTS or name in kept:
                name = f"input_{name}"
            kept[name] = value

    def write(result: Result) -> Out:
        if result.error:
            return {"row": number, **kept, "error": result.error}
        out = {"row": number, **kept, "text": result.text, "finish_reason": result.finish}
        out |= {"prompt_tokens": result.prompt, "generated_tokens": result.generated}
        return out if result.seed is None else {**out, "seed": result.seed}

    return write


def _value(name: str, value: Any) -> Any:
    """An option's value; a CSV has text for all."""
    if name in CONSTRAINTS:
        return json.dumps(value) if name == "json_schema" and isinstance(value, dict | bool) else _text(name, value)
    if name == "stop":
        found = _parsed(name, value) if isinstance(value, str) and value.lstrip()[:1] == "[" else value
        return (found,) if isinstance(found, str) else _texts(name, found)
    if isinstance(value, str):
        value = _parsed(name, value.lower() if name == "ignore_eos" else value)
    if name == "ignore_eos":
        if type(value) is not bool:
            raise UsageError(f"ignore_eos: {value!r} must be true or false")
    elif name == "logit_bias":
        return _bias(value)
    elif name in _WHOLE:
        if isinstance(value, float) and value.is_integer():  # a column with gaps is one of floats for many a tool
            value = int(value)
        if type(value) is not int:
            raise UsageError(f"{name}: {value!r} must be a whole number")
    elif type(value) not in (int, float):
        raise UsageError(f"{name}: {value!r} must be a number")
    return value


def _bias(value: object) -> dict[int, float]:
    """{"15043": -1.5}; JSON has no other keys than text."""
    try:
        return {int(token): float(bias) for token, bias in dict(value).items()}  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise UsageError(f"logit_bias: {value!r} must be an object of token: bias") from None


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name}: must be text, not {type(value).__name__}")
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name}: must be text or a list of texts, not {type(value).__name__}")
    return tuple(_text(name, item) for item in value)


def _parsed(name: str, value: Any) -> Any:
    """JSON in text, as a CSV has it."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON ({one_line(error)})") from None
