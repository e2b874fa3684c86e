"""The inputs of a step, in one piece of device memory (`Step` of kernels/cuda/args.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device import structs
from edgedec.kernels.device.interface import Buffer, Device
from edgedec.runtime import Call, Rows
from edgedec.runtimes._device import chain_step as chains
from edgedec.runtimes._device import sums
from edgedec.runtimes._device.cache import PagedCache
from edgedec.runtimes._device.call_views import Views
from edgedec.runtimes._device.viewing import ViewPlan

_FIRST_SIZE = 1 << 16
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class StepSize:
    """The numbers of rows, head rows, attention items and slots with attention sums of a step."""

    rows: int
    head: int
    items: int
    paid: int


def tile_rows(most: int, calls: Sequence[Call]) -> int:
    """How many rows of a sequence, at most `most`, share an attention item; with views, only rows that see the same
    slots."""
    seen = [view.group or call.rows.count for call in calls for view in (call.views or {}).values()]
    return max(1, min(most, max(seen or [call.rows.count for call in calls])))


class StepMemory:
    """The device memory of a step. `generation` changes when it is reallocated, which invalidates recorded launches."""

    def __init__(self, device: Device) -> None:
        self._device, self.generation = device, 0
        self._memory = Buffer(device, _FIRST_SIZE)

    @property
    def at(self) -> int:
        return self._memory.at

    def write(
        self,
        calls: Sequence[Call],
        caches: Sequence[PagedCache],
        blocks: Sequence[int],
        views: Views,
        tile: int,
        plans: Sequence[ViewPlan] = (),
    ) -> StepSize:
        """Copy the description of the calls' rows to the device. plans: of blocks with a view."""
        if not plans and chains.fits(calls, caches[0].spec, views.tables):
            return self._bring_chain(calls[0], views, tile)
        parts = _Parts()
        rows = _rows(calls, parts)
        items, places = _items(calls, views, tile)
        head = _head(calls)
        parts.add("part", places[0])
        parts.add("part_row", places[1])
        parts.add("chunks", places[2])
        parts.add("items", items)
        parts.add("head_rows", head[0])
        parts.add("heat", head[1])
        spec = caches[0].spec
        _add_views(calls, views, any(chains.placed(spec.attention[b]) for b in views.of), plans, parts)
        taps = _add_recurrent(calls, caches, [b for b in blocks if b in spec.recurrent], parts)
        paid, slots = sums.places(calls, views.tables)
        parts.add("paid", paid)
        for i, plan in enumerate(plans):
            for name, array in plan.arrays().items():
                parts.add(f"{i} {name}", array)
        parts.add("plans", np.zeros(structs.PLAN_BYTES * len(plans), np.uint8))
        size = StepSize(rows, len(head[0]), len(items), slots)
        self._bring(parts, [rows, len(head[0]), len(items), len(calls), taps, 0], plans)
        return size

    def _bring_chain(self, call: Call, views: Views, tile: int) -> StepSize:
        """Copy the rows of one chain (the fast path)."""
        made = chains.chain_step(call, [tables[0] for tables in views.tables], tile)
        self._make_room(made.nbytes)
        counts = (call.rows.count, made.head, made.items, 1, 0, 0)
        pointers = made.addresses(self.at, _FIELDS), made.addresses(self.at, _MORE_FIELDS)
        structs.STEP.pack_into(made.image.data, 0, *pointers[0], *counts, *pointers[1])
        self._device.write(self.at, made.image)
        return StepSize(call.rows.count, made.head, made.items, 0)

    def _make_room(self, size: int) -> None:
        if size > self._memory.size:
            self._memory, self.generation = Buffer(self._device, 2 * size), self.generation + 1

    def _bring(self, parts: _Parts, counts: Sequence[int], plans: Sequence[ViewPlan]) -> None:
        first = _aligned(structs.STEP.size)
        size = first + parts.size
        self._make_room(size)
        base = self.at + first
        header = structs.STEP.pack(*parts.addresses(base, _FIELDS), *counts, *parts.addresses(base, _MORE_FIELDS))
        packed = list[bytes]()
        for i, plan in enumerate(plans):
            places = parts.addresses(base, [f"{i} {name}" for name in plan.arrays()])
            packed.append(structs.view_plan(places, len(plan.items), plan.groups))
        parts.replace("plans", np.frombuffer(b"".join(packed), np.uint8))
        image = np.zeros(size, np.uint8)
        image[: len(header)] = np.frombuffer(header, np.uint8)
        parts.fill(image[first:])
        self._device.write(self.at, image)


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


