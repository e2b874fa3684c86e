"""The texts that an expression may be: strings put together, chosen or returned; `…` where only a run knows."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import product

from python_sources import Binding, Function, Module, Sources, last, parameters

ANY = "…"
# A parameter's place in a text, between two of these, until its callers are known.
MARK = "\0"
MARKED = re.compile(f"{MARK}(\\w+){MARK}")
_MOST, _DEEPEST = 40, 12
# Fields of tables that hold words for people.
_FIELDS = ("instead",)
_SAME = ("strip", "lower", "rstrip", "lstrip", "capitalize", "splitlines")


@dataclass(frozen=True)
class Place:
    """Where an expression stands: its file, and the functions around it, the innermost last."""

    module: Module
    inside: tuple[Function, ...]

    def owner(self, name: str) -> Function | None:
        """The function that has this parameter."""
        return next((function for function in self.inside[::-1] if name in parameters(function)), None)


class Texts:
    """Reads expressions."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def of(self, node: ast.expr | None, place: Place, deep: int = _DEEPEST) -> list[str]:
        """Every text, in order; [`…`] for what is no text."""
        found = self._of(node, place, deep - 1) if node is not None and deep else [ANY]
        return list(dict.fromkeys(found)) or [ANY]

    def _of(self, node: ast.expr, place: Place, deep: int) -> list[str]:
        match node:
            case ast.Constant(value):
                return [value] if isinstance(value, str) else [] if value is None else [ANY]
            case ast.JoinedStr(values):
                return _joined([self._part(value, place, deep) for value in values])
            case ast.BinOp(left, ast.Add(), right):
                return _joined([self.of(left, place, deep), self.of(right, place, deep)])
            case ast.BinOp(left, ast.Mod(), _):
                return [re.sub(r"%[-\d.]*[a-z]", ANY, text) for text in self.of(left, place, deep)]
            case ast.IfExp(_, body, orelse):
                return self._any(self.of(part, place, deep) for part in (body, orelse))
            case ast.BoolOp(_, values):
                return self._any(self.of(part, place, deep) for part in values)
            case ast.Name(name):
                return self._name(name, place, deep)
            case ast.Call():
                return self._call(node, place, deep)
            case ast.Attribute(_, name) if name in _FIELDS:
                return self._any(self.of(value, Place(where, ()), deep) for where, value in self.sources.keyword(name))
            case ast.Subscript(value, key):
                return self._items(value, key, place, deep)
        return [ANY]

    def _part(self, node: ast.expr, place: Place, deep: int) -> list[str]:
        """A part of an f-string: only what has several words is spelt out."""
        if not isinstance(node, ast.FormattedValue):
            return self.of(node, place, deep)
        found = [text for text in self.of(node.value, place, deep) if is_phrase(text)]
        return found if node.format_spec is None and found else [ANY]

    def _any(self, groups: object) -> list[str]:
        return [text for group in groups for text in group]  # type: ignore[attr-defined]

    def _name(self, name: str, place: Place, deep: int) -> list[str]:
        for function in place.inside[::-1]:
            found = self._any(self._bound(b, place, deep) for b in self.sources.bindings(function).get(name, []))
            if name in parameters(function):
                found.append(f"{MARK}{name}{MARK}")
            if found:
                return found
        return self._constant(self.sources.constant(name, place.module), deep)

    def _bound(self, binding: Binding, place: Place, deep: int) -> list[str]:
        if binding.value is None:
            return [ANY]
        if binding.item is None:
            return self.of(binding.value, place, deep)
        return self._item(binding.value, binding.item, place, deep)

    def _item(self, node: ast.expr, at: int, place: Place, deep: int) -> list[str]:
        """Item `at` of what is a tuple, or what a function returns as one."""
        match node if deep else None:
            case ast.Tuple(values) if at < len(values):
                return self.of(values[at], place, deep - 1)
            case ast.Constant(None):
                return []
            case ast.BoolOp(_, values):
                return self._any(self._item(value, at, place, deep - 1) for value in values)
            case ast.IfExp(_, body, orelse):
                return self._any(self._item(value, at, place, deep - 1) for value in (body, orelse))
            case ast.Call():
                return self._any(self._item(value, at, where, deep - 1) for value, where in self._returns(node, place))
            case ast.Name(name):
                bound = [b for f in place.inside for b in self.sources.bindings(f).get(name, []) if b.item is None]
                return self._any(self._item(b.value, at, place, deep - 1) for b in bound if b.value)
        return [ANY]

    def _constant(self, found: tuple[Module, ast.expr] | None, deep: int) -> list[str]:
        return self.of(found[1], Place(found[0], ()), deep) if found else [ANY]

    def _call(self, node: ast.Call, place: Place, deep: int) -> list[str]:
        name = last(node.func)
        if name == "str" and node.args:
            return self.of(node.args[0], place, deep)
        if isinstance(node.func, ast.Attribute) and name in _SAME:
            return self.of(node.func.value, place, deep)
        if isinstance(node.func, ast.Attribute) and name == "format":
            return [re.sub(r"\{[^}]*\}", ANY, text) for text in self.of(node.func.value, place, deep)]
        if name == "next":
            return self._any(self.of(argument, place, deep) for argument in node.args)
        return self._any(self.of(value, where, deep) for value, where in self._returns(node, place)) or [ANY]

    def _returns(self, node: ast.Call, place: Place) -> list[tuple[ast.expr, Place]]:
        """What the called function returns. Of methods, those of this file alone."""
        if isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Name):
            return []
        if isinstance(node.func, ast.Attribute) and node.func.value.id not in ("self", "cls"):  # type: ignore[attr-defined]
            return []
        return [
            (part.value, Place(module, (*module.around[function], function)))
            for module, function in self.sources.functions(last(node.func), place.module)
            for part in ast.walk(function)
            if isinstance(part, ast.Return) and part.value is not None
        ]

    def _items(self, node: ast.expr, key: ast.expr, place: Place, deep: int) -> list[str]:
        """An item of a constant table: the one of a name that is a key of it, else any."""
        found = None
        if isinstance(node, ast.Name):
            found = self.sources.constant(node.id, place.module)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = self.sources.member(node.value.id, node.attr, place.module)
        match found[1] if found else None:
            case ast.Dict(keys, values):
                assert found is not None
                same = [v for k, v in zip(keys, values, strict=True) if k is not None and last(k) == last(key) != ""]
                return self._any(self.of(value, Place(found[0], ()), deep) for value in same or values)
            case ast.Tuple(values) | ast.List(values):
                assert found is not None
                return self._any(self.of(value, Place(found[0], ()), deep) for value in values)
        return [ANY]


def is_phrase(text: str) -> bool:
    """Has several words, or stands for what a caller gives."""
    return MARK in text or " " in text.replace(ANY, "").strip()


def _joined(parts: list[list[str]]) -> list[str]:
    """Every way to put the parts together."""
    several = [part for part in parts if len(part) > 1]
    while len(several) > 1 and _size(parts) > _MOST:
        longest = max(several, key=len)
        parts = [[ANY] if part is longest else part for part in parts]
        several.remove(longest)
    return ["".join(chosen) for chosen in product(*parts)]


def _size(parts: list[list[str]]) -> int:
    made = 1
    for part in parts:
        made *= len(part)
    return made
