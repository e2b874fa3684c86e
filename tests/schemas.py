"""JSON schemas that others wrote: a collection from practice, and the official test suite, feature by feature."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

from edgedec.constraints.matcher import GrammarConstraint
from edgedec.model import Model

_ORDERS = 200


@dataclass(frozen=True)
class Group:
    """A schema of the test suite and what it allows: (description, instance, is it valid)."""

    feature: str
    description: str
    schema: Any
    tests: tuple[tuple[str, Any, bool], ...]


def collection(file: Path) -> list[tuple[str, Any]]:
    """(name, schema)."""
    return [(line["id"], line["schema"]) for line in map(json.loads, file.read_text("utf-8").splitlines())]


def suite(folder: Path) -> Iterator[Group]:
    """The groups of one draft; what the standard leaves optional is left out."""
    for file in sorted(folder.glob("*.json")):
        for group in json.loads(file.read_text("utf-8")):
            tests = tuple((test["description"], test["data"], test["valid"]) for test in group["tests"])
            yield Group(file.stem, group["description"], group["schema"], tests)


def follows(model: Model, constraint: GrammarConstraint, text: str) -> bool:
    """May `text` be generated, as the tokenizer spells it, and end there?"""
    constraint.reset()
    ids = model.tokenizer.encode(text, special=False, around=False)
    for token in ids:
        if not constraint.mask(())[token]:
            return False
        constraint.accept(token)
    return bool(constraint.mask(())[list(model.eos)].any())


def accepts(model: Model, constraint: GrammarConstraint, instance: Any) -> bool:
    """May this instance be generated, in some order of its keys?"""
    return any(
        follows(model, constraint, json.dumps(order, ensure_ascii=False)) for order in islice(orders(instance), _ORDERS)
    )


def orders(instance: Any) -> Iterator[Any]:
    """The same instance with the keys of its objects in every order."""
    if isinstance(instance, list):
        yield from map(list, product(*[list(islice(orders(item), 24)) for item in instance]))
    elif isinstance(instance, dict):
        for keys in permutations(instance):
            yield from (
                dict(zip(keys, values))
                for values in product(*[list(islice(orders(instance[key]), 24)) for key in keys])
            )
    else:
        yield instance


def feature(message: str) -> str:
    """What a schema was refused for, from the words of the refusal."""
    message = message.removeprefix("json schema: ")
    if found := re.match(r"Unimplemented keys: (\[.*\])", message):
        return ", ".join(json.loads(found[1]))
    kinds = {
        "oneOf": r"oneOf constraints",
        "look-around in a pattern": r"look-(around|ahead|behind)",
        "back reference in a pattern": r"backreference",
        "pattern": r"regex parse error|regex",
        "reference elsewhere": r"is not present in a registry|retriev",
        "nothing validates": r"^Unsatisfiable",
        "format": r"^Unknown format",
    }
    return next((name for name, words in kinds.items() if re.search(words, message)), message[:60])