_FIELDS = (
    "tokens", "positions", "sequence", "at", "begin", "end", "part", "part_row", "chunks", "path", "items", "head_rows",
    "heat", "pages", "views", "slot_positions", "given", "recurrent", "updates", "update_ends", "taps",
)  # fmt: skip


_MORE_FIELDS = ("paid", "bounds", "plans")  # after the numbers


class _Parts:
    """The arrays of a step, one after another, each 16-byte aligned."""

    def __init__(self) -> None:
        self._arrays, self._offsets, self.size = dict[str, NDArray[Any]](), dict[str, int](), 0

    def add(self, name: str, array: NDArray[Any]) -> None:
        self._arrays[name], self._offsets[name] = array, self.size
        self.size += _aligned(array.nbytes)

    def replace(self, name: str, array: NDArray[Any]) -> None:
        """Another array of the same size."""
        self._arrays[name] = array

    def addresses(self, base: int, names: Sequence[str]) -> list[int]:
        return [base + self._offsets[name] for name in names]

    def fill(self, image: NDArray[np.uint8]) -> None:
        for name, array in self._arrays.items():
            at = self._offsets[name]
            image[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _rows(calls: Sequence[Call], parts: _Parts) -> int:
    """Add the description of each row; returns the number of rows."""
    columns: dict[str, list[Ints]] = {name: [] for name in ("tokens", "positions", "sequence", "at", "begin", "end")}
    paths, given, n_path, n_given = list[Ints](), list[NDArray[np.float32]](), 0, 0
    for i, call in enumerate(calls):
        rows, count = call.rows, call.rows.count
        entering = call.hidden if call.hidden is not None else rows.embeddings
        if entering is None:
            columns["tokens"].append(rows.tokens[rows.first :].astype(np.int32))
        else:
            columns["tokens"].append(-1 - np.arange(n_given, n_given + count, dtype=np.int32))
            given.append(np.ascontiguousarray(entering, np.float32))
            n_given += count
        columns["positions"].append(rows.positions[rows.first :].astype(np.int32))
        columns["sequence"].append(np.full(count, i, np.int32))
        columns["at"].append(np.arange(rows.first, len(rows), dtype=np.int32))
        path, ends = _path(rows)
        begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        columns["begin"].append((begins + n_path).astype(np.int32) if len(ends) else np.full(count, -1, np.int32))
        columns["end"].append((ends + n_path).astype(np.int32) if len(ends) else np.full(count, -1, np.int32))
        paths.append(path)
        n_path += len(path)
    for name, values in columns.items():
        parts.add(name, np.concatenate(values))
    parts.add("path", np.concatenate(paths))
    parts.add("given", np.concatenate(given) if given else np.zeros(0, np.float32))
    return sum(call.rows.count for call in calls)


def _path(rows: Rows) -> tuple[Ints, NDArray[np.int64]]:
    """The rows of its tree that each computed row sees, ascending, as concatenated lists, and the end of each list;
    empty for a chain."""
    if rows.is_chain:
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    seen = rows.visible()
    return np.nonzero(seen)[1].astype(np.int32), np.cumsum(seen.sum(axis=1))


def _items(calls: Sequence[Call], views: Views, tile: int) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
    """Attention items [n, 4]; for each row its first item, its place there, and its number of items."""
    items, firsts, places, counts = list[Ints](), list[int](), list[int](), list[int]()
    row = n_items = 0
    for i, call in enumerate(calls):
        longest = max((tables[i].start for tables in views.tables), default=0) + len(call.rows)
        chunks = -(-longest // structs.CHUNK) if views.tables else 0
        for row0 in range(0, call.rows.count, tile):
            rows = min(tile, call.rows.count - row0)
            item = np.empty((chunks, 4), np.int32)
            item[:] = (i, row + row0, rows, 0)
            item[:, 3] = np.arange(chunks)
            items.append(item)
            firsts += [n_items] * rows
            places += range(rows)
            counts += [chunks] * rows
            n_items += chunks
        row += call.rows.count
    return np.concatenate(items), (np.array(firsts, np.int32), np.array(places, np.int32), np.array(counts, np.int32))


def _head(calls: Sequence[Call]) -> tuple[Ints, NDArray[np.float32]]:
    """The rows that the head runs on, and the inverse temperature of each."""
    rows, heat, row = list[int](), list[float](), 0
    for call in calls:
        if call.outputs.head:
            chosen = range(row + call.outputs.logits_from, row + call.rows.count)
            rows += chosen
            heat += [1 / call.outputs.temperature] * len(chosen)
        row += call.rows.count
    return np.array(rows, np.int32), np.array(heat, np.float32)


def _add_views(calls: Sequence[Call], views: Views, windows: bool, plans: Sequence[ViewPlan], parts: _Parts) -> None:
    """Add pages, their bounds where they are searched, views, and the positions of slots where windows need them."""
    lines, pages, slots, n_pages, n_slots = [], list[int](), list[Ints](), 0, 0
    bounds, searches = list[int](), any(plan.searches for plan in plans)
    for tables in views.tables:
        row = 0
        for call, table in zip(calls, tables, strict=True):
            named = windows and not (not plans and table.identity() and _base(call.rows) == table.start)
            lines.append((table.start, row, n_pages, n_slots if named else -1))
            pages += [table.pool.address(page) for page in table.pages]
            bounds += [table.pool.bounds.address(page) for page in table.pages] if searches else []
            n_pages += len(table.pages)
            if named:
                slots.append(
                    np.concatenate([table.slots.positions[: table.start], call.rows.positions]).astype(np.int32)
                )
                n_slots += len(slots[-1])
            row += call.rows.count
    parts.add("pages", np.array(pages, np.uint64))
    parts.add("bounds", np.array(bounds, np.uint64))
    parts.add("views", np.array(lines, np.int32).reshape(-1, 4))
    parts.add("slot_positions", np.concatenate(slots) if slots else np.zeros(0, np.int32))


def _add_recurrent(calls: Sequence[Call], caches: Sequence[PagedCache], blocks: Sequence[int], parts: _Parts) -> int:
    """Add the state updates of recurrent blocks and their addresses; returns the number of taps of a row."""
    places, updates, ends, taps = list[tuple[int, ...]](), list[tuple[int, int, int]](), list[int](), list[list[int]]()
    firsts = np.cumsum([0, *(call.rows.count for call in calls)]).tolist()
    for b in blocks:
        for call, cache, row in zip(calls, caches, firsts, strict=False):
            start, history, pending, rows = cache.recurrent[b].places()
            places.append((start, history, pending, rows, call.rows.first, row))
            updates += [(on, at, row + out if out >= 0 else -1) for on, at, out in cache.updates[b]]
            ends.append(len(updates))
    n = max((caches[0].spec.recurrent[b].conv_size for b in blocks), default=0)
    for call, cache in zip(calls, caches, strict=True) if n else ():
        taps += [cache.recurrent[blocks[0]].taps(row, n) for row in range(call.rows.first, len(call.rows))]
    parts.add("recurrent", np.array(places, np.int64))
    parts.add("updates", np.array(updates, np.int32))
    parts.add("update_ends", np.array(ends, np.int32))
    parts.add("taps", np.array(taps, np.int32))
    return n


def _base(rows: Rows) -> int:
    """The position of a row without parent if all rows' positions follow from it, else -1."""
    depth = np.arange(len(rows))
    if not rows.is_chain:
        if rows.groups is not None and (rows.groups >= 0).any():
            return -1
        for i, parent in enumerate(rows.parents.tolist()):
            depth[i] = 0 if parent < 0 else depth[parent] + 1
    base = int(rows.positions[0])
    return base if np.array_equal(rows.positions, base + depth) else -1
