"""`TreeMerger` in the runtime's compiled code: its table drafters propose and are merged in the same call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, overload

from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Drafter
from edgedec.decoding.messages import StepResult
from edgedec.drafters._tables.compiled import CompiledDrafter, best_shown
from edgedec.runtime import (
    SILENT,
    Calibrated,
    DraftGroup,
    StepCosts,
    StepCounts,
    StepGovernor,
    Stepped,
    WatchPrices,
)
from edgedec.speculation.bank import TextAccount
from edgedec.speculation.costs import Costs
from edgedec.speculation.prices import UsefulRows
from edgedec.speculation.probing import RowProbe
from edgedec.speculation.reasons import NO_GUESS, REFUSED
from edgedec.speculation.record import DrafterRecord

# Drafters have a bit each.
_MOST = 30


@lru_cache(1024)
def _numbers(by: int) -> list[tuple[int, int]]:
    """The guesses of a node with these drafters, by bit."""
    return [(number, -1) for number in range(by.bit_length()) if by >> number & 1]


class _Guesses(Sequence[list[tuple[int, int]]]):
    """Each node's guesses, computed on access, because most are never read."""

    def __init__(self, by: Sequence[int]) -> None:
        self._by = by

    def __len__(self) -> int:
        return len(self._by)

    @overload
    def __getitem__(self, node: int) -> list[tuple[int, int]]: ...
    @overload
    def __getitem__(self, node: slice) -> list[list[tuple[int, int]]]: ...
    def __getitem__(self, node: int | slice) -> list[tuple[int, int]] | list[list[tuple[int, int]]]:
        if isinstance(node, slice):
            return [_numbers(by) for by in self._by[node]]
        return _numbers(self._by[node])


class CompiledMerger:
    """`TreeMerger` on a `DraftGroup`. `numbers`: the drafters that `propose` and `observe` can use together; the trees
    of the others are added by `add`."""

    def __init__(self, drafters: Sequence[Drafter], calibrations: Sequence[Calibrated]) -> None:
        found = [drafter if isinstance(drafter, CompiledDrafter) else None for drafter in drafters]
        parts = next(drafter.parts for drafter in found if drafter is not None)
        self._group: DraftGroup = parts.group([drafter and drafter.table for drafter in found], calibrations)
        self.numbers = [number for number, drafter in enumerate(found) if drafter is not None]
        self._top = max((drafters[number].outputs.top for number in self.numbers), default=0)
        self._taught = sum(1 << number for number in self.numbers if drafters[number].prompt_rows)
        self.seconds: NDArray[Any] = self._group.seconds
        self._names: dict[int, str] = {}
        self.clear()

    def __len__(self) -> int:
        return len(self._nodes()[0] if self._order is None else self._order)

    def clear(self) -> None:
        """Remove all trees."""
        self._group.clear()
        self._found: tuple[list[int], list[int], list[float], list[float], list[int]] | None = None
        self._order: list[int] | None = None
        self._by: _Guesses | None = None

    def reset(self) -> None:
        """Another text begins."""
        self._group.reset()
        self.clear()

    def propose(self, context: Context, nodes: int, min_path_prob: float, enabled: int) -> None:
        """Replace all trees by the merged proposals of these tables."""
        self._group.propose(context.ids, context.n_prompt, nodes, min_path_prob, enabled)
        self._found, self._order, self._by = None, self._group.best_first(), None

    def watch(self, context: Context, nodes: int, min_path_prob: float, enabled: int, prices: WatchPrices) -> int:
        """The number of nodes of these tables' current proposals that would pay; also tests the tree of the last
        watch."""
        self._found = self._order = self._by = None
        return self._group.watch(context.ids, context.n_prompt, nodes, min_path_prob, enabled, prices)

    def observe(self, step: StepResult, enabled: int) -> None:
        """Update these tables with a verified call."""
        for part in step.prompt if enabled & self._taught else ():
            self._group.observe(part.rows, part.root, (), (), best_shown(part), enabled & self._taught)
        self._group.observe(step.rows, step.root, step.path, step.picked, best_shown(step), enabled)

    @property
    def tokens(self) -> list[int]:
        return self._nodes()[0]

    @property
    def parents(self) -> list[int]:
        return self._nodes()[1]

    @property
    def chances(self) -> list[float]:
        return self._nodes()[3]

    @property
    def guesses(self) -> _Guesses:
        """The drafters' numbers of each node, ascending; the kinds of their claims are not available here."""
        if self._by is None:
            self._by = _Guesses(self._nodes()[4])
        return self._by

    def add(self, number: int, draft: Draft, estimates: NDArray[Any]) -> list[int]:
        """As `TreeMerger.add`."""
        self._found = self._order = self._by = None
        return self._group.add(number, draft.tokens, draft.parents, draft.p, estimates)

    def best_first(self) -> list[int]:
        """As `TreeMerger.best_first`."""
        if self._order is None:
            self._order, self._found = self._group.order(False), None
        return self._order

    def best_chain(self) -> list[int]:
        """As `TreeMerger.best_chain`."""
        return self._group.order(True)

    def cut(self, nodes: Sequence[int], by: Sequence[str], why: str) -> Draft:
        """As `TreeMerger.cut`."""
        tokens, parents, p, drafters = self._group.cut(nodes)
        return Draft(tokens, parents, p, by=[self.name(mask, by) for mask in drafters], why=why)

    def path(self, picked: Sequence[int]) -> list[int]:
        """The nodes that match the picked tokens, from the root."""
        return self._group.test(picked, False)

    def test(self, picked: Sequence[int], calibrations: Sequence[Calibrated]) -> list[int]:
        """Update the calibrations that it was created with, by every guess whose parent was right; returns the path
        that was right."""
        return self._group.test(picked, True)

    def governor(self, record: DrafterRecord, account: TextAccount, named: bool) -> StepGovernor:
        """The runtime's governor of these tables, which have one record together."""
        enabled = sum(1 << number for number in self.numbers)
        return self._group.governor(account.bank, account, record, record.shared, self._top, enabled, named)

    def name(self, mask: int, by: Sequence[str]) -> str:
        """The names of these drafters; by: by number."""
        name = self._names.get(mask)
        if name is None:
            name = self._names[mask] = "+".join([by[number] for number, _ in _numbers(mask)])
        return name

    def _nodes(self) -> tuple[list[int], list[int], list[float], list[float], list[int]]:
        if self._found is None:
            self.best_first()
            self._found, self._by = self._group.nodes(), None
        return self._found


