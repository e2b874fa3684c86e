"""Options that several drafters have, declared once."""

from __future__ import annotations

from typing import Annotated, Literal

from edgedec.decoding.verify import FAMILY as VERIFIERS
from edgedec.errors import UsageError
from edgedec.plugins import Opt

# Children of a node, and sequences of a beam, of a draft model.
WIDEST = 16
# The default of `trim`.
TRIM = 0.25
# Verification that compares drafted tokens with the target's own choices, for any draft.
MATCH = "match"


def verification(value: str) -> str | None:
    """The allowed names of a verification as an error message; None if the value is one."""
    names = (MATCH, *VERIFIERS.shipped)
    return None if value in names else f"one of {', '.join(names)}"


def named(value: str) -> str | None:
    """The rule for a file's name as an error message; None if the value is valid."""
    return None if value else "a file"


def unused(drafter: str, beside: str, **options: tuple[object, object]) -> None:
    """UsageError for the first of these options (value, default) that was given, but has no effect beside another."""
    for name, (value, default) in options.items():
        if value != default:
            raise UsageError(f"drafter {drafter}: {name}={value}: has no effect with {beside}; leave one of them out")


# A name for one thing: how many tokens ahead a draft goes. Chains called it gamma, heads depth.
Length = Annotated[int, Opt("Longest draft, in tokens.", 1, 64, aliases=("gamma",))]
TrainedLength = Annotated[
    int, Opt("Longest draft, in tokens; 0: as many as the head was trained for.", 0, 64, aliases=("depth", "gamma"))
]
TableNodes = Annotated[int, Opt("Tokens of the draft tree.", 1)]
Choices = Annotated[str, Opt("JSON file of a fixed tree: paths of ranks, as [[0], [0, 0], [1]].")]
Beam = Annotated[int, Opt("Nodes that are run at once.", 1)]
Followers = Annotated[int, Opt("Tokens tried after each.", 1)]
Threshold = Annotated[float, Opt("Least confidence to draft a token with.", 0, 1)]
Width = Annotated[int, Opt("Tokens of a level of the tree.", 1, 4)]
Trim = Annotated[float, Opt("Largest share of the vocabulary to choose from: the tokens used most.", above=0, high=1)]
Threads = Annotated[int, Opt("CPU threads of the draft model; 0: the drafter's default.", 0, 1024)]
Least = Annotated[int, Opt("Nothing is drafted before the text has so many tokens.", 0)]
PromptRowsRead = Annotated[int, Opt("The last so many rows of a prompt are learned from as well.", 0)]
Bundle = Annotated[str, Opt("Folder of the draft model's bundle; by default the one in the target's bundle.")]
KVFormat = Annotated[Literal["", "f32", "f16", "int8", "int4"], Opt("Cache format of the draft model.")]
Verify = Annotated[str, Opt("Verification: match, or of tokens drawn by the draft model.", must=verification)]
