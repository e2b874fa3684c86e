"""Policies that choose the slots to read by the latest queries, until the next choice; and the mean keys for it.

Choices come after a prompt and after every `every` tokens of the text, from the queries of the last `window` rows
before. Between two choices all rows see the same, beside the first and the latest tokens; no draft reaches beyond one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError, UsageError
from edgedec.policies import Chunk, PolicyHost, PolicyState
from edgedec.policies._budget import CacheBudget
from edgedec.policies._views import Always, Viewing, Views
from edgedec.runtime import PAGE, Call, CallResult, Outputs

NEEDS = ("views", "queries", "merge")
Array = NDArray[np.float32]
Ints = NDArray[np.int64]
LEAST_SHARE = 1e-30


def probing_of(name: str, every: int, window: int, sinks: int, recent: int) -> Always:
    """The slots that are always read; UsageError unless these options fit together."""
    if not window < every <= recent:
        raise UsageError(f"--cache {name}: every={every}: must be above window={window}, at most recent={recent}")
    return Always(sinks, recent)


class KeyMeans:
    """The mean key of each part of a text, by attention block; computed once as the text grows."""

    def __init__(self) -> None:
        self._known: dict[int, Array] = {}

    def of(self, cache: Cache, block: int, ends: Ints) -> Array:
        """[kv_heads, parts, d]; a part's slots end before `ends`, and begin where the one before it ends."""
        known = self._known.get(block)
        done = 0 if known is None else known.shape[1]
        if known is None or done < len(ends):
            start = int(ends[done - 1]) if done else 0
            new = part_means(cache.keys(block, start), np.diff(ends[done:], prepend=start))
            known = self._known[block] = new if known is None else np.concatenate([known, new], axis=1)
        return known[:, : len(ends)]

    def cut(self, parts: int) -> None:
        """Keep the first `parts` parts only."""
        self._known = {b: known[:, :parts] for b, known in self._known.items()}

    def fork(self) -> KeyMeans:
        twin = KeyMeans()
        twin._known = dict(self._known)
        return twin


def part_means(keys: Array, lengths: Ints) -> Array:
    """The mean of each part of keys [kv_heads, slots, d], of so many slots each -> [kv_heads, parts, d].

    keys 1 3 5 of one dimension, lengths 2 1 -> 2 5
    """
    if not len(lengths):
        return np.zeros((len(keys), 0, keys.shape[2]), np.float32)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    found: Array = np.add.reduceat(keys[:, : int(lengths.sum())], starts, axis=1)
    found /= lengths[:, None].astype(np.float32)
    return found


def worth_of(probe: Array, means: Array, scale: float) -> Array:
    """The share of attention that each kv head's probes [heads, d] pay to each mean key [kv_heads, parts], the mean
    over its group."""
    kv_heads, parts, d = means.shape
    scores = probe.reshape(kv_heads, -1, d) @ means.transpose(0, 2, 1) * np.float32(scale)
    if not parts:
        return np.zeros((kv_heads, 0), np.float32)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    found: Array = (weights / weights.sum(axis=2, keepdims=True)).mean(axis=1)
    return found


