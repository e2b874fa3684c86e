"""Constraints in flags, requests and rows of a batch: the kind and its text, by field name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from edgedec.constraints import FAMILY
from edgedec.constraints.kinds.product import product
from edgedec.decoding.constraint import Constraint
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import PluginChoice, PluginOption
from edgedec.text.tokenizer import one_line

# vLLM's object of constraints, by its own names for the kinds: {"regex": "[0-9]+"}.
STRUCTURED = "structured_outputs"
PRODUCT = "product"


class GivenConstraint(NamedTuple):
    """A constraint that is not compiled yet. text: of the kind's main option; field: its name in the request, for
    messages."""

    kind: str
    text: str
    field: str = ""


@cache
def text_options() -> dict[str, PluginOption]:
    """The main option of each kind that a request's field or a column of the kind's name gives."""
    facts = FAMILY.all_facts()
    return {kind: FAMILY.options(kind)[known.text] for kind, known in facts.items() if known.text and known.request}


@cache
def flag_options() -> dict[str, PluginOption]:
    """The main option of each kind that has a flag."""
    facts = FAMILY.all_facts()
    return {kind: FAMILY.options(kind)[known.text] for kind, known in facts.items() if known.text and known.flag}


@cache
def guided_kinds() -> dict[str, str]:
    """The kind of each of vLLM's names: {"choice": "choices", …}."""
    return {facts.guided: kind for kind, facts in FAMILY.all_facts().items() if facts.guided}


@cache
def fields() -> dict[str, str]:
    """The kind of each field of a request: fields with the kinds' names, and vLLM's `guided_…`."""
    return {kind: kind for kind in text_options()} | {f"guided_{name}": kind for name, kind in guided_kinds().items()}


def schema(kind: str) -> dict[str, Any]:
    """JSON schema of the value of a kind's field."""
    facts, option = FAMILY.facts(kind), text_options().get(kind)
    if option is None:
        return {"type": "boolean", "description": FAMILY.summary(kind)}
    found = option.schema()
    if not facts.json:
        return found
    return {"anyOf": [{"type": "object"}, {"type": "boolean"}, found], "description": option.opt.help}


def structured_schema() -> dict[str, Any]:
    """JSON schema of `structured_outputs`."""
    kinds = {name: schema(kind) for name, kind in guided_kinds().items()}
    return {"type": "object", "properties": kinds, "additionalProperties": False}


def read(body: Mapping[str, Any]) -> GivenConstraint | None:
    """The constraint of a request's body, the product of several; UsageError if a text is not of its kind."""
    given = [(name, kind, body[name]) for name, kind in fields().items() if body.get(name) is not None]
    inner = body.get(STRUCTURED) or {}
    for name, kind in guided_kinds().items():
        if inner.get(name) is not None:
            given.append((f"{STRUCTURED}.{name}", kind, inner[name]))
    found = [one for item in given if (one := _read(*item)) is not None]
    return joined(found)


def joined(given: Sequence[GivenConstraint]) -> GivenConstraint | None:
    """The constraint given, or the product of several."""
    if len(given) < 2:
        return given[0] if given else None
    parts = [part for one in given for part in (json.loads(one.text) if one.kind == PRODUCT else [_words(one)])]
    return GivenConstraint(PRODUCT, json.dumps(parts), " and ".join(one.field or one.kind for one in given))


def _words(one: GivenConstraint) -> str:
    """A constraint in words, which are JSON."""
    option = FAMILY.facts(one.kind).text
    return json.dumps({"name": one.kind, **({option: one.text} if option else {})})


def text_of(kind: str, value: Any, field: str = "") -> str:
    """The text of a kind from a JSON value; UsageError with the field's name if the value is not supported."""
    if isinstance(value, dict | bool) and FAMILY.facts(kind).json:
        return json.dumps(value)
    if isinstance(value, list) and text_options()[kind].schema()["type"] == "array":
        return json.dumps(value)
    if not isinstance(value, str):
        raise UsageError(f"{field or kind}: must be text, not {type(value).__name__}")
    return value


def inline(kind: str, value: str) -> bool:
    """Whether a flag's value is the text itself, not a file's name."""
    return re.match(FAMILY.facts(kind).inline, value) is not None


def compiled(model: OpenedModel, kind: str, text: str) -> Constraint:
    """The compiled constraint; UsageError for unsupported features."""
    option = FAMILY.facts(kind).text
    made: Constraint = FAMILY.make(kind, model, {option: text} if option else {})
    return made


def made(model: OpenedModel, words: str) -> Constraint:
    """The constraint of a string such as "regex:pattern='[0-9]+'"."""
    chosen = [PluginChoice(name, _with_file(name, options)) for name, options in FAMILY.parse(words)]
    found: list[Constraint] = [FAMILY.make(name, model, options) for name, options in chosen]
    return found[0] if len(found) == 1 else product([name for name, _ in chosen], found)


def _with_file(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose files are read, as a flag's are, where a kind's texts are mostly files."""
    facts, found = FAMILY.facts(kind), dict(options)
    for name in facts.files:
        value = found.get(name)
        if isinstance(value, str) and value and not re.match(facts.inline, value):
            found[name] = read_file(f"{FAMILY.title} {kind}", value)
    return found


def read_file(where: str, path: str) -> str:
    """The text of a file; UsageError with what is wrong with it."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{where}: {path}: {one_line(error)}") from None


def _read(field: str, kind: str, value: Any) -> GivenConstraint | None:
    if kind in text_options():
        return GivenConstraint(kind, text_of(kind, value, field), field)
    if not isinstance(value, bool):
        raise UsageError(f"{field}: must be true or false")
    return GivenConstraint(kind, "", field) if value else None
