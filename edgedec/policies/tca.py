"""Budgets by head, measured on the prompt (TCA-Attention, K04): each kv head reads as many pages as it needs.

Heads differ in how many tokens carry their attention. The last `window` rows of a prompt show it: a
head gets as many pages as hold the share `mass` of what these rows paid, and in steps reads that many, those with the
highest bounds (`quest`). The paper calibrates once for a model; here each prompt calibrates for its own answer, so that
nothing has to be kept beside the weights. A head whose pages would be more than the budget gets the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError
from edgedec.policies import Chunk, PolicyHost, PolicyState
from edgedec.policies._budget import CacheBudget, budget_of
from edgedec.policies._eviction import checked
from edgedec.policies._views import Always, Viewing, always_of, share
from edgedec.runtime import PAGE, CallResult, Outputs, View

NEEDS = ("views", "attention_sums")
Pages = NDArray[np.int64]


def make(
    host: PolicyHost, budget: float = 2048, mass: float = 0.95, window: int = 32, sinks: int = 4, recent: int = 128
) -> Tca:
    """budget: tokens that a head reads in a step at most, a number or a share of the text; mass: the share of attention
    that its pages hold; window: rows of a prompt's end that are looked at; sinks, recent: the first and the latest
    tokens, which every head reads."""
    checked("tca", {"window": (window, 1, 128)})
    always = always_of("tca", sinks, recent)
    return Tca(host, budget_of("tca", budget), always, share("tca", "mass", mass), window)


class Tca(Viewing):
    """`_needs`: int64 [kv heads] by attention block: the pages that each needs."""

    def __init__(self, host: PolicyHost, budget: CacheBudget, always: Always, mass: float, window: int) -> None:
        super().__init__(host, budget, always)
        self._mass, self._window, self._needs = mass, window, dict[int, Pages]()

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        if left > self._window:
            return Chunk(min(most, left - self._window))
        return Chunk(min(left, most), Outputs(attention=True))

    def read(self, cache: Cache, result: CallResult) -> None:
        if result.attention:
            self._needs = {b: pages_for(paid, self._mass) for b, paid in result.attention.items()}
            self._made = None, {}

    def view(self, block: int, pages: int | None) -> View | None:
        if block not in self._needs or pages is None:
            return View(*self.always, pages)
        return View(*self.always, tuple(np.minimum(self._needs[block], pages).tolist()))

    # ---- the life of a text --------------------------------------------------------------------

    def reset(self) -> None:
        self._needs, self._made = {}, (None, {})

    def state(self) -> PolicyState:
        return {f"needs.{b}": pages for b, pages in self._needs.items()}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        expected = {f"needs.{b}": (block.n_kv_heads,) for b, block in self.spec.attention.items()}
        good = all(
            name in expected and pages.dtype == np.int64 and pages.shape == expected[name] and pages.min() >= 0
            for name, pages in state.items()
        )
        if not good:
            raise SessionError(f"the saved state is not of cache policy {self.name}")
        self.reset()
        self._needs = {int(name.partition(".")[2]): np.array(pages) for name, pages in state.items()}


def pages_for(paid: NDArray[np.float32], mass: float) -> Pages:
    """How many pages of each head hold the share `mass` of what was paid [kv_heads, slots].

    pages of 64 slots that were paid 6 1 3, mass 0.9 -> 2
    """
    starts = np.arange(0, paid.shape[1], PAGE)
    by_page = -np.sort(-np.add.reduceat(paid.astype(np.float64), starts, axis=1), axis=1)
    reached = np.cumsum(by_page, axis=1) / by_page.sum(axis=1, keepdims=True)
    found: Pages = (reached < mass - 1e-9).sum(axis=1) + 1
    return np.minimum(found, len(starts)).astype(np.int64)
