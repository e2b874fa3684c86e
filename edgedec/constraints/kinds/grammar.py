"""Text of a context-free grammar, in Lark's notation (rule `start`) or llama.cpp's GBNF (rule `root`)."""

from __future__ import annotations

from typing import Annotated

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.grammars import shipped, shipped_grammar
from edgedec.constraints.matcher import GrammarConstraint
from edgedec.constraints.vocabulary import vocabulary
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt

# No file's name holds a rule.
FACTS = ConstraintFacts(
    text="text", inline=rf"(?s:.*(::=|\n))|start:|({'|'.join(shipped())})$", guided="grammar", files=("text",)
)


def make(
    host: OpenedModel,
    text: Annotated[str, Opt(f"The text follows this grammar: Lark, GBNF, or one by name: {', '.join(shipped())}.")],
) -> GrammarConstraint:
    """A context-free grammar, in Lark's notation (rule `start`) or llama.cpp's GBNF (rule `root`), or the name of one
    that ships."""
    found = shipped_grammar(text) if text in shipped() else text
    return GrammarConstraint.compile("grammar", found, vocabulary(host))
