"""Groups of flags: one parameter of a verb that stands for several options.

A group is a frozen dataclass; its fields are options, written as the parameters of a verb are. Typer reads the
signature of a verb: `grouped` shows it the fields where the group stands, and makes the group of their values when the
verb is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

R = TypeVar("R")


def grouped(verb: Callable[..., R]) -> Callable[..., R]:
    """The verb with the fields of its groups as parameters.

    >>> @grouped
    ... def f(*, n: int = 1, generation: SeededGeneration) -> None: ...
    >>> f(n=2, temperature=0.0, …, seed=None)  # generation=SeededGeneration(temperature=0.0, …, seed=None)
    """
    hints = get_type_hints(verb, include_extras=True)
    plain = [p.replace(annotation=hints[p.name]) for p in signature(verb).parameters.values()]
    groups: dict[str, Any] = {p.name: p.annotation for p in plain if is_dataclass(p.annotation)}
    shown = [flag for p in plain for flag in (_flags(p.annotation) if p.name in groups else (p,))]
    _check(verb.__name__, groups, shown)

    @wraps(verb)
    def call(**given: Any) -> R:
        made = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        return verb(**given, **made)

    call.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in shown}
    return call


@cache
def _flags(group: Any) -> tuple[Parameter, ...]:
    """Its fields, as parameters."""
    hints = get_type_hints(group, include_extras=True)
    return tuple(
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    )


def _check(verb: str, groups: dict[str, Any], shown: list[Parameter]) -> None:
    """Check a verb's declaration, when it is imported."""
    if not groups:
        raise TypeError(f"{verb}: no parameter is a group of flags (a frozen dataclass)")
    for name, group in groups.items():
        if not group.__dataclass_params__.frozen:
            raise TypeError(f"{verb}: {name}: {group.__name__} must be a frozen dataclass")
        bare = [flag.name for flag in _flags(group) if get_origin(flag.annotation) is not Annotated]
        if bare:
            raise TypeError(f"{verb}: {group.__name__}.{bare[0]}: is no option; annotate it with one")
    twice = [name for name, count in Counter(flag.name for flag in shown).items() if count > 1]
    if twice:
        raise TypeError(f"{verb}: {twice[0]}: comes twice; each flag belongs to one group or parameter")
