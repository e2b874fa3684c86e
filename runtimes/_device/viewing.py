"""The host's part of blocks with a view (`edgedec.runtime.view`): visible ranges and lists of pages, how many pages to
select by score, attention items. The pages with the highest scores are selected on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device import structs
from edgedec.runtime import Call, Rows, View
from edgedec.runtimes._device.pages import SLOTS
from edgedec.runtimes._device.stack import PlanSize, bucket
from edgedec.runtimes._device.table import PageTable
from edgedec.spec import Attention

Ints = NDArray[np.int32]
_ALL_LOGS = np.array([-math.inf, *(math.log(n) for n in range(1, SLOTS + 1))], np.float32)


@dataclass
class ViewPlan:
    """Items [.., 6]; for each row its first item, its place there, its number of items and how many of them are of
    pages; sights [groups, kv_heads]; lists of pages, slots and runs, concatenated."""

    items: list[tuple[int, ...]] = field(default_factory=list)
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    sights: list[tuple[int, ...]] = field(default_factory=list)
    lists: list[int] = field(default_factory=list)
    groups: int = 0
    pages: int = 1
    slots: int = 0
    listed: bool = False
    striped: bool = False
    runs: bool = False
    searches: bool = False

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The arrays by field name of `ViewPlan` in kernels/cuda/args.h."""
        rows = np.array(self.rows, np.int32).reshape(-1, 4)
        columns = {name: rows[:, i] for i, name in enumerate(("part", "part_row", "chunks", "page_chunks"))}
        return {
            "items": np.array(self.items, np.int32),
            **columns,
            "sights": np.array(self.sights, np.int64).astype(np.int32),
            "lists": np.array(self.lists, np.int32),
            "logs": _ALL_LOGS,
        }

    @property
    def size(self) -> PlanSize:
        """The sizes that launches depend on."""
        return PlanSize(
            bucket(len(self.items)), bucket(self.groups), max(4, bucket(self.pages)), bucket(max(self.slots, 1)),
            self.listed, self.striped, self.runs,
        )  # fmt: skip


class PlanMaker:
    """Makes the plans of a step's blocks; blocks with the same views share one. tile: most rows of an item."""

    def __init__(self, calls: Sequence[Call], tile: int) -> None:
        self._calls, self._tile, self._known = calls, tile, dict[tuple[int, ...], int]()
        self._before = [_ranks(call.rows) for call in calls]
        self.plans = list[ViewPlan]()

    def number(self, block: int, facts: Attention, tables: Sequence[PageTable]) -> int:
        """The number of a block's plan; tables: of the calls' sequences."""
        views = [(call.views or {})[block] for call in self._calls]
        key = (facts.n_kv_heads, *map(id, views), *map(id, tables))
        if key not in self._known:
            self._known[key] = len(self.plans)
            self.plans.append(self._made(views, facts.n_kv_heads, tables))
        return self._known[key]

    def _made(self, views: Sequence[View], heads: int, tables: Sequence[PageTable]) -> ViewPlan:
        plan, row = ViewPlan(), 0
        for i, (call, view, table) in enumerate(zip(self._calls, views, tables, strict=True)):
            lists = [_HeadLists.of(view, head, heads, plan.lists) for head in range(heads)]
            plan.searches |= view.retrieves
            plan.striped |= view.theta is not None
            plan.runs |= view.runs is not None
            plan.pages = max(plan.pages, -(-table.start // SLOTS))
            for rows in view.groups(call.rows.count):
                first = table.start + int(self._before[i][rows].min())
                sights = [_sight(view, one, table.start, first) for one in lists]
                head = (i, row + rows.start, rows.stop - rows.start)
                plan.sights += [(*head, *sight.fields, 0) for sight in sights]
                self._add_items(plan, i, row, rows, sights, len(call.rows))
                plan.groups += 1
            row += call.rows.count
        # A view without single slots needs no selection by score or run.
        plan.listed = plan.slots > 0
        plan.striped, plan.runs = plan.striped and plan.listed, plan.runs and plan.listed
        return plan

    def _add_items(
        self, plan: ViewPlan, call: int, row: int, rows: slice, sights: Sequence[_Sight], pending: int
    ) -> None:
        """Add the items of a group of rows: chunks of pages and pending rows, then chunks of single slots."""
        most, slots = max(sight.length for sight in sights) + pending, max(sight.most_slots for sight in sights)
        plan.slots = max(plan.slots, slots)
        chunks = (-(-most // structs.CHUNK), -(-slots // structs.CHUNK))
        for at in range(rows.start, rows.stop, self._tile):
            n = min(self._tile, rows.stop - at)
            plan.rows += [(len(plan.items), place, sum(chunks), chunks[0]) for place in range(n)]
            for listed, count in enumerate(chunks):
                plan.items += [(call, row + at, n, chunk, listed, plan.groups) for chunk in range(count)]


@dataclass(frozen=True)
class _HeadLists:
    """A kv head's numbers of a view; its lists, and their offsets in the plan's lists."""

    sinks: int
    recent: int
    pages: int
    chosen: NDArray[np.int64]
    chosen_at: int
    slots: int
    slots_at: int
    runs_at: int

    @classmethod
    def of(cls, view: View, head: int, heads: int, lists: list[int]) -> _HeadLists:
        chosen, slots = view.listed("chosen", head), view.listed("slots", head)
        at = len(lists)
        lists += [*chosen.tolist(), *slots.tolist()]
        runs_at = len(lists) if view.runs is not None else -1
        lists += view.stands_for(head).tolist() if view.runs is not None else []
        sinks, recent, pages = (view.numbers(name, heads)[head] for name in ("sinks", "recent", "pages"))
        return cls(sinks, recent, pages, chosen, at, len(slots), at + len(chosen), runs_at)


@dataclass(frozen=True)
class _Sight:
    """Fields of `ViewSight` from `first` to `theta`; the number of committed slots in pages; the most single slots."""

    fields: tuple[int, ...]
    length: int
    most_slots: int


def _sight(view: View, one: _HeadLists, committed: int, first_rank: int) -> _Sight:
    """The sight of a group of rows for one kv head; first: the rank of the group's first row."""
    every, full = -(-committed // SLOTS), committed // SLOTS
    last = min(full, max(first_rank - one.recent, 0) // SLOTS)
    first = every if one.pages < 0 else min(every, -(-one.sinks // SLOTS))
    between = int(((one.chosen >= first) & (one.chosen < last)).sum())
    left = max(last - first, 0) - between
    count = min(max(one.pages, 0), left)
    seen = every - left + count
    length = seen * SLOTS - (every * SLOTS - committed)
    striped = view.theta is not None
    theta = int(np.float32(view.theta or 0).view(np.int32))
    fields = (
        first, last, one.chosen_at, len(one.chosen), count, left, every, seen, length, one.slots_at, one.slots,
        one.runs_at, int(striped), theta,
    )  # fmt: skip
    return _Sight(fields, length, (left - count) * SLOTS if striped else one.slots)


def _ranks(rows: Rows) -> NDArray[np.int64]:
    """The number of rows of its tree that each computed row sees, itself excluded."""
    if rows.is_chain:
        return np.arange(rows.first, len(rows))
    found: NDArray[np.int64] = rows.visible().sum(axis=1) - 1
    return found
