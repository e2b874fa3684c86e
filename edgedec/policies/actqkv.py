"""Pages that the latest queries ask for (ActQKV, K13): a probe query a head, a cut-off that layers find themselves.

The probe of a query head is the mean of its latest `window` queries, each weighted by how far it is
from their plain mean: what stands out says what is looked for. A page is worth the probe times its mean key. A layer
takes as many pages as its attention to pages is spread over (the exponential of the entropy), at most the budget: few
where it is sharp. Pages are chosen after a prompt and after every `every` tokens, and are the same for all rows until
then; the first and the latest tokens are read in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError, UsageError
from edgedec.policies import Chunk, PolicyHost, PolicyState
from edgedec.policies._budget import CacheBudget, budget_of
from edgedec.policies._eviction import checked
from edgedec.policies._views import Always, Viewing, Views, always_of
from edgedec.runtime import PAGE, Call, CallResult, Outputs, View

NEEDS = ("views", "queries", "merge")
Array = NDArray[np.float32]
Ints = NDArray[np.int64]
_ONE_HEAD = 1e-30


def make(
    host: PolicyHost, budget: float = 2048, every: int = 64, window: int = 8, sinks: int = 4, recent: int = 128
) -> ActQKV:
    """budget: tokens that a head reads in a step at most, a number or a share of the text; every: tokens between
    choices; window: queries that a probe is made of; sinks, recent: the first and the latest tokens, always read."""
    checked("actqkv", {"every": (every, 2, 1 << 16), "window": (window, 1, 128)})
    always = always_of("actqkv", sinks, recent)
    if not window < every <= recent:
        raise UsageError(f"--cache actqkv: every={every}: must be above window={window}, at most recent={recent}")
    return ActQKV(host, budget_of("actqkv", budget), always, every, window)


class ActQKV(Viewing):
    """`_chosen`: pages of each kv head by block, once they are chosen; `_queries`: the latest, [rows, heads, d]."""

    def __init__(self, host: PolicyHost, budget: CacheBudget, always: Always, every: int, window: int) -> None:
        super().__init__(host, budget, always)
        self._every, self._window = every, window
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
        """Pages by what the latest queries ask for; from here on queries are fresh ones."""
        pages = self.pages(cache.length)
        for b, queries in self._queries.items():
            means = page_means(cache.keys(b))
            worth = worth_of(probes(queries), means, self.spec.attention[b].scale)
            self._chosen[b] = best_pages(worth, means.shape[1] if pages is None else pages)
        self._queries, self._made = {}, (None, {})

    def views(self, cache: Cache) -> Views:
        return super().views(cache) if self._chosen else {}

    def view(self, block: int, pages: int | None) -> View | None:
        return View(*self.always, chosen=self._chosen[block]) if pages is not None and block in self._chosen else None

    # ---- the life of a text --------------------------------------------------------------------

    def reset(self) -> None:
        self._queries, self._chosen, self._made = {}, {}, (None, {})

    def trim(self, cache: Cache) -> None:
        full = {b: cache.slots(b) // PAGE for b in self._chosen}
        self._chosen = {b: [pages[pages < full[b]] for pages in heads] for b, heads in self._chosen.items()}
        self._made = None, {}

    def fork(self) -> ActQKV:
        twin = super().fork()
        assert isinstance(twin, ActQKV)
        twin._queries, twin._chosen = dict(self._queries), dict(self._chosen)
        return twin

    def state(self) -> PolicyState:
        chosen = {f"chosen.{b}.{h}": pages for b, heads in self._chosen.items() for h, pages in enumerate(heads)}
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
        return not len(array) or bool(array.min() >= 0 and array.max() < cache.slots(b) // PAGE)


def probes(queries: Array) -> Array:
    """queries [n, heads, d] -> one a head [heads, d]: weighted by their distance from the mean.

    queries 0 0 3 of one dimension: distances 1 1 2 from 1, probe (0 + 0 + 2 * 3) / 4 = 1.5
    """
    distance = np.linalg.norm(queries - queries.mean(axis=0), axis=2, keepdims=True) + np.float32(_ONE_HEAD)
    found: Array = (distance * queries).sum(axis=0) / distance.sum(axis=0)
    return found


def page_means(keys: Array) -> Array:
    """The mean key of each full page [kv_heads, pages, d]. keys [kv_heads, slots, d]."""
    heads, slots, d = keys.shape
    found: Array = keys[:, : slots // PAGE * PAGE].reshape(heads, -1, PAGE, d).mean(axis=2)
    return found


def worth_of(probe: Array, means: Array, scale: float) -> Array:
    """The share of attention that each kv head's probes pay to each page [kv_heads, pages], the mean over its group."""
    kv_heads, pages, d = means.shape
    scores = probe.reshape(kv_heads, -1, d) @ means.transpose(0, 2, 1) * np.float32(scale)
    if not pages:
        return np.zeros((kv_heads, 0), np.float32)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    found: Array = (weights / weights.sum(axis=2, keepdims=True)).mean(axis=1)
    return found


def best_pages(worth: Array, most: int) -> list[Ints]:
    """The pages of each head, ascending: as many as the layer's attention is spread over, at most `most`.

    worth 0.5 0.5 0 of one head, most 3 -> entropy ln 2, two pages: 0 1
    """
    entropy = -(worth * np.log(np.maximum(worth, _ONE_HEAD))).sum(axis=1).mean() if worth.size else 0.0
    count = min(most, int(np.ceil(np.exp(entropy) - 1e-3)), worth.shape[1])
    return [np.sort(np.argsort(-head, kind="stable")[:count]).astype(np.int64) for head in worth]
