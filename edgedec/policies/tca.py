"""Reads as many pages in each kv head as hold a share of its attention, measured before (TCA-Attention).

Heads differ in how many tokens carry their attention. A bundle that was calibrated (`edgedec calibrate`) says which
share of a text's pages holds the share `mass` of what each head pays; without that, the last `window` rows of the
prompt show it. In steps a head reads that many pages, those with the highest bounds (`quest`), which are found for each
row. A head whose pages would be more than the budget gets the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError, UsageError
from edgedec.plugins import Opt
from edgedec.policies import Chunk, PolicyFacts, PolicyHost, PolicyState
from edgedec.policies._budget import CacheBudget
from edgedec.policies._head_calibration import HEAD_SHARES, Array, Pages, needed, pages_for, read_shares
from edgedec.policies._options import ReadBudget, Recent, Sinks, Window
from edgedec.policies._views import STEP, Always, Viewing, Views
from edgedec.runtime import PAGE, CallResult, Outputs, View

FACTS = PolicyFacts(("views", "attention_sums"), paper="TCA-Attention")


def make(
    host: PolicyHost,
    budget: ReadBudget = 2048,
    mass: Annotated[float, Opt("Share of the attention that the pages of a head hold.", 0, 1)] = 0.95,
    window: Window = 32,
    sinks: Sinks = 4,
    recent: Recent = 128,
    measured: Annotated[
        Literal["", "once", "prompt"],
        Opt("Shares of the heads; once: those of `edgedec calibrate`, prompt: of each; by default once if there."),
    ] = "",
) -> Tca:
    table = None if measured == "prompt" else read_shares(host.folder, host.spec)
    if table is None and measured == "once":
        raise UsageError(f"--cache tca: the bundle has no {HEAD_SHARES}: make it with edgedec calibrate")
    shares = None if table is None else needed(table, host.spec, mass)
    return Tca(host, CacheBudget(budget), Always(sinks, recent), mass, window, shares)


class Tca(Viewing):
    """`_needs`: int64 [kv heads] by attention block: the pages that each head needs, measured on the prompt; `_shares`:
    the shares of pages from the bundle, None: measured on the prompt."""

    def __init__(
        self,
        host: PolicyHost,
        budget: CacheBudget,
        always: Always,
        mass: float,
        window: int,
        shares: Mapping[int, Array] | None,
    ) -> None:
        super().__init__(host, budget, always)
        self._mass, self._window, self._needs = mass, window, dict[int, Pages]()
        self._shares, self._whole = shares, 0

    def chunk(self, cache: Cache, left: int, most: int) -> Chunk:
        if self._shares is not None:
            return super().chunk(cache, left, most)
        if left > self._window:
            return Chunk(min(most, left - self._window))
        return Chunk(min(left, most), Outputs(attention=True))

    def read(self, cache: Cache, result: CallResult) -> None:
        if result.attention:
            self._needs = {b: pages_for(paid, self._mass) for b, paid in result.attention.items()}
            self._made = None, {}

    def views(self, cache: Cache) -> Views:
        self._whole = (cache.length // STEP + 1) * STEP // PAGE  # pages of the text, about
        return super().views(cache)

    def key(self, pages: int | None) -> Any:
        return pages if self._shares is None else (pages, self._whole)

    def room(self, length: int) -> int:
        most = super().room(length)
        return most if self._shares is None else min(most, STEP - length % STEP - 1)

    def view(self, block: int, pages: int | None) -> View | None:
        if self._shares is not None and pages is not None:
            needs = np.ceil(self._shares[block] * self._whole).astype(np.int64)
            return View(*self.always, tuple(np.minimum(needs, pages).tolist()))
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

    def report(self, cache: Cache) -> dict[str, Any]:
        return {**super().report(cache), "measured": "prompt" if self._shares is None else "once"}
