"""JSON that a schema describes, object keys in the schema's order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.bounded import BoundedConstraint
from edgedec.constraints.matcher import GrammarConstraint
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.text.tokenizer import one_line

FACTS = ConstraintFacts(text="schema", inline=r"\s*\{", json=True, guided="json")
Whitespace = Literal["none", "space", "any"]
SPACE = Opt('Between JSON\'s tokens: "none", "space" (one at most), or "any", in which small models lose themselves.')
BOUNDED = Opt("Numbers have at most 20 digits, and strings leave tokens for the rest, so that the text is whole.")
# A member of a schema that says so in every interface.
_KEY = "x-bounded"
_SPACES: dict[str, dict[str, object]] = {
    "none": {"whitespace_flexible": False},
    "space": {"whitespace_flexible": True, "whitespace_pattern": " "},
    "any": {"whitespace_flexible": True},
}


def make(
    host: OpenedModel,
    schema: Annotated[str, Opt("The text is JSON that follows this schema.")],
    whitespace: Annotated[Whitespace, SPACE] = "space",
    lenient: Annotated[bool, Opt("Pass over what no grammar can hold; then the text need not validate.")] = False,
    bounded: Annotated[bool, BOUNDED] = True,
) -> GrammarConstraint:
    return json_schema(host, schema, whitespace=whitespace, lenient=lenient, bounded=bounded)


def json_schema(
    model: OpenedModel,
    schema: Mapping[str, Any] | bool | str,
    *,
    whitespace: Whitespace = "space",
    lenient: bool = False,
    bounded: bool = True,
) -> GrammarConstraint:
    """JSON that a schema describes (a mapping, or its text), object keys in the schema's order.

    whitespace: between JSON's tokens at most one space, "none", or "any" amount, in which small models lose
    themselves. lenient: pass over keywords that no grammar can hold, and read oneOf as anyOf, instead of
    refusing; then the output need not validate. bounded: numbers have at most 20 digits, and strings end where the
    tokens that are left are needed for the rest; "x-bounded": false in the schema means bounded=False.
    """
    if whitespace not in _SPACES:
        raise UsageError(f"whitespace {whitespace!r}: must be one of {', '.join(_SPACES)}")
    if isinstance(schema, str):
        schema = _parsed(schema)
    if not isinstance(schema, bool | Mapping):
        raise UsageError(f"json schema: must be an object or true or false, not {type(schema).__name__}")
    if schema is False:
        raise UsageError("json schema: false allows nothing")
    # Set explicitly, so that an "x-guidance" inside a schema cannot override them.
    options: dict[str, Any] = {**_SPACES[whitespace], "lenient": lenient, "coerce_one_of": lenient}
    try:
        text = json.dumps({} if schema is True else schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"json schema: {one_line(error)}") from None
    found = GrammarConstraint.compile("json schema", text, vocabulary(model), options)
    return BoundedConstraint.of(found, model) if bounded and wants_bounds(schema) else found


def wants_bounds(schema: Mapping[str, Any] | bool) -> bool:
    """Whether a schema does not refuse to be bounded."""
    return isinstance(schema, bool) or schema.get(_KEY) is not False


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise UsageError("json schema: is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"json schema: not JSON: {one_line(error)}") from None
