"""What the rows of a step see of blocks that have a view (`edgedec.runtime.view`), as far as the host knows it: ranges
and lists of pages, how many are searched, items of attention. Which pages score highest is found on the device."""

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
    """Items [.., 6]; of each row its first item, its place there, how many it has and how many of them are of pages;
    sights [groups, kv_heads]; lists of pages, slots and runs, one after another."""

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
        """By the names of the fields of `ViewPlan` in kernels/cuda/args.h."""
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
        """What launches depend on."""
        return PlanSize(
            bucket(len(self.items)), bucket(self.groups), max(4, bucket(self.pages)), bucket(max(self.slots, 1)),
            self.listed, self.striped, self.runs,
        )  # fmt: skip


class PlanMaker:
    """Makes the plans of a step's blocks; blocks that are seen alike share one. tile: most rows of an item."""

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
        # Of a view without any such slot there is nothing to find out.
        plan.listed = plan.slots > 0
        plan.striped, plan.runs = plan.striped and plan.listed, plan.runs and plan.listed
        return plan

    def _add_items(
        self, plan: ViewPlan, call: int, row: int, rows: slice, sights: Sequence[_Sight], pending: int
    ) -> None:
        """The items of a group of rows: chunks of pages and pending rows, then of slots one by one."""
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
    """Of a kv head the numbers of a view; lists and where they begin in the plan's."""

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
    """Fields of `ViewSight` from `first` to `theta`; committed slots in pages; most slots one by one."""

    fields: tuple[int, ...]
    length: int
    most_slots: int


def _sight(view: View, one: _HeadLists, committed: int, first_rank: int) -> _Sight:
    """What a group of rows, the first of which has that rank, sees by a kv head."""
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
    """How many rows of its tree each computed row sees, less its own."""
    if rows.is_chain:
        return np.arange(rows.first, len(rows))
    found: NDArray[np.int64] = rows.visible().sum(axis=1) - 1
    return found
