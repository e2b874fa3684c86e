"""The rules of JSON that a schema describes, members in the schema's order.

Supported: true, type (one or several), enum, const, properties, required, items, minItems, maxItems, minLength,
maxLength, pattern, anyOf, $ref into the schema itself (recursive ones too), title and other notes. Of what a schema
leaves open a text is narrower: an object has the members that `properties` names, of an open object any that JSON has.
Refused by name: every other keyword that restricts texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgedec.diffusion.grammars.of_regex import of_regex
from edgedec.diffusion.grammars.rules import EMPTY, Expr, RuleBook
from edgedec.diffusion.grammars.utf8 import LAST

_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly"}
_NOTES |= {"writeOnly", "$defs", "definitions", "x-bounded"}
_OF = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern"},
}
_ANY = "string", "number", "boolean", "null", "object", "array"
_DIGITS = 20
# What a backslash may precede in the pattern of a string: nothing of it stands for a character that JSON escapes.
_SAFE = re.compile(r"\\[dw.\-+*?()\[\]{}|/^$]")
_SPACES = {"none": "", "space": " ?", "any": "[ \\n\\r\\t]*"}


class SchemaRules:
    """The rules of one schema. whitespace: between JSON's tokens, as the constraint has it."""

    def __init__(self, book: RuleBook, schema: Any, whitespace: str) -> None:
        self._book, self._root = book, schema
        self._space = self._kept(of_regex(book, _SPACES[whitespace]))
        self._refs: dict[str, int] = {}
        self._basic: dict[str, Expr] = {}

    def text(self) -> Expr:
        """The expression of whole texts."""
        return self._of(self._root)

    def _kept(self, expr: Expr) -> Expr:
        """The same as a rule, so that it is written once."""
        return (self._book.define(self._book.name(), [expr]),)

    def _sign(self, sign: str) -> Expr:
        return self._space + self._book.literal(sign) + self._space

    def _of(self, schema: Any) -> Expr:
        if schema is True or schema == {}:
            return self._type("any", {})
        if not isinstance(schema, Mapping):
            raise self._book.error(f"{schema!r:.60} is not supported as a part of the schema")
        for key, make in (("$ref", self._ref), ("const", self._const), ("enum", self._enum), ("anyOf", self._any_of)):
            if key in schema:
                self._only(schema, {key, "type"} if key in ("const", "enum") else {key})
                return make(schema[key])
        types = schema.get("type", [])
        names = [types] if isinstance(types, str) else list(types)
        names = names or [name for name, keys in _OF.items() if keys & set(schema)] or list(_ANY)
        self._only(schema, {"type"}.union(*(_OF.get(name, set()) for name in names)))
        return self._book.either([self._type(name, schema) for name in names])

    def _only(self, schema: Mapping[str, Any], known: set[str]) -> None:
        """UsageError for keywords that are not known here."""
        other = sorted(set(schema) - known - _NOTES)
        if other:
            raise self._book.error(f"{other[0]} is not supported here with gaps; leave it out, or use fits=front")

    def _ref(self, path: str) -> Expr:
        if path not in self._refs:
            if not path.startswith("#"):
                raise self._book.error(f"$ref {path}: is not in the schema")
            self._refs[path] = self._book.name()
            self._book.define(self._refs[path], [self._of(self._found(path))])
        return (self._refs[path],)

    def _found(self, path: str) -> Any:
        node = self._root
        for key in path[1:].split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or key not in node:
                raise self._book.error(f"$ref {path}: there is no such part")
            node = node[key]
        return node

    def _const(self, value: Any) -> Expr:
        return self._book.literal(json.dumps(value, ensure_ascii=False))

    def _enum(self, values: Sequence[Any]) -> Expr:
        return self._book.either([self._const(value) for value in values])

    def _any_of(self, schemas: Sequence[Any]) -> Expr:
        return self._book.either([self._of(each) for each in schemas])

    def _type(self, name: str, schema: Mapping[str, Any]) -> Expr:
        keyed = {key: schema[key] for key in _OF.get(name, ()) if key in schema}
        if name == "string" and keyed:
            return self._string(keyed)
        if name == "object" and "properties" in keyed:
            return self._object(keyed)
        if name == "array" and keyed:
            return self._array(keyed)
        if name == "object" and keyed:
            return self._named(keyed)
        if name not in self._basic:
            rule = self._book.name()
            self._basic[name] = (rule,)
            self._book.define(rule, [self._simple(name)])
        return self._basic[name]

    def _simple(self, name: str) -> Expr:
        """Any value of a type."""
        if name == "any":
            return self._book.either([self._type(each, {}) for each in _ANY])
        if name == "string":
            return self._string({})
        if name == "object":
            return self._list("{", self._type("string", {}) + self._sign(":") + self._type("any", {}), "}")
        if name == "array":
            return self._list("[", self._type("any", {}), "]")
        words = {"boolean": "true|false", "null": "null", "integer": f"-?(0|[1-9][0-9]{{0,{_DIGITS - 1}}})"}
        words["number"] = words["integer"] + f"(\\.[0-9]{{1,{_DIGITS}}})?([eE][+-]?[0-9]{{1,2}})?"
        if name not in words:
            raise self._book.error(f"there is no type {name!r}")
        return of_regex(self._book, words[name])

    def _list(self, opening: str, item: Expr, closing: str, low: int = 0, high: int | None = None) -> Expr:
        """Items with commas between them, in brackets."""
        book = self._book
        if high == 0:
            return book.literal(opening) + self._space + book.literal(closing)
        item = self._kept(item)
        more = book.repeat(self._sign(",") + item, max(low - 1, 0), None if high is None else high - 1)
        inner = [item + more] if low else [EMPTY, item + more]
        return book.literal(opening) + self._space + book.either(inner) + self._space + book.literal(closing)

    def _array(self, schema: Mapping[str, Any]) -> Expr:
        item = self._of(schema.get("items", True))
        return self._list("[", item, "]", schema.get("minItems", 0), schema.get("maxItems"))

    def _string(self, schema: Mapping[str, Any]) -> Expr:
        book, quote = self._book, self._book.literal('"')
        if "pattern" in schema:
            if len(schema) > 1:
                raise book.error("pattern beside a length is not supported with gaps")
            return quote + of_regex(book, anchored(book, schema["pattern"])) + quote
        plain = book.characters([(0x20, 0x21), (0x23, 0x5B), (0x5D, LAST)])
        escape = of_regex(book, r'\\(["\\/bfnrt]|u00[2-7][0-9a-fA-F])')
        character = self._kept(book.either([plain, escape]))
        return quote + book.repeat(character, schema.get("minLength", 0), schema.get("maxLength")) + quote

    def _named(self, schema: Mapping[str, Any]) -> Expr:
        """Members of any names."""
        value = schema.get("additionalProperties", True)
        if "required" in schema:
            raise self._book.error("members that `properties` does not name are not supported with gaps")
        item = self._type("string", {}) + self._sign(":") + self._of(value) if value is not False else EMPTY
        return self._list("{", item, "}", 0, 0 if value is False else None)

    def _object(self, schema: Mapping[str, Any]) -> Expr:
        """Members in order, those that are not required optional; before the first there is no comma."""
        book, required = self._book, set(schema.get("required", ()))
        if isinstance(schema.get("additionalProperties"), Mapping) or required - set(schema["properties"]):
            raise book.error("members that `properties` does not name are not supported with gaps")
        first, later = EMPTY, EMPTY
        for key, value in reversed(schema["properties"].items()):
            member = self._kept(self._const(key) + self._sign(":") + self._of(value))
            ways_first, ways_later = [member + later], [self._sign(",") + member + later]
            if key not in required:
                ways_first, ways_later = [*ways_first, first], [*ways_later, later]
            first, later = book.either(ways_first), book.either(ways_later)
        return book.literal("{") + self._space + first + self._space + book.literal("}")


def anchored(book: RuleBook, pattern: str) -> str:
    """A pattern of a whole string none of whose characters needs an escape in JSON."""
    if not pattern.startswith("^") or not pattern.endswith("$") or "|" in pattern.replace("\\|", ""):
        raise book.error(f"the pattern {pattern!r:.60} must be ^…$, without | outside of groups")
    plain = _SAFE.sub("", pattern)
    if set(plain) & set('".\\') or "[^" in plain or any(sign < " " for sign in plain):
        raise book.error(f"the pattern {pattern!r:.60} could match what JSON escapes; it is not supported with gaps")
    return pattern
