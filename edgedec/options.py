"""Options of a generation, declared once, as metadata of the config's fields: the name, what a value may be (JSON
schema) and one line of help. The CLI's flags, the server's request fields and the rows of a batch all read this."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from edgedec.errors import UsageError

_KEY = "edgedec.option"


@dataclass(frozen=True)
class Option:
    """`kind`: of its values (`_PARSERS`); `schema`: of a value in JSON."""

    name: str
    kind: str
    help: str
    schema: Mapping[str, Any]

    def parse(self, value: Any) -> Any:
        """The value for the config. Text is read as JSON where the option is not text itself, as a CSV file or a
        command line has nothing else. UsageError if it is of another type."""
        if isinstance(value, str) and self.kind != "words" and (self.kind != "strings" or value.lstrip()[:1] == "["):
            value = read_json(self.name, value.lower() if self.kind == "boolean" else value)
        return _PARSERS[self.kind](self.name, value)


def option(default: Any, kind: str, help: str, **schema: Any) -> Any:  # noqa: A002
    """A dataclass field that is an option: `option(0, "integer", "No end token before so many.", minimum=0)`."""
    return field(default=default, metadata={_KEY: (kind, help, {**_SCHEMAS[kind], **schema})})


def options_of(*configs: type) -> dict[str, Option]:
    """The options that these dataclasses declare, by name."""
    declared = [f for config in configs for f in fields(config) if _KEY in f.metadata]
    return {f.name: Option(f.name, *f.metadata[_KEY]) for f in declared}


def read_json(name: str, value: Any) -> Any:
    """The value of JSON text; anything that is not text as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON ({' '.join(str(error).split())})") from None


def _boolean(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise UsageError(f"{name}: {value!r} must be true or false")
    return value


def _integer(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():  # many tools make a column with gaps one of floats
        value = int(value)
    if type(value) is not int:
        raise UsageError(f"{name}: {value!r} must be a whole number")
    return value


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise UsageError(f"{name}: {value!r} must be a number")
    return float(value)


def _bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """{"15043": -1.5}: keys in JSON are text."""
    try:
        return tuple((int(token), float(bias)) for token, bias in dict(value).items())
    except (TypeError, ValueError):
        raise UsageError(f"{name}: {value!r} must be an object of token: bias") from None


def _strings(name: str, value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple):
        raise UsageError(f"{name}: must be text or a list of texts, not {type(value).__name__}")
    for item in values:
        if not isinstance(item, str):
            raise UsageError(f"{name}: must be text, not {type(item).__name__}")
    return tuple(values)


def _tokens(name: str, value: Any) -> frozenset[int]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name}: must be a list of tokens, not {type(value).__name__}")
    return frozenset(_integer(name, item) for item in value)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name}: must be a list of tokens, not {type(value).__name__}")
    return tuple(_integer(name, item) for item in value)


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name}: must be a list of numbers, not {type(value).__name__}")
    return tuple(_number(name, item) for item in value)


def _sequences(name: str, value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """[[[15043, 7], -1.5]]"""
    try:
        pairs = [(tokens, bias) for tokens, bias in value]
    except (TypeError, ValueError):
        raise UsageError(f"{name}: {value!r:.60} must be a list such as [[[12, 7], -2.5]]") from None
    return tuple((_ids(name, tokens), _number(name, bias)) for tokens, bias in pairs)


def _words(name: str, value: Any) -> str:
    """Plug-ins in words, or as JSON, which is kept as text."""
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    if not isinstance(value, str):
        raise UsageError(f"{name}: must be text or an object, not {type(value).__name__}")
    return value


_PARSERS: Mapping[str, Callable[[str, Any], Any]] = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "bias": _bias,
    "strings": _strings,
    "tokens": _tokens,
    "ids": _ids,
    "numbers": _numbers,
    "sequences": _sequences,
    "words": _words,
}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 1000}
_TOKEN = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "number": {"type": "number"},
    "bias": {"type": "object", "maxProperties": 1024, "additionalProperties": {"type": "number"}},
    "strings": {"anyOf": [_TEXT, {"type": "array", "maxItems": 16, "items": _TEXT}]},
    "tokens": {"type": "array", "maxItems": 1024, "items": _TOKEN},
    "ids": {"type": "array", "maxItems": 1024, "items": _TOKEN},
    "numbers": {"type": "array", "maxItems": 8, "items": {"type": "number"}},
    "sequences": {
        "type": "array",
        "maxItems": 1024,
        "items": {"type": "array", "minItems": 2, "maxItems": 2},
    },
    "words": {"anyOf": [{"type": "string", "maxLength": 4096}, {"type": "object"}]},
}
