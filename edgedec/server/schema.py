"""Checks a request against the JSON schema that the server publishes for it.

It supports the part of JSON Schema that the tables in `fields.py` use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from edgedec.server.errors import APIError

Schema = Mapping[str, Any]
_NAMED, _LEAVE = "must be one of ", "is not supported here; leave it out"


class Wrong(NamedTuple):
    """A violation: its place, what is expected there, whether the value is of another type altogether, and whether it
    is another constant, such as the name of another alternative."""

    place: str
    what: str
    kind: bool = False
    constant: bool = False


_KINDS: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: _number(v) and float(v).is_integer(),
    "number": lambda v: _number(v),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def check(value: object, schema: Schema, where: str) -> None:
    """APIError 400 naming the place, if `value` is not what `schema` describes."""
    wrong = _wrong(value, schema, where)
    if wrong is not None:
        place, what, *_ = wrong
        raise APIError(400, f"{place or 'the request'}: {what}", param=place or None, code="invalid_value")


def _number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(float(value))
    except OverflowError:
        return False


def _wrong(value: Any, schema: Schema, where: str) -> Wrong | None:
    """The violation of a schema, if there is one."""
    if "anyOf" in schema:
        return _none_of(value, schema["anyOf"], where)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_KINDS[kind](value) for kind in kinds):
        return Wrong(where, _LEAVE if kinds == ["null"] else f"must be {' or '.join(kinds)}", kind=True)
    if "const" in schema and value != schema["const"]:
        return Wrong(where, f"must be {schema['const']}", constant=True)
    if "enum" in schema and value not in schema["enum"]:
        return Wrong(where, f"{_NAMED}{', '.join(map(str, schema['enum']))}")
    if _number(value):
        return _bounds(value, schema, where)
    if isinstance(value, str | list | dict):
        return _sizes(value, schema, where) or _inside(value, schema, where)
    return None


def _none_of(value: object, options: list[Schema], where: str) -> Wrong | None:
    found = [_wrong(value, option, where) for option in options]
    if None in found:
        return None
    # What is of the right type, then of the right name, and then the deepest place, is the most precise.
    wrongs = [wrong for wrong in found if wrong is not None]
    best = max(wrongs, key=lambda wrong: _precision(wrong, where))
    named = [wrong.what.removeprefix(_NAMED) for wrong in wrongs if wrong.place == best.place and _names(wrong)]
    return Wrong(best.place, _NAMED + ", ".join(dict.fromkeys(named))) if _names(best) else best


def _precision(wrong: Wrong, where: str) -> tuple[bool, bool, bool, int]:
    return not wrong.kind or wrong.place != where, not wrong.constant, not wrong.kind, len(wrong.place)


def _names(wrong: Wrong) -> bool:
    """Whether it names the values that may stand there."""
    return wrong.what.startswith(_NAMED)


def _bounds(value: float, schema: Schema, where: str) -> Wrong | None:
    low, high, above = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMinimum")
    below = schema.get("exclusiveMaximum")
    if low is not None and value < low:
        return Wrong(where, f"{value} is below {low}")
    if above is not None and value <= above:
        return Wrong(where, f"{value} must be above {above}")
    if below is not None and value >= below:
        return Wrong(where, f"{value} must be below {below}")
    return Wrong(where, f"{value} is above {high}") if high is not None and value > high else None


def _sizes(value: str | list[Any] | dict[str, Any], schema: Schema, where: str) -> Wrong | None:
    name = {str: "Length", list: "Items", dict: "Properties"}[type(value)]
    low, high = schema.get(f"min{name}", 0), schema.get(f"max{name}")
    if len(value) < low:
        return Wrong(where, f"needs {low} or more, has {len(value)}")
    return Wrong(where, f"allows {high} at most, has {len(value)}") if high is not None and len(value) > high else None


def _inside(value: str | list[Any] | dict[str, Any], schema: Schema, where: str) -> Wrong | None:
    if isinstance(value, list) and "items" in schema:
        if _are_tokens(value, schema["items"]):
            return None
        found = (_wrong(item, schema["items"], f"{where}[{i}]") for i, item in enumerate(value))
        return next((wrong for wrong in found if wrong is not None), None)
    return _members(value, schema, where) if isinstance(value, dict) else None


def _are_tokens(values: list[Any], schema: Schema) -> bool:
    """Whether all are integers that the schema allows: a prompt may be hundreds of thousands."""
    if schema.keys() != {"type", "minimum", "maximum"} or set(map(type, values)) != {int}:
        return False
    return schema["type"] == "integer" and schema["minimum"] <= min(values) and max(values) <= schema["maximum"]


def _members(value: dict[str, Any], schema: Schema, where: str) -> Wrong | None:
    known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, item in value.items():
        inner = known.get(name, rest)
        if inner is False:
            return Wrong(_at(where, name), _LEAVE)
        wrong = None if inner is True else _wrong(item, inner, _at(where, name))
        if wrong is not None:
            return wrong
    # After the present members: a wrong member is a better message than a missing one.
    missing = next((name for name in schema.get("required", ()) if name not in value), None)
    return None if missing is None else Wrong(_at(where, missing), "is missing")


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
