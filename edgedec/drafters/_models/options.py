"""Checks of the options of a draft model: a combination is done, or refused in one line."""

from __future__ import annotations

from edgedec.decoding.verify import FAMILY as VERIFIERS
from edgedec.drafters._options import MATCH, unused
from edgedec.errors import UsageError

# Children of a node of a draft for several paths, if their number is not given.
_WIDE = 2


def check(verify: str, beam: int, same_tokens: bool) -> None:
    """UsageError unless these options go together; same_tokens: are the draft model's tokens the target's?"""
    if beam and verify != "recursive":
        raise UsageError(f"draft model: beam={beam}: goes with verify=recursive")
    if verify != MATCH and not same_tokens:
        raise UsageError(f"draft model: verify={verify} needs a draft model of the same tokenizer; use match")


def bushy_places(verify: str) -> int:
    """The number of places, from the first on, at which a draft for this verification has several children."""
    return 0 if verify == MATCH else VERIFIERS.facts(verify).bushy


def children_for(verify: str, width: int, beam: int) -> int:
    """How many children the first places have (0: chosen here); UsageError where the verification has no use for them,
    or would be that of a chain under another name."""
    if beam:
        if width:
            raise UsageError(f"draft model: width={width}: beam={beam} is the shape of the tree; give one of them")
        if beam == 1:
            raise UsageError("draft model: beam=1: is a chain; give 2 or more, or use verify=token")
        return 1
    if not bushy_places(verify):
        if width > 1:
            many = [name for name in VERIFIERS.shipped if bushy_places(name)]
            raise UsageError(f"draft model: width={width}: verify={verify} has one; use verify={', '.join(many)}")
        return 1
    if width == 1:
        chain = "block" if verify == "multipath" else "token"
        raise UsageError(f"draft model: width=1: verify={verify} of one path is {chain}; give 2 or more, or {chain}")
    return width or _WIDE


def check_likeliest(verify: str, same_tokens: bool, **options: tuple[object, object]) -> None:
    """UsageError for options (value, default) of likeliest tokens where tokens are drawn, or translated."""
    if verify != MATCH:
        unused("model", f"verify={verify}", **options)
    if not same_tokens:
        unused("model", "a draft model of another tokenizer", **options)
