"""JSON to frozen dataclasses and back, strictly: an unknown key or a wrong type is an error."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, TypeVar

from edgedec.errors import BundleCorrupt

T = TypeVar("T")
# The field by which the dataclasses of a union are told apart.
TAG = "kind"


def to_json(value: Any) -> Any:
    """A dataclass as plain dicts and lists; fields at their default are left out, but for the tag of a union."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_json(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if f.name == TAG or getattr(value, f.name) != _default(f)
        }
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def from_json(cls: type[T], data: Any, where: str) -> T:
    """The dataclass `cls` from parsed JSON. `where` names the place in messages.

    >>> from_json(Layer, {"window": 512}, "spec.layers[0]")
    Layer(rope=0, window=512)
    """
    if not isinstance(data, dict):
        raise BundleCorrupt(f"{where}: expected an object, found {type(data).__name__}")
    hints = _hints(cls)  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise BundleCorrupt(f"{where}: unknown key {unknown[0]!r}")
    values = {key: _convert(hints[key], item, f"{where}.{key}") for key, item in data.items()}
    missing = [
        f.name
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if f.name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise BundleCorrupt(f"{where}: missing key {missing[0]!r}")
    return cls(**values)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        if all(dataclasses.is_dataclass(a) for a in args):
            return from_json(_tagged(args, value, where), value, where)
        return _convert(next(a for a in args if a is not type(None)), value, where)
    if origin is typing.Literal:
        if value not in args:
            raise BundleCorrupt(f"{where}: {value!r} is not one of {', '.join(map(repr, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise BundleCorrupt(f"{where}: expected a list, found {type(value).__name__}")
        return tuple(_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise BundleCorrupt(f"{where}: expected an object, found {type(value).__name__}")
        return {key: _convert(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value, where)  # type: ignore[arg-type]
    if hint is Any:
        return value
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 1 << 1023 else math.inf
    if type(value) is not hint:
        raise BundleCorrupt(f"{where}: expected {hint.__name__}, found {type(value).__name__}")
    if hint is float and not math.isfinite(value):
        raise BundleCorrupt(f"{where}: {value} is not a finite number")
    return value


def _tagged(union: tuple[Any, ...], value: Any, where: str) -> Any:
    """The dataclass of a union by the tag of a JSON object."""
    kinds = {typing.get_args(_hints(cls)[TAG])[0]: cls for cls in union}
    found = value.get(TAG) if isinstance(value, dict) else None
    if not isinstance(found, str) or found not in kinds:
        raise BundleCorrupt(f"{where}: {TAG} {found!r} is not one of {', '.join(map(repr, kinds))}")
    return kinds[found]
