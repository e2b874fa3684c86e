"""A schema as classes, and texts that are lists of their constructor calls.

KnowCoder (Li et al., 2024, code): extraction as code. The prompt defines a class for each type, a docstring for each
definition, and the model writes a list of objects. Its decoding is free; here the text may only name classes of the
schema, in places where their type belongs, and strings are spans of the passage (our own choice).
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from edgedec.constraints.automata.script import OneOf, ScriptPart
from edgedec.constraints.automata.spans import Span
from edgedec.errors import UsageError

TEXT = "str"
_LIST = re.compile(r"list\[(\w+)\]")
# What a string in Python's quotes cannot hold as it is.
_UNQUOTED = '"\\\n\r\0'
_MEMBERS = {"name", "doc", "base", "fields"}


@dataclass(frozen=True)
class SchemaClass:
    """A class: its fields by name, each of a type: "str" (a span), a class, or a list of one of these. A class without
    fields has its base's; without these it is no more than a base."""

    name: str
    doc: str = ""
    base: str = ""
    fields: dict[str, str] = field(default_factory=dict)


class Schema:
    """Classes by name, bases before what is derived from them."""

    def __init__(self, classes: Sequence[SchemaClass]) -> None:
        self.classes = {found.name: found for found in classes}
        self._check(classes)

    @classmethod
    def read(cls, given: Any) -> Schema:
        """From JSON: [{"name": "Person", "doc": "…", "base": "Entity", "fields": {"name": "str"}}, …]."""
        if not isinstance(given, list) or not given or not all(isinstance(item, dict) for item in given):
            raise UsageError(
                "classes: must be a list of objects with a name, and doc, base and fields if they have these"
            )
        for item in given:
            fields = item.get("fields", {})
            texts = [item.get("name"), item.get("doc", ""), item.get("base", "")]
            if (
                set(item) - _MEMBERS
                or not isinstance(fields, dict)
                or not all(isinstance(text, str) for text in [*texts, *fields.values()])
            ):
                raise UsageError(
                    f"classes: {json.dumps(item)[:80]}: needs a name; doc and base are text, fields an object"
                )
        return cls([SchemaClass(**item) for item in given])

    def fields(self, name: str) -> dict[str, str]:
        """The fields of a class, its own or its base's."""
        found = self.classes[name]
        return found.fields or (self.fields(found.base) if found.base else {})

    def kinds(self, name: str) -> list[str]:
        """The classes that objects of a type can have: it and those derived from it that have fields."""
        return [kind for kind in self.classes if name in self._line(kind) and self.fields(kind)]

    def prompt(self) -> str:
        """The classes as Python, for the prompt."""
        found = []
        for name, known in self.classes.items():
            lines = [f"class {name}({known.base}):" if known.base else f"class {name}:"]
            lines += [f'    """{known.doc}"""'] if known.doc else []
            if known.fields:
                taken = ", ".join(f"{key}: {kind}" for key, kind in known.fields.items())
                lines.append(f"    def __init__(self, {taken}):")
                lines += [f"        self.{key} = {key}" for key in known.fields]
            found.append("\n".join(lines if len(lines) > 1 else [*lines, "    pass"]))
        return "\n\n".join(found) + "\n"

    def _line(self, name: str) -> Iterator[str]:
        while name:
            yield name
            name = self.classes[name].base

    def _check(self, classes: Sequence[SchemaClass]) -> None:
        known: set[str] = set()
        for found in classes:
            for name in (found.name, *found.fields):
                if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name) or name == TEXT:
                    raise UsageError(f"classes: {name!r} is no name of a class or field")
            if found.name in known:
                raise UsageError(f"classes: {found.name} is defined twice")
            if found.base and found.base not in known:
                raise UsageError(f"classes: {found.name}: its base {found.base!r} must stand before it")
            if '"""' in found.doc or "\\" in found.doc or found.doc.endswith('"'):
                raise UsageError(
                    f"classes: {found.name}: doc: must be without three quotes, backslashes and a quote at its end"
                )
            known.add(found.name)
        for found in classes:
            for key, kind in found.fields.items():
                if inner(kind) != TEXT and inner(kind) not in known:
                    raise UsageError(
                        f"classes: {found.name}.{key}: no type {kind!r}: must be str, a class, or list[…] of one"
                    )
        for name in known:
            self._check_ends(name, ())
        if not any(self.fields(name) for name in known):
            raise UsageError("classes: none has fields, so that there is nothing to write")

    def _check_ends(self, name: str, inside: tuple[str, ...]) -> None:
        if name in inside:
            raise UsageError(f"classes: {name} holds itself: {' > '.join([*inside, name])}")
        for key, kind in self.fields(name).items():
            if inner(kind) != TEXT:
                if not self.kinds(inner(kind)):
                    raise UsageError(f"classes: {name}.{key}: no class of type {inner(kind)} has fields")
                for other in self.kinds(inner(kind)):
                    self._check_ends(other, (*inside, name))


def inner(kind: str) -> str:
    """The type of a list's items; of anything else, it."""
    found = _LIST.fullmatch(kind)
    return found[1] if found else kind


class Symbol(NamedTuple):
    """What is still to be written: "text", a "span", an "object" of a type, a "list" of one, or "more" of a list."""

    kind: str
    of: str = ""


Plan = tuple[Symbol, ...]
OPEN, EMPTY, NEXT, CLOSE = "[", "[]", ", ", "]"


class ClassesScript:
    """A script (`automata.script`): a list of objects of any class. A plan is what is still to be written, a stack."""

    first: Plan = (Symbol("list"),)

    def __init__(self, schema: Schema, passage: str) -> None:
        self._schema, self._span = schema, Span(passage, _UNQUOTED)
        self._choice = lru_cache(1024)(self._find_choice)

    def part(self, plan: Plan) -> ScriptPart | None:
        if not plan:
            return None
        return self._span if plan[0].kind == "span" else self._choice(plan[0])

    def then(self, plan: Plan, choice: Any) -> Sequence[Plan]:
        symbol, rest = plan[0], plan[1:]
        if symbol.kind == "object":
            return ((*self._object(choice[:-1]), *rest),)
        if (symbol.kind == "list" and choice == OPEN) or (symbol.kind == "more" and choice == NEXT):
            return ((*self._item(symbol.of), Symbol("more", symbol.of), *rest),)
        return (rest,)

    def _find_choice(self, symbol: Symbol) -> OneOf:
        if symbol.kind == "text":
            return OneOf([symbol.of])
        if symbol.kind == "object":
            every = [name for name in self._schema.classes if self._schema.fields(name)]
            return OneOf(f"{name}(" for name in (self._schema.kinds(symbol.of) if symbol.of else every))
        return OneOf([EMPTY, OPEN] if symbol.kind == "list" else [CLOSE, NEXT])

    def _item(self, kind: str) -> Plan:
        """An item of a list, the field of an object: "" for an object of any class."""
        if kind == TEXT:
            return (Symbol("text", '"'), Symbol("span"), Symbol("text", '"'))
        return (Symbol("list", inner(kind)),) if inner(kind) != kind else (Symbol("object", kind),)

    def _object(self, name: str) -> Iterator[Symbol]:
        """What follows an object's name and bracket."""
        for i, (key, kind) in enumerate(self._schema.fields(name).items()):
            yield Symbol("text", f"{NEXT if i else ''}{key}=")
            yield from self._item(kind)
        yield Symbol("text", ")")