class Probing(Viewing):
    """`_chosen`: slots, or pages of `_UNIT` slots, of each kv head by block, once they are chosen; `_queries`: the
    latest, [rows, heads, d]; `_means`: of what may be chosen."""

    _UNIT = 1

    def __init__(self, host: PolicyHost, budget: CacheBudget, always: Always, every: int, window: int) -> None:
        super().__init__(host, budget, always)
        self._every, self._window, self._means = every, window, KeyMeans()
        self._queries, self._chosen = dict[int, Array](), dict[int, list[Ints]]()
        self._outputs = Outputs(queries=tuple(host.spec.attention))

    # ---- when ----------------------------------------------------------------------------------

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        if left > self._window:
            return Chunk(min(most, left - self._window))
        return Chunk(min(left, most), self._outputs)

    def read(self, cache: Cache, result: CallResult) -> None:
        self.observe(cache, result)

    def end(self, cache: Cache) -> None:
        self.choose(cache)

    def settle(self, cache: Cache) -> None:
        if cache.length % self._every == 0:
            self.choose(cache)

    def room(self, length: int) -> int:
        return max(0, self._every - length % self._every - self._window - 1)

    def shape(self, call: Call) -> Call:
        length = call.cache.length
        shaped = super().shape(call)
        if self._every - length % self._every > self._window:
            return shaped
        wanted = call.outputs._replace(queries=self._outputs.queries)
        return shaped._replace(blocks=None, hidden=None, outputs=wanted)

    def observe(self, cache: Cache, result: CallResult) -> None:
        for b, new in result.queries.items():
            known = self._queries.get(b)
            self._queries[b] = (new if known is None else np.concatenate([known, new]))[-self._window :]

    # ---- what ----------------------------------------------------------------------------------

    def choose(self, cache: Cache) -> None:
        """Choose by the latest queries, and reset them."""
        if self._queries and (pages := self.pages(cache.length)) is not None:
            ends = self.ends(cache)
            for b, queries in self._queries.items():
                self._chosen[b] = self.pick(cache, b, queries, ends, pages)
            self.chose(cache)
        self._queries, self._made = {}, (None, {})

    def ends(self, cache: Cache) -> Ints:
        """The parts of the text that may be chosen, each by the slot after its last one."""
        raise NotImplementedError

    def pick(self, cache: Cache, block: int, queries: Array, ends: Ints, pages: int) -> list[Ints]:
        """The slots or pages that each kv head of a block reads until the next choice, ascending, in the size of
        `pages` pages."""
        raise NotImplementedError

    def chose(self, cache: Cache) -> None:
        """Note that all blocks have a new choice."""

    def views(self, cache: Cache) -> Views:
        return super().views(cache) if self._chosen else {}

    # ---- the life of a text --------------------------------------------------------------------

    def reset(self) -> None:
        self._queries, self._chosen, self._made, self._means = {}, {}, (None, {}), KeyMeans()

    def trim(self, cache: Cache) -> None:
        held = {b: cache.slots(b) // self._UNIT for b in self._chosen}
        self._chosen = {b: [part[part < held[b]] for part in heads] for b, heads in self._chosen.items()}
        self._means.cut(int(np.searchsorted(self.ends(cache), cache.length, "right")))
        self._made = None, {}

    def fork(self) -> Self:
        twin = copy(self)
        twin._queries, twin._chosen, twin._means = dict(self._queries), dict(self._chosen), self._means.fork()
        return twin

    def state(self) -> PolicyState:
        chosen = {f"chosen.{b}.{h}": part for b, heads in self._chosen.items() for h, part in enumerate(heads)}
        return chosen | {f"queries.{b}": queries for b, queries in self._queries.items()}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        self.reset()
        for name, array in state.items():
            part, _, rest = name.partition(".")
            block, _, head = rest.partition(".")
            b = int(block) if block.isdigit() else -1
            if not self._fits(cache, part, b, head, array):
                self.reset()
                raise SessionError(f"{name}: the saved state is not of cache policy {self.name}")
            if part == "queries":
                self._queries[b] = np.array(array)
            else:
                self._chosen.setdefault(b, [np.zeros(0, np.int64)] * self.spec.attention[b].n_kv_heads)
                self._chosen[b][int(head)] = np.array(array)

    def _fits(self, cache: Cache, part: str, b: int, head: str, array: NDArray[Any]) -> bool:
        block = self.spec.attention.get(b)
        if block is None:
            return False
        if part == "queries" and not head:
            shape = (*array.shape[:1], block.n_heads, block.head_dim)
            return array.dtype == np.float32 and array.shape == shape and len(array) <= self._window
        known = part == "chosen" and head.isdigit() and int(head) < block.n_kv_heads
        if not known or array.dtype != np.int64 or array.ndim != 1:
            return False
        return not len(array) or bool(array.min() >= 0 and array.max() < cache.slots(b) // self._UNIT)


def page_ends(cache: Cache) -> Ints:
    """The full pages of a text that is kept whole, each by the slot after its last one."""
    return np.arange(PAGE, cache.length + 1, PAGE, dtype=np.int64)


def ranked(worth: Sequence[float] | Array) -> Ints:
    """Indices by descending worth; lower ones first among equals."""
    return np.argsort(-np.asarray(worth), kind="stable").astype(np.int64)
