"""The common part of policies that keep all slots and attend to some of them.

A row's view depends on the row alone (`View.group` 1), so what is drafted changes nothing as long as no draft is deeper
than what is seen in any case (`recent`). A share of the tokens is a number of pages that changes every `STEP` tokens;
no draft reaches beyond such a change.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from edgedec.cache import Cache
from edgedec.policies import PolicyHost
from edgedec.policies._budget import CacheBudget
from edgedec.policies._eviction import BasePolicy, held
from edgedec.runtime import PAGE, Adapter, Call, CallResult, Outputs, Rows, View

STEP = 4 * PAGE
NONE = Outputs()
Views = Mapping[int, View]


class Always(NamedTuple):
    """The slots that every head sees: the first tokens and the latest ones."""

    sinks: int
    recent: int

    @property
    def pages(self) -> int:
        """The most pages that these slots take."""
        return -(-self.sinks // PAGE) + -(-self.recent // PAGE) + 1


class Viewing(BasePolicy):
    """A policy that keeps all slots; `views`: the slots that a step attends to."""

    def __init__(self, host: PolicyHost, budget: CacheBudget, always: Always) -> None:
        self.spec, self.budget, self.always = host.spec, budget, always
        self._made: tuple[Any, dict[int, View]] = (None, {})

    # ---- how much ------------------------------------------------------------------------------

    def pages(self, length: int) -> int | None:
        """The number of pages that are selected besides those that are always seen; None: all."""
        if self.budget.value == 1:
            return None
        tokens = self.budget.of((length // STEP + 1) * STEP)
        return max(1, -(-tokens // PAGE) - self.always.pages)

    def room(self, length: int) -> int:
        left = STEP - length % STEP - 1 if self.budget.value <= 1 else self.always.recent
        return min(self.always.recent, left)

    # ---- what is looked at ---------------------------------------------------------------------

    def views(self, cache: Cache) -> Views:
        """The view of a step, by attention block; empty: all slots."""
        pages = self.pages(cache.length)
        if self._made[0] != (key := self.key(pages)):
            self._made = key, {b: view for b in self.spec.attention if (view := self.view(b, pages)) is not None}
        return self._made[1]

    def key(self, pages: int | None) -> Any:
        """The key of cached views: they are computed again when it changes."""
        return pages

    def view(self, block: int, pages: int | None) -> View | None:
        """The view of a step in a block; None: all slots."""
        return View(*self.always, pages)

    def shape(self, call: Call) -> Call:
        if not (views := self.views(call.cache)):
            return call
        # Run the whole stack, even if a drafter has run the first blocks of the row.
        return call._replace(blocks=None, hidden=None, views=views)

    def report(self, cache: Cache) -> dict[str, Any]:
        pages = self.pages(cache.length)
        seen = cache.length if pages is None else min(cache.length, (pages + self.always.pages) * PAGE)
        return {"policy": self.words, "lossy": True, "budget": str(self.budget), "looked_at": seen, **held(cache)}


class ViewedReading(Viewing):
    """Reads prompts under views too."""

    def prefill(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        for at in range(0, len(ids), most):
            rows = Rows.chain(ids[at : at + most], cache.length)
            done = yield Call(
                rows, cache, outputs=self.reads(cache), adapter=adapter, views=self.reading(cache) or None
            )
            cache.commit(range(len(rows)))
            self.was_read(cache, done.result)

    def reads(self, cache: Cache) -> Outputs:
        """The outputs that the next chunk's call must return."""
        return NONE

    def reading(self, cache: Cache) -> Views:
        """The view of the next chunk's rows; empty: all slots."""
        return {}

    def was_read(self, cache: Cache, result: CallResult) -> None:
        """Process a committed chunk of a prompt."""
