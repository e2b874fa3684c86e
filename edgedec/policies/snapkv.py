"""What the end of the prompt looks at (SnapKV): of the prompt's keys and values those stay that its last rows paid to.

Li et al. 2024. The last `window` rows of a prompt show what the answer will look at. What stands beside such a slot
stays with it (`pool`). A slot stays for all heads of a block or for none, unless `heads` says apart. With `every`, the
generated text is pruned in the same way after each so many tokens; without it only prompts are.
"""

from __future__ import annotations

from edgedec.policies import PolicyHost
from edgedec.policies._budget import budget_of
from edgedec.policies._eviction import Eviction, Looks, heads_of, looks_of

NEEDS = ("drop", "attention_sums")

LEAST_LOOKS = Looks(window=1)


def make(
    host: PolicyHost,
    budget: float = 0.2,
    window: int = 32,
    pool: int = 7,
    every: int = 0,
    observe: int = 8,
    heads: str = "alike",
) -> SnapKV:
    """budget: a share of the tokens, or a number; window: rows of the prompt's end that are looked at; pool:
    neighbours that count together; every, observe: also while generating, see docs/long-context.md; heads: alike, or
    apart: each kv head keeps slots of its own, as many as the others."""
    looks = looks_of("snapkv", Looks(window, every, observe, pool), LEAST_LOOKS)
    return SnapKV(host, budget_of("snapkv", budget), looks, heads_of("snapkv", heads, host))


class SnapKV(Eviction):
    """As `Eviction` does, from the looks at a prompt's end."""
