"""Scores one key for a run of similar ones, in prompts and in steps (DeltaLLM).

Qi et al. 2025; read was the abstract. Neighbouring keys are alike, so that of the difference to the key before only the
large ones are kept, outside the latest tokens; a difference that is set to zero leaves the score as it was. Here that
is decided key by key: a key near the first of its run (up to `span` of a page) has the score of that one. The share
`budget` of the older keys is scored: of the paper's 57 % that need not be, both phases have their part. Instead of
multiplying sparse differences, which a CPU's vectors would not be quicker with, the first keys of runs and the sums of
their values lie side by side: the engine adds them up once, and keeps them until the text is cut.

Not found: the thresholds and the window. How near is near is found by bisection, for each page and kv head, so that the
share is kept; the window is `recent`, and the first `sinks` tokens are scored one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.policies import ANY_ROOM, PolicyFacts, PolicyHost
from edgedec.policies._budget import CacheBudget
from edgedec.policies._options import Recent, Sinks
from edgedec.policies._views import Always, ViewedReading, Views
from edgedec.runtime import PAGE, View

Array = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
# Of the distances of a page's keys, sorted.
_BISECTIONS = PAGE.bit_length() - 1

FACTS = PolicyFacts(("views", "merge"), paper="DeltaLLM")


def make(
    host: PolicyHost,
    budget: Annotated[float, Opt("Share of the keys that is scored; at least 1/span.", above=0, high=1)] = 0.4,
    sinks: Sinks = 64,
    recent: Recent = 256,
    span: Annotated[int, Opt(f"Keys that one may stand for; divides {PAGE}.", 2, PAGE)] = 16,
) -> DeltaLLM:
    if PAGE % span or budget < 1 / span:
        raise UsageError(
            f"--cache deltallm: budget={budget:g}, span={span}: span must divide {PAGE}, budget be from 1/span to 1"
        )
    return DeltaLLM(host, CacheBudget(budget), Always(sinks, recent), span)


class DeltaLLM(ViewedReading):
    """`_runs`: of each attention block, the first slots of runs and their lengths, by kv head, of whole pages."""

    def __init__(self, host: PolicyHost, budget: CacheBudget, always: Always, span: int) -> None:
        super().__init__(host, budget, always)
        self._span, self._pages = span, 0
        self._runs: dict[int, list[tuple[Ints, Ints]]] = {}

    def reading(self, cache: Cache) -> Views:
        self._read(cache)
        return {b: self._view(heads, group=0) for b, heads in self._runs.items()}

    def views(self, cache: Cache) -> Views:
        self._read(cache)
        if self._made[0] != self._pages:
            self._made = self._pages, {b: self._view(heads, group=1) for b, heads in self._runs.items()}
        return self._made[1]

    def room(self, length: int) -> int:
        return self.always.recent if self.budget.value < 1 else ANY_ROOM

    def _view(self, heads: list[tuple[Ints, Ints]], group: int) -> View:
        slots, runs = ([head[i] for head in heads] for i in range(2))
        return View(*self.always, slots=slots, runs=runs, group=group)

    def _read(self, cache: Cache) -> None:
        """Find the runs of the pages that are full now."""
        done, pages = self._pages, cache.length // PAGE if self.budget.value < 1 else 0
        for b, block in self.spec.attention.items() if pages > done else ():
            keys = cache.keys(b, done * PAGE)[:, : (pages - done) * PAGE]
            firsts = run_starts(keys, self._span, self.budget.value)
            known = self._runs.get(b, [(np.zeros(0, np.int64),) * 2] * block.n_kv_heads)
            self._runs[b] = [_joined(old, starts, done * PAGE) for old, starts in zip(known, firsts, strict=True)]
        self._pages = pages

    # ---- the life of a text --------------------------------------------------------------------

    def reset(self) -> None:
        self._runs, self._pages, self._made = {}, 0, (None, {})

    def trim(self, cache: Cache) -> None:
        self._pages = min(self._pages, cache.length // PAGE)
        end, self._made = self._pages * PAGE, (None, {})
        self._runs = {b: [(s[s < end], r[s < end]) for s, r in heads] for b, heads in self._runs.items()}

    def fork(self) -> Self:
        twin = super().fork()
        assert isinstance(twin, type(self))
        twin._runs = dict(self._runs)
        return twin

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        self.reset()  # runs are found again, in the keys
        super().restore(state, cache)

    def report(self, cache: Cache) -> dict[str, Any]:
        scored = sum(len(slots) for heads in self._runs.values() for slots, _ in heads)
        whole = sum(len(heads) for heads in self._runs.values()) * self._pages * PAGE
        share = round(scored / whole, 4) if whole else 1.0
        always = min(sum(self.always), cache.length)
        seen = always + round(share * (cache.length - always))
        return {**super().report(cache), "looked_at": seen, "scored": share}


def _joined(old: tuple[Ints, Ints], starts: Mask, offset: int) -> tuple[Ints, Ints]:
    """Runs after those of the pages before. starts [slots]: where runs begin, counted from `offset`."""
    first = np.flatnonzero(starts)
    lengths = np.diff(first, append=len(starts))
    return np.concatenate([old[0], first + offset]), np.concatenate([old[1], lengths])


def run_starts(keys: Array, span: int, share: float) -> Mask:
    """Where runs of keys alike begin: bool [kv_heads, slots], at most `share` of each page and head. keys [kv_heads,
    slots, d], whole pages.

    A page of 4, keys 0 1 5 5 of one dimension, span 4, share 0.5 -> runs 0-1, 2-3
    """
    heads, slots, d = keys.shape
    pages = keys.reshape(heads, -1, PAGE // span, span, d)
    apart = np.square(pages - pages[:, :, :, :1]).sum(axis=4).reshape(heads, -1, PAGE)
    apart.sort(axis=2)
    low, high = (np.full(apart.shape[:2], end) for end in (-1, PAGE - 1))
    for _ in range(_BISECTIONS):
        middle = (low + high) // 2
        fits = _starts(pages, _at(apart, middle)).mean(axis=(2, 3)) <= share
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return _starts(pages, _at(apart, high)).reshape(heads, slots)


def _at(values: Array, index: Ints) -> Array:
    """One of the values [heads, pages, n] for each page."""
    return np.take_along_axis(values, index[:, :, None], axis=2)[:, :, 0]


def _starts(pages: Array, near: Array) -> Mask:
    """bool [heads, pages, groups, span]: whose squared distance to the first of the run is above near [heads, pages].
    pages [heads, pages, groups, span, d]."""
    starts = np.ones(pages.shape[:4], bool)
    first = pages[:, :, :, 0]
    for i in range(1, pages.shape[3]):
        key = pages[:, :, :, i]
        far = np.square(key - first).sum(axis=3) > near[:, :, None]
        starts[:, :, :, i], first = far, np.where(far[..., None], key, first)
    return starts
