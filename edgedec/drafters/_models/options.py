"""Checks of the options of a draft model."""

from __future__ import annotations

from edgedec.decoding.verify import FAMILY as VERIFIERS
from edgedec.drafters._options import MATCH
from edgedec.errors import UsageError


def check(verify: str, beam: int, same_tokens: bool) -> None:
    """UsageError unless these options go together; same_tokens: are the draft model's tokens the target's?"""
    if beam and verify != "recursive":
        raise UsageError(f"draft model: beam={beam}: goes with verify=recursive")
    if verify != MATCH and not same_tokens:
        raise UsageError(f"draft model: verify={verify} needs a draft model of the same tokenizer; use match")


def bushy_places(verify: str) -> int:
    """The number of places, from the first on, at which a draft for this verification has several children."""
    return 0 if verify == MATCH else VERIFIERS.facts(verify).bushy
