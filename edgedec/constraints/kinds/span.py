"""A span of a passage, letter for letter: extractive answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.automata.script import ScriptConstraint, ScriptPart
from edgedec.constraints.automata.spans import Span
from edgedec.constraints.automata.tokens import token_tree
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt

LARGEST = 1 << 15
# A file's name has no spaces in most places; a passage of one word is a file's name.
FACTS = ConstraintFacts(text="passage", inline=r"(?s:.*\s)", files=("passage",))


class _Whole:
    """The script: a span and nothing else."""

    first = "span"

    def __init__(self, passage: str) -> None:
        self._span = Span(passage)

    def part(self, plan: str) -> ScriptPart | None:
        return self._span if plan == "span" else None

    def then(self, plan: str, choice: int) -> Iterable[str]:
        return ("end",)


def make(
    host: OpenedModel, passage: Annotated[str, Opt("The text is a span of this passage, letter for letter.")]
) -> ScriptConstraint:
    """A span of a passage, letter for letter; an opening space is one of the passage's."""
    check_passage("span", passage)
    return ScriptConstraint("span", _Whole(passage), token_tree(vocabulary(host)))


def check_passage(what: str, passage: str) -> None:
    """UsageError for a passage without text, or above the limit."""
    if not isinstance(passage, str) or not passage:
        raise UsageError(f"{what}: the passage is empty: give the text that spans are taken from")
    if len(passage) > LARGEST:
        raise UsageError(f"{what}: a passage of {len(passage):,} characters; at most {LARGEST:,} are allowed")
    try:
        passage.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what}: the passage is no text: {error.reason}") from None
