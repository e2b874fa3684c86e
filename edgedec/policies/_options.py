"""Options that several policies have, declared once."""

from __future__ import annotations

from typing import Annotated, Literal

from edgedec.plugins import Opt
from edgedec.policies._budget import LEAST
from edgedec.runtime import PAGE


def budget(value: float) -> str | None:
    """The rule for a budget as an error message; None if the value is valid."""
    if 0 < value <= 1 or value >= LEAST:
        return None
    return f"a share of the tokens (above 0, up to 1) or a number of tokens from {LEAST} on"


Budget = Annotated[float, Opt("Cached tokens of each block: a number, or a share of the text.", must=budget)]
MeanBudget = Annotated[
    float, Opt("Cached tokens in the mean of all blocks: a number, or a share of the text.", must=budget)
]
ReadBudget = Annotated[
    float, Opt("Tokens that a head reads in a step at most: a number, or a share of the text.", must=budget)
]
Window = Annotated[int, Opt("Rows of the prompt's end whose attention decides.", 1, 128)]
Pool = Annotated[int, Opt("Neighbouring tokens whose attention is averaged.", 1, 255)]
Every = Annotated[int, Opt("Tokens between decisions while generating; 0: after the prompt only.", 0, 1 << 20)]
EveryOften = Annotated[int, Opt("Tokens between decisions.", 1, 1 << 20)]
Observe = Annotated[int, Opt("Rows before each decision whose attention counts.", 0, 1 << 10)]
Heads = Annotated[
    Literal["alike", "apart"], Opt("Slots of kv heads; apart: each head keeps its own, as many as the others.")
]
Sinks = Annotated[int, Opt("First tokens, which are always read.", 0, 1 << 16)]
Recent = Annotated[int, Opt("Latest tokens, which are always read.", PAGE, 1 << 16)]
ChoiceEvery = Annotated[int, Opt("Tokens between choices; at most `recent`.", 2, 1 << 16)]
Queries = Annotated[int, Opt("Latest queries that choose; below `every`.", 1, 128)]
