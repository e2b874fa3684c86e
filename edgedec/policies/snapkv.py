"""Keeps the prompt's slots with the most attention from its last rows (SnapKV).

Li et al. 2024. The last `window` rows of a prompt show what the answer will look at. What stands beside such a slot
stays with it (`pool`). A slot stays for all heads of a block or for none, unless `heads` is set. With `every`, the
generated text is pruned in the same way after each so many tokens; without it only prompts are.
"""

from __future__ import annotations

from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._budget import CacheBudget
from edgedec.policies._eviction import Eviction, Looks, heads_of, looks_of
from edgedec.policies._options import Budget, Every, Heads, Observe, Pool, Window

FACTS = PolicyFacts(("drop", "attention_sums"), paper="SnapKV")


def make(
    host: PolicyHost,
    budget: Budget = 0.2,
    window: Window = 32,
    pool: Pool = 7,
    every: Every = 0,
    observe: Observe = 8,
    heads: Heads = "alike",
) -> SnapKV:
    looks = looks_of("snapkv", Looks(window, every, observe, pool))
    return SnapKV(host, CacheBudget(budget), looks, heads_of("snapkv", heads, host))


class SnapKV(Eviction):
    """`Eviction` by the attention of a prompt's last rows."""
