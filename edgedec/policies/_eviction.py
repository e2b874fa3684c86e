"""The common part of evicting policies: when attention is recorded, when decisions are made, and their state.

    prompt   chunk, chunk, ..., its last `window` rows looked at ─ decision ─ last token ─ steps
    steps    1 2 ... every-observe ..│ the last `observe` before a decision are looked at, one a call │ decision

Decisions come after every so many tokens of the text (`every`, 0: only after a prompt), and no draft reaches beyond
one: so a row's visible slots do not depend on drafting.

The first four slots stay in any case, which is ours: H2O, SnapKV, PyramidKV and PrefixKV do not say so, but attention
rests on them (StreamingLLM).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError, UsageError
from edgedec.policies import ANY_ROOM, Chunk, PolicyHost, PolicyState, TextSize, bytes_held
from edgedec.policies._admission import evicted_peak, whole_peak
from edgedec.policies._budget import CacheBudget, Floats, by_heads, dropped, pooled
from edgedec.runtime import Adapter, Call, CallResult, Outputs

_NONE, _ATTENTION = Outputs(), Outputs(attention=True)


class Looks(NamedTuple):
    """When a policy records attention and decides. window: the last rows of a prompt whose attention is recorded (0:
    all rows); every: tokens between decisions (0: only after a prompt); observe: recorded rows before each decision;
    pool: the width of the smoothing."""

    window: int = 0
    every: int = 0
    observe: int = 0
    pool: int = 1


class BasePolicy:
    """Reads in plain chunks and decides nothing."""

    name = words = ""

    def follow(self, ids: Sequence[int]) -> None:
        pass

    def prefill(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        yield from ()

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        return Chunk(min(left, most))

    def read(self, cache: Cache, result: CallResult) -> None:
        pass

    def end(self, cache: Cache) -> None:
        pass

    def settle(self, cache: Cache) -> None:
        pass

    def room(self, length: int) -> int:
        return ANY_ROOM

    def peak(self, text: TextSize) -> int:
        return whole_peak(text)

    def shape(self, call: Call) -> Call:
        return call

    def observe(self, cache: Cache, result: CallResult) -> None:
        pass

    def reset(self) -> None:
        pass

    def trim(self, cache: Cache) -> None:
        pass

    def fork(self) -> BasePolicy:
        return copy(self)

    def state(self) -> PolicyState:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        if state:
            raise SessionError(f"the saved state is not of cache policy {self.name}")

    def report(self, cache: Cache) -> dict[str, Any]:
        return {"policy": self.words, "lossy": True, **held(cache)}


class Eviction(BasePolicy):
    """A policy that evicts the slots with the least recorded attention."""

    sinks, recent = 4, 0
    # Chunks of a prompt between two decisions; 0: none before its end.
    chunks = 0

    def __init__(self, host: PolicyHost, budget: CacheBudget, looks: Looks, by_head: bool = False) -> None:
        """by_head: each kv head keeps slots of its own, where the block has no window."""
        self.spec, self.budget = host.spec, budget
        self._by_head = {b for b, block in self.spec.attention.items() if by_head and block.window is None}
        self.window, self.every, self.observed, self.width = looks
        self._scores: dict[int, Floats] = {}

    # ---- when ----------------------------------------------------------------------------------

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        if not self.window:
            return Chunk(min(left, most), _ATTENTION)
        if left > self.window:
            return Chunk(min(most, left - self.window))
        return Chunk(min(left, most), _ATTENTION)

    def read(self, cache: Cache, result: CallResult) -> None:
        self._look(result)

    def end(self, cache: Cache) -> None:
        self.decide(cache)

    def settle(self, cache: Cache) -> None:
        if self.every and cache.length % self.every == 0:
            self.decide(cache)

    def room(self, length: int) -> int:
        if not self.every:
            return ANY_ROOM
        return max(0, self.every - length % self.every - self.observed - 1)

    def _looks(self, length: int) -> bool:
        return bool(self.every) and self.every - length % self.every <= self.observed

    def shape(self, call: Call) -> Call:
        if not self._looks(call.cache.length):
            return call
        # Run the whole stack, even if a drafter has run the first blocks of the row.
        return call._replace(blocks=None, hidden=None, outputs=call.outputs._replace(attention=True))

    def observe(self, cache: Cache, result: CallResult) -> None:
        if result.attention:
            self._look(result)

    # ---- what ----------------------------------------------------------------------------------

    def _look(self, result: CallResult) -> None:
        """Add the rows' attention to the slots that they saw, including their own."""
        for b, paid in result.attention.items():
            new = by_heads(paid, self.width) if b in self._by_head else pooled(paid, self.width)
            if (old := self._scores.get(b)) is not None:
                new[..., : old.shape[-1]] += old
            self._scores[b] = new

    def score(self, cache: Cache, block: int) -> Floats:
        """The recorded attention of each slot [slots], or [kv_heads, slots] if heads keep slots of their own; 0 for
        slots after the last recorded row."""
        heads = (self.spec.attention[block].n_kv_heads,) if block in self._by_head else ()
        found = np.zeros((*heads, cache.slots(block)), np.float32)
        if (known := self._scores.get(block)) is not None:
            n = min(known.shape[-1], found.shape[-1])
            found[..., :n] = known[..., :n]
        return found

    def shares(self, cache: Cache) -> dict[int, int]:
        """The slots that each attention block may keep: the same number for all."""
        return dict.fromkeys(self.spec.attention, self.budget.of(cache.length))

    def most_kept(self, length: int) -> int:
        """An upper bound of the slots that a decision leaves in any block, in a text of up to `length` tokens
        (`shares`)."""
        return self.budget.of(length)

    def peak(self, text: TextSize) -> int:
        return evicted_peak(text, self.most_kept, self.every, self.chunks * text.chunk)

    def decide(self, cache: Cache) -> None:
        """Evict what is above the budget."""
        for b, keep in self.shares(cache).items():
            if cache.slots(b) > keep:
                self.evict(cache, b, keep)
        self.decided()

    def evict(self, cache: Cache, block: int, keep: int) -> None:
        scores, recent = self.score(cache, block), self.kept_recent(keep)
        left: Floats
        if block in self._by_head:
            by_head = np.stack([dropped(part, keep, self.sinks, recent) for part in scores])
            cache.drop_by_head(block, by_head)
            left = np.stack([np.delete(part, gone) for part, gone in zip(scores, by_head, strict=True)])
        else:
            gone = dropped(scores, keep, self.sinks, recent)
            cache.drop(block, gone)
            left = np.delete(scores, gone)
        if block in self._scores:
            self._scores[block] = left

    def kept_recent(self, keep: int) -> int:
        """The number of latest slots that always stay."""
        return max(self.recent, self.window)

    def decided(self) -> None:
        """Reset the recorded attention after a decision."""
        self._scores = {}

    # ---- the life of a text --------------------------------------------------------------------

    def reset(self) -> None:
        self._scores = {}

    def trim(self, cache: Cache) -> None:
        self._scores = {b: scores[..., : cache.slots(b)] for b, scores in self._scores.items()}

    def fork(self) -> Eviction:
        twin = copy(self)
        twin._scores = {b: scores.copy() for b, scores in self._scores.items()}
        return twin

    def state(self) -> PolicyState:
        return {f"scores.{b}": scores for b, scores in self._scores.items()}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        found: dict[int, Floats] = {}
        for name, scores in state.items():
            part, _, block = name.partition(".")
            b = int(block) if block.isdigit() else -1
            fits = b in self.spec.attention and scores.dtype == np.float32 and self._shaped(b, scores, cache.slots(b))
            if part != "scores" or not fits or not np.isfinite(scores).all():
                raise SessionError(f"{name}: the saved state is not of cache policy {self.name}")
            found[b] = np.array(scores)
        self._scores = found

    def _shaped(self, block: int, scores: NDArray[Any], held: int) -> bool:
        """Whether these are scores of a block with so many slots."""
        heads = (self.spec.attention[block].n_kv_heads,) if block in self._by_head else ()
        return scores.ndim == len(heads) + 1 and scores.shape[:-1] == heads and scores.shape[-1] <= held

    def report(self, cache: Cache) -> dict[str, Any]:
        return {"policy": self.words, "lossy": True, "budget": str(self.budget), **held(cache)}


def held(cache: Cache) -> dict[str, Any]:
    """Slots of all attention blocks that are kept, of those that the whole cache would have."""
    blocks = cache.spec.attention
    kept, whole = sum(cache.slots(b) for b in blocks), cache.length * len(blocks)
    return {"slots": kept, "of": whole, "share": round(kept / max(whole, 1), 4), "bytes": bytes_held(cache)}


def heads_of(name: str, heads: str, host: PolicyHost) -> bool:
    """Whether each kv head keeps slots of its own; UsageError if the engine does not support that."""
    if heads == "apart" and not host.capabilities.drop_by_head:
        raise UsageError(f"--cache {name}: heads=apart: this engine drops slots for all heads alike; use native")
    return heads == "apart"


def looks_of(name: str, looks: Looks) -> Looks:
    """The options of recording and decisions; UsageError unless they fit together."""
    if looks.every and not looks.observe < looks.every:
        raise UsageError(f"--cache {name}: observe={looks.observe}: must be below every={looks.every}")
    return looks
