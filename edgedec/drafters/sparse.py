"""The model itself drafts, with a cache that a policy has pruned; the whole cache verifies. For long contexts.

Where a text is long, the time of a call is that of its keys and values, and most of them matter little for the next
token (MagicDec, TriForce; here any policy of `--cache`). The draft's cache is a fork of the text's, so that nothing is
read twice: the policy looks at its last rows, drops what they do not need, and only what stays is copied. It grows with
the text, and is made anew from the text's after `refresh` tokens. The text is what it is without drafts.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from edgedec.decoding.allocation import Offer
from edgedec.decoding.context import Context
from edgedec.decoding.keeping import settle
from edgedec.decoding.step import Completed, Request
from edgedec.drafters import Draft, DrafterContext, Proposal
from edgedec.drafters._reader import DraftReader
from edgedec.drafters._usage import usage_of
from edgedec.drafters.model import ModelDrafter
from edgedec.errors import UsageError
from edgedec.policies import FULL, CachePolicy, PolicyHost, make_policy

# The last rows of the text, which show a policy what matters.
_WINDOW = 32


def make(
    host: DrafterContext,
    policy: str = "snapkv",
    budget: float = 0.05,
    least: int = 2048,
    refresh: int = 256,
    gamma: int = 8,
    trim: float = 0.25,
) -> SparseDrafter:
    """policy, budget: of the draft's cache, as `--cache` takes them; least: nothing is drafted before the text is so
    long; refresh: tokens after which the draft's cache is made anew; gamma: the longest draft; trim: the share of the
    vocabulary to choose from at most."""
    if policy == FULL or least < 1 or refresh < 1:
        raise UsageError(
            f"drafter sparse: policy={policy}, least={least}, refresh={refresh}: needs a policy, and numbers from 1 on"
        )
    spec = host.runtime.spec
    pruner = make_policy(f"{policy}:budget={budget:g}", PolicyHost(spec, host.runtime.capabilities))
    assert pruner is not None
    drafter = SparseDrafter(SparseReader(host, pruner, refresh), spec.vocab_size, least, gamma)
    drafter.usage = usage_of(host, trim)
    return drafter


class SparseDrafter(ModelDrafter):
    """A `model` drafter whose model is the target. reader: of its pruned cache."""

    def __init__(self, reader: SparseReader, vocab: int, least: int, gamma: int) -> None:
        super().__init__(reader.runtime, vocab, gamma)
        self._sparse, self._reader, self._least = reader, reader, least

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        if context.cache.length < self._least or len(context.ids) != context.cache.length + 1:
            return Draft()
        return self._after(context, nodes, min_path_prob)

    def _after(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request | Offer, Any, Draft]:
        yield from self._sparse.follow(context)
        proposal = super().propose(context, nodes, min_path_prob)
        return proposal if isinstance(proposal, Draft) else (yield from proposal)

    def report(self) -> dict[str, Any]:
        return {**super().report(), **self._sparse.report()}


class SparseReader(DraftReader):
    """Reads with the target's runtime, on a pruned fork of the target's cache."""

    def __init__(self, host: DrafterContext, policy: CachePolicy, refresh: int) -> None:
        super().__init__(host.runtime)
        self.runtime, self._policy, self._refresh = host.runtime, policy, refresh
        self._made, self.forks = -1, 0

    def follow(self, context: Context) -> Generator[Request, Completed, None]:
        """Have a pruned cache of this text; a new one if there is none, or it is old."""
        length = context.cache.length
        if 0 <= self._made <= length < self._made + self._refresh:
            return
        window = min(_WINDOW, length - 1)
        policy = self._policy.fork()
        policy.reset()
        twin = Context(
            list(context.ids),
            0,
            context.cache.fork(length - window, context.cache.capacity),
            adapter=context.adapter,
            policy=policy,
        )
        yield from settle(twin, self._chunk)
        self._cache, self._ids, self._rows = twin.cache, list(context.ids[:length]), None
        self._sure, self._base, self._made = length, 0, length
        self._adapter = context.adapter
        self.forks += 1

    def reset(self) -> None:
        """Another text: its cache is another one."""
        self._made, self._sure, self._rows, self._ids = -1, 0, None, []
        self._cache = self.runtime.new_cache(1)

    def report(self) -> dict[str, Any]:
        return {"policy": self._policy.words, "caches": self.forks}
