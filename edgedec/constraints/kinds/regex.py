"""Text that a regular expression matches as a whole; without look-around and back references."""

from __future__ import annotations

from typing import Annotated

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.matcher import GrammarConstraint
from edgedec.constraints.vocabulary import vocabulary
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt

FACTS = ConstraintFacts(text="pattern", guided="regex")


def make(
    host: OpenedModel, pattern: Annotated[str, Opt("The whole text matches this regular expression.")]
) -> GrammarConstraint:
    """Text that a regular expression matches as a whole; without look-around and back references."""
    return GrammarConstraint.compile("regex", pattern, vocabulary(host))
