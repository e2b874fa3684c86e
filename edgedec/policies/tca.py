"""Reads the core tokens of each block: few where a head's attention gathers, many where it is spread (TCA-Attention).

You et al. 2025, "Training-free Context-adaptive Attention"; read were the abstract and reviews. Heads differ in how
much they need: one pass over a text (`edgedec calibrate`) finds for each the least budget whose tokens hold the share
`mass` of its attention; without it the prompt's last query shows that. A budget says how many blocks keep 1, 2, 4, ...
64 tokens (`_redundancy`). Which blocks: the last query scores all keys, the blocks are ranked by their redundancy, and
those whose scores are most concentrated keep the fewest, of each those that score highest. So a prompt is read, chosen
anew at every 512th token by the last query so far, and so are steps, after every `every` tokens; the first tokens and
the latest ones are read in any case.

Not found: the sizes of blocks and the constants of the budgets, which are ours. The paper evicts what is not chosen;
here it stays, as the kv heads of a block hold equally many slots, and a later query may choose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError, UsageError
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost, PolicyState
from edgedec.policies._budget import CacheBudget
from edgedec.policies._head_budgets import HEAD_BUDGETS, Ints, budgets_for, read_budgets
from edgedec.policies._options import ChoiceEvery, ReadBudget, Recent, Sinks
from edgedec.policies._page_choice import NEEDS, Array, Probing, page_ends, probing_of
from edgedec.policies._redundancy import SHARES, attention_of, block_shares, core_slots, needed_budgets
from edgedec.policies._views import Always, ViewedReading, Views
from edgedec.runtime import PAGE, CallResult, Outputs, View

# Tokens of a prompt between choices.
_PART = 512

FACTS = PolicyFacts(NEEDS, paper="TCA-Attention")


def make(
    host: PolicyHost,
    budget: ReadBudget = 0.5,
    mass: Annotated[float, Opt("Share of a head's attention that its tokens hold.", 0, 1)] = 0.95,
    every: ChoiceEvery = 64,
    sinks: Sinks = 4,
    recent: Recent = 128,
    measured: Annotated[
        Literal["", "once", "prompt"],
        Opt("Budgets of the heads; once: those of `edgedec calibrate`, prompt: of each; by default once if there."),
    ] = "",
) -> Tca:
    table = None if measured == "prompt" else read_budgets(host.folder, host.spec)
    if table is None and measured == "once":
        raise UsageError(f"--cache tca: the bundle has no {HEAD_BUDGETS}: make it with edgedec calibrate")
    needs = None if table is None else budgets_for(table, host.spec, mass)
    always = probing_of("tca", every, 1, sinks, recent)
    return Tca(host, CacheBudget(budget), always, every, mass, needs)


class Tca(Probing, ViewedReading):
    """What is chosen is slots. `_needs`: the number of the budget of each kv head by attention block; `_measures`:
    they are found in each prompt."""

    def __init__(
        self,
        host: PolicyHost,
        budget: CacheBudget,
        always: Always,
        every: int,
        mass: float,
        needs: Mapping[int, Ints] | None,
    ) -> None:
        super().__init__(host, budget, always, every, window=1)
        self._mass, self._measures, self._needs = mass, needs is None, dict(needs or {})
        self._reads = False

    # ---- a prompt ------------------------------------------------------------------------------

    def reads(self, cache: Cache) -> Outputs:
        return self._outputs

    def reading(self, cache: Cache) -> Views:
        return {b: View(*self.always, slots=heads, group=0) for b, heads in self._chosen.items()}

    def was_read(self, cache: Cache, result: CallResult) -> None:
        self.observe(cache, result)
        rows = len(next(iter(result.queries.values())))
        if cache.length // _PART > (cache.length - rows) // _PART:
            self._choose_reading(cache)

    def end(self, cache: Cache) -> None:
        self._choose_reading(cache)

    def _choose_reading(self, cache: Cache) -> None:
        self._reads = True
        self.choose(cache)
        self._reads = False

    # ---- what is read --------------------------------------------------------------------------

    def ends(self, cache: Cache) -> Ints:
        return page_ends(cache)

    def pick(self, cache: Cache, block: int, queries: Array, ends: Ints, pages: int) -> list[Ints]:
        if not len(ends):
            return [np.zeros(0, np.int64)] * self.spec.attention[block].n_kv_heads
        query, scale = queries[-1], self.spec.attention[block].scale
        keys = cache.keys(block)[:, : len(ends) * PAGE]
        shares = block_shares(query, keys, scale)
        if self._measures and (self._reads or block not in self._needs):
            self._needs[block] = needed_budgets(shares, attention_of(query, keys, scale), self._mass)
        return core_slots(shares, np.minimum(self._needs[block], most_budget(keys.shape[1], pages * PAGE)))

    def view(self, block: int, pages: int | None) -> View | None:
        return View(*self.always, slots=self._chosen[block]) if pages is not None and block in self._chosen else None

    # ---- the life of a text --------------------------------------------------------------------

    def reset(self) -> None:
        super().reset()
        if self._measures:
            self._needs = {}

    def fork(self) -> Self:
        twin = super().fork()
        twin._needs = dict(self._needs)
        return twin

    def state(self) -> PolicyState:
        needs = {f"needs.{b}": numbers for b, numbers in self._needs.items()} if self._measures else {}
        return super().state() | needs

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        expected = {f"needs.{b}": block.n_kv_heads for b, block in self.spec.attention.items() if self._measures}
        needs = {name: numbers for name, numbers in state.items() if name in expected}
        super().restore({name: array for name, array in state.items() if name not in needs}, cache)
        for name, numbers in needs.items():
            good = numbers.dtype == np.int64 and numbers.shape == (expected[name],)
            if not good or not ((numbers >= 0) & (numbers < len(SHARES))).all():
                self.reset()
                raise SessionError(f"{name}: the saved state is not of cache policy {self.name}")
            self._needs[int(name.partition(".")[2])] = np.array(numbers)

    def report(self, cache: Cache) -> dict[str, Any]:
        listed = [len(slots) for heads in self._chosen.values() for slots in heads]
        chosen = {"chosen": round(sum(listed) / len(listed))} if listed else {}
        return {**super().report(cache), **chosen, "measured": "prompt" if self._measures else "once"}


def most_budget(slots: int, most: int) -> int:
    """The number of the largest budget that keeps `most` of so many slots or fewer; 0 if none does."""
    return max(int(np.searchsorted(SHARES * slots, most, "right")) - 1, 0)