class TableSteps:
    """Drafts of the runtime's tables in its own steps (`StepDrafting`)."""

    def __init__(
        self,
        merger: CompiledMerger,
        record: DrafterRecord,
        account: TextAccount,
        names: Sequence[str],
        named: bool,
        costs: Costs,
        row_probe: RowProbe | None,
    ) -> None:
        self._merger, self._names, self._costs, self._probe = merger, names, costs, row_probe
        self.governor, self._record = merger.governor(record, account, named), record

    def renew(self, context: Context, useful: UsefulRows, sequences: int) -> None:
        """Set the terms of the next steps."""
        costs, between = self._costs, self._costs.between
        terms = StepCosts(costs.seconds, costs.per_cell, between.plain, between.draft, useful.limit, useful.least)
        self.governor.renew(terms, sequences, context.n_prompt, context.left, context.cache.capacity)
        self.governor.end_among(*context.ends)

    def drain(self, members: Sequence[DrafterRecord], sizes: Counter[int], silent: Counter[str]) -> StepCounts | None:
        """Add what the steps since the last `drain` did to the records, to the calls by the size of their drafts, and
        to those without by reason; None if there were none."""
        done = self.governor.drain()
        if not done.steps:
            return None
        for member, proposed, accepted in zip(members, done.proposed, done.accepted, strict=True):
            member.proposed += proposed
            member.accepted += accepted
        calls = dict(zip(SILENT, done.silent, strict=True))
        silent.update({code: n for code, n in calls.items() if n})
        sizes.update({size: n for size, n in enumerate(done.sizes) if n})
        self._record.runs.add_steps(sum(done.sizes), calls[REFUSED], calls[NO_GUESS], done.expected)
        return done

    def add_call(self, done: Stepped) -> None:
        costs = self._costs
        if costs.add_step(done.rows, done.seconds, done.cells, not done.drafts) and self._probe is not None:
            self._probe.add(done.seconds, costs.seconds[min(self.governor.sequences, costs.most)])

    def name(self, by: int) -> str:
        return self._merger.name(by, self._names)


def compiled_merger(drafters: Sequence[Drafter], calibrations: Sequence[Calibrated]) -> CompiledMerger | None:
    """The runtime's merger for these drafters; None if none of them is the runtime's, or if there are too many."""
    some = any(isinstance(drafter, CompiledDrafter) for drafter in drafters)
    return CompiledMerger(drafters, calibrations) if some and len(drafters) <= _MOST else None
