"""The options of a draft model, and what is wrong with them."""

from __future__ import annotations

from edgedec.errors import UsageError

VERIFY = ("match", "token", "block", "spectr", "recursive", "multipath")
# At how many places, from the first on, there are `width` children.
BUSHY = {"spectr": 2, "recursive": 2, "multipath": 1}


def check(gamma: int, width: int, verify: str, beam: int, accept: str, stop: float, same_tokens: bool) -> None:
    """UsageError unless these go together; same_tokens: are the draft model's tokens the target's?"""
    if verify not in VERIFY:
        raise UsageError(f"draft model: verify={verify}: must be one of {', '.join(VERIFY)}")
    if not 1 <= gamma <= 64 or not 1 <= width <= 16:
        raise UsageError(f"draft model: gamma={gamma}, width={width}: must be from 1 to 64, and from 1 to 16")
    if not 0 <= beam <= 16 or (beam and verify != "recursive"):
        raise UsageError(f"draft model: beam={beam}: must be up to 16, and with verify=recursive")
    if accept not in ("claims", "head") or not 0 <= stop < 1:
        raise UsageError(f"draft model: accept={accept}, stop={stop}: must be claims or head, and from 0 to below 1")
    if verify != "match" and not same_tokens:
        raise UsageError(f"draft model: verify={verify} needs a draft model of the same tokenizer; use match")
