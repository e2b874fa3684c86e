"""One of several texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.matcher import GrammarConstraint
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.text.tokenizer import one_line

FACTS = ConstraintFacts(text="texts", guided="choice")


def make(
    host: OpenedModel,
    texts: Annotated[tuple[str, ...], Opt('The text is one of these, a JSON list: ["yes", "no"].')],
) -> GrammarConstraint:
    return choices(host, texts)


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
