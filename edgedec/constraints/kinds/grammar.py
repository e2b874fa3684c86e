"""Text of a context-free grammar, in Lark's notation (rule `start`) or llama.cpp's GBNF (rule `root`)."""

from __future__ import annotations

from typing import Annotated

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.matcher import GrammarConstraint
from edgedec.constraints.vocabulary import vocabulary
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt

# No file's name holds a rule.
FACTS = ConstraintFacts(text="text", inline=r"(?s:.*(::=|\n))|start:", guided="grammar")


def make(
    host: OpenedModel, text: Annotated[str, Opt("The text follows this grammar (Lark or GBNF).")]
) -> GrammarConstraint:
    """A context-free grammar, in Lark's notation (rule `start`) or llama.cpp's GBNF (rule `root`)."""
    return GrammarConstraint.compile("grammar", text, vocabulary(host))
