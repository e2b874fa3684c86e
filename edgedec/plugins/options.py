"""Options of plug-ins: declared once as annotated arguments of `make`, read from text and from JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Opt:
    """What is declared of an option beside its type and default. help: one line. low, high: its range, ends included;
    above, below: ends excluded. must: what else a value has to be, in words that follow "must be"; None if it is.
    aliases: names that it had before."""

    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    must: Callable[[Any], str | None] | None = None
    aliases: tuple[str, ...] = ()

    def wrong(self, value: Any) -> str | None:
        """What a value of the right type must be instead; None if it is right."""
        if isinstance(value, int | float) and not isinstance(value, bool) and not self._within(value):
            return f"must be {self.range()}"
        found = None if self.must is None else self.must(value)
        return None if found is None else f"must be {found}"

    def _within(self, value: float) -> bool:
        low = (self.low is None or value >= self.low) and (self.above is None or value > self.above)
        return low and (self.high is None or value <= self.high) and (self.below is None or value < self.below)

    def range(self) -> str:
        """The range in words; empty if there is none.

        from 1 to 8; from 0 to below 1; above 0, up to 1; 1 or more; up to 8
        """
        high = _figure(self.high) if self.below is None else f"below {_figure(self.below)}"
        if self.low is not None:
            return f"from {_figure(self.low)} to {high}" if high else f"{_figure(self.low)} or more"
        if self.above is not None:
            return f"above {_figure(self.above)}, up to {high}" if high else f"above {_figure(self.above)}"
        return f"up to {high}" if high and self.below is None else high


def _figure(value: float | None) -> str:
    """A number as people write it; empty for none."""
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


@dataclass(frozen=True)
class PluginOption:
    """An argument of `make`. type: int, float, bool, str, a Literal of texts, or a tuple of one of these; optional:
    None is a value too."""

    name: str
    type: Any
    opt: Opt
    default: Any
    optional: bool = False

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def read(self, value: Any) -> Any:
        """The value for `make`, from text or JSON; ValueError with what it must be."""
        if value is None and self.optional:
            return None
        found = _read(self.type, value)
        if (wrong := self.opt.wrong(found)) is not None:
            raise ValueError(wrong)
        return found

    def kind(self) -> str:
        """The type in words."""
        return _kind(self.type)

    def schema(self) -> dict[str, Any]:
        """JSON schema of a value."""
        limits = {
            "minimum": self.opt.low,
            "maximum": self.opt.high,
            "exclusiveMinimum": self.opt.above,
            "exclusiveMaximum": self.opt.below,
        }
        found = {**_schema(self.type), **{key: limit for key, limit in limits.items() if limit is not None}}
        shown = {} if self.required or self.default is None else {"default": _plain(self.default)}
        return {**found, "description": self.opt.help, **shown}


def options_of_make(make: Callable[..., object], skip: int = 1) -> dict[str, PluginOption]:
    """The options that `make` declares after its first `skip` arguments; TypeError for one without type and help."""
    hints = get_type_hints(make, include_extras=True)
    found = dict[str, PluginOption]()
    for name, parameter in list(inspect.signature(make).parameters.items())[skip:]:
        hint = hints.get(name)
        if get_origin(hint) is not Annotated or not isinstance((opt := get_args(hint)[1]), Opt):
            raise TypeError(f"{make.__module__}.make: {name}: must be Annotated[TYPE, Opt(HELP)]")
        kind, optional = _without_none(get_args(hint)[0])
        _kind(kind)
        found[name] = PluginOption(name, kind, opt, parameter.default, optional)
    return found


def _without_none(kind: Any) -> tuple[Any, bool]:
    """`int | None` -> (int, True)."""
    if get_origin(kind) not in (Union, UnionType):
        return kind, False
    members = [member for member in get_args(kind) if member is not NoneType]
    if len(members) != 1:
        raise TypeError(f"{kind}: an option has one type")
    return members[0], True


def _read(kind: Any, value: Any) -> Any:
    """A value of a type from text or JSON; ValueError with what it must be."""
    if get_origin(kind) is tuple:
        items = _list(value)
        return tuple(_read(get_args(kind)[0], item) for item in items)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"must be {_kind(kind)}")
        return value
    read = _READERS[kind]
    try:
        return read(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"must be {_kind(kind)}") from None


def _list(value: Any) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("must be a list, as in [1, 2]") from None
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list, as in [1, 2]")
    return list(value)


def _integer(value: Any) -> int:
    whole = isinstance(value, float) and value.is_integer()  # many tools make a column with gaps one of floats
    if isinstance(value, bool) or not (whole or isinstance(value, int | str)):
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str) or not isfinite(float(value)):
        raise ValueError
    return float(value)


def _boolean(value: Any) -> bool:
    word = str(value).lower()
    if isinstance(value, float) or word not in _TRUE + _FALSE:
        raise ValueError
    return word in _TRUE


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


_READERS: Mapping[Any, Callable[[Any], Any]] = {int: _integer, float: _number, bool: _boolean, str: _text}
_WORDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def _kind(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list, each item {_kind(get_args(kind)[0])}"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(word or repr(word) for word in get_args(kind))}"
    if kind not in _WORDS:
        raise TypeError(f"{kind}: no type of an option")
    return _WORDS[kind]


def _schema(kind: Any) -> dict[str, Any]:
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _schema(get_args(kind)[0])}
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": list(get_args(kind))}
    return {"type": _TYPES[kind]}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
