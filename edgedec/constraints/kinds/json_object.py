"""Any JSON object."""

from __future__ import annotations

from typing import Annotated

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.kinds.json_schema import BOUNDED, SPACE, Whitespace, json_schema
from edgedec.constraints.matcher import GrammarConstraint
from edgedec.opened import OpenedModel

FACTS = ConstraintFacts(guided="json_object")


def make(
    host: OpenedModel,
    *,
    whitespace: Annotated[Whitespace, SPACE] = "space",
    bounded: Annotated[bool, BOUNDED] = True,
) -> GrammarConstraint:
    """Any JSON object."""
    return json_schema(host, {"type": "object"}, whitespace=whitespace, bounded=bounded)
