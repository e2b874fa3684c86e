"""Options in words: "ngram=3,store=x" as arguments of the function that makes what a file's name stands for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from edgedec.errors import UsageError


def split_options(words: str, rest: str, example: str) -> dict[str, str]:
    """ "ngram=3,store=x" -> {"ngram": "3", "store": "x"}. words: what an error names, `rest` a part of it."""
    found: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"{words}: {item!r} must be OPTION=VALUE, as in {example}")
        found[key] = value
    return found


def typed_options(name: str, make: Callable[..., object], options: Mapping[str, str]) -> dict[str, Any]:
    """Text as the types that `make` declares for its arguments after the first."""
    known = dict(list(inspect.signature(make).parameters.items())[1:])
    found: dict[str, Any] = {}
    for key, value in options.items():
        if key not in known:
            raise UsageError(f"{name}: no option {key!r}; there are: {', '.join(known) or 'none'}")
        kind = str(known[key].annotation)
        try:
            found[key] = {"int": int, "float": float}.get(kind, str)(value)
        except ValueError:
            raise UsageError(f"{name}: {key}={value}: must be {kind}") from None
        if isinstance(found[key], float) and not isfinite(found[key]):
            raise UsageError(f"{name}: {key}={value}: must be a finite number")
    return found
