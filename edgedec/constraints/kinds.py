"""The kinds of constraints: a JSON schema, any JSON object, a regular expression, a grammar, a list of choices.

Each is compiled before anything is generated; what cannot be followed to the letter is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from edgedec.constraints.matcher import GrammarConstraint
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import UsageError
from edgedec.text.tokenizer import one_line

if TYPE_CHECKING:
    from edgedec.opened import OpenedModel

Whitespace = Literal["none", "space", "any"]
_SPACES: dict[str, dict[str, object]] = {
    "none": {"whitespace_flexible": False},
    "space": {"whitespace_flexible": True, "whitespace_pattern": " "},
    "any": {"whitespace_flexible": True},
}


def json_schema(
    model: OpenedModel,
    schema: Mapping[str, Any] | bool | str,
    *,
    whitespace: Whitespace = "space",
    lenient: bool = False,
) -> GrammarConstraint:
    """JSON that a schema describes (a mapping, or its text), object keys in the schema's order.

    whitespace: between JSON's tokens at most one space, "none", or "any" amount, in which small models lose
    themselves. lenient: pass over keywords that no grammar can hold, and read oneOf as anyOf, instead of
    refusing; then the output need not validate.
    """
    if whitespace not in _SPACES:
        raise UsageError(f"whitespace {whitespace!r}: must be one of {', '.join(_SPACES)}")
    if isinstance(schema, str):
        schema = _parsed(schema)
    if not isinstance(schema, bool | Mapping):
        raise UsageError(f"json schema: must be an object or true or false, not {type(schema).__name__}")
    if schema is False:
        raise UsageError("json schema: false allows nothing")
    # Said outright, so that an "x-guidance" inside a schema loosens nothing.
    options: dict[str, Any] = {**_SPACES[whitespace], "lenient": lenient, "coerce_one_of": lenient}
    try:
        text = json.dumps({} if schema is True else schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"json schema: {one_line(error)}") from None
    return GrammarConstraint.compile("json schema", text, vocabulary(model), options)


def json_object(model: OpenedModel, *, whitespace: Whitespace = "space") -> GrammarConstraint:
    """Any JSON object."""
    return json_schema(model, {"type": "object"}, whitespace=whitespace)


def regex(model: OpenedModel, pattern: str) -> GrammarConstraint:
    """Text that a regular expression matches as a whole; without look-around and back references."""
    return GrammarConstraint.compile("regex", pattern, vocabulary(model))


def grammar(model: OpenedModel, text: str) -> GrammarConstraint:
    """A context-free grammar, in Lark's notation (rule `start`) or llama.cpp's GBNF (rule `root`)."""
    return GrammarConstraint.compile("grammar", text, vocabulary(model))


def choices(model: OpenedModel, options: Sequence[str]) -> GrammarConstraint:
    """One of several texts."""
    if isinstance(options, str) or not options or not all(isinstance(option, str) for option in options):
        raise UsageError(f"choices: {options!r} must be a list of at least one text")
    # A JSON string is a Lark string, if nothing but ASCII stands in it.
    try:
        lark = "start: " + " | ".join(json.dumps(option) for option in dict.fromkeys(options))
        lark.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"choices: {one_line(error)}") from None
    return GrammarConstraint.compile("choices", lark, vocabulary(model))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise UsageError("json schema: is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"json schema: not JSON: {one_line(error)}") from None
