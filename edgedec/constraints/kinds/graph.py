"""A query of a graph of triples that has an answer in it: names may only be items connected to those chosen."""

from __future__ import annotations

from typing import Annotated

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.automata.graph import QueryScript, TripleGraph
from edgedec.constraints.automata.script import ScriptConstraint
from edgedec.constraints.automata.tokens import token_tree
from edgedec.constraints.matcher import LARGEST_TEXT
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt

FACTS = ConstraintFacts(text="triples", inline=r"(?s:.*\t)", files=("triples", "labels"))


def make(
    host: OpenedModel,
    triples: Annotated[str, Opt("The text is a query of this graph: lines of head, relation and tail, with tabs.")],
    labels: Annotated[str, Opt("Names of its identifiers: lines of identifier and name, with a tab.")] = "",
    most: Annotated[int, Opt("Triples of a query at most.", 1, 8)] = 3,
) -> ScriptConstraint:
    """A query of a graph that has an answer in it (SPARKLE); `automata.graph.TripleGraph.answers` finds the answers."""
    if len(triples) + len(labels) > LARGEST_TEXT:
        raise UsageError(f"graph: {len(triples) + len(labels):,} characters; at most {LARGEST_TEXT:,} are allowed")
    return ScriptConstraint("graph", QueryScript(TripleGraph.read(triples, labels), most), token_tree(vocabulary(host)))
