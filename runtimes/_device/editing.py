"""Changes to committed slots of a cache: drop slots by head, merge slots into others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.runtimes._device.formats import kv_format
from edgedec.runtimes._device.pages import SLOTS
from edgedec.runtimes._device.rows import load_rows, store_rows
from edgedec.runtimes._device.table import PageTable

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def block_rows(table: PageTable, block: int, pages: Sequence[int] | Ints) -> Bytes:
    """Rows [2 * kv_heads, len(pages) * SLOTS, row bytes] of a block in pages of a table, by their numbers there."""
    pool = table.pool
    runs, width = 2 * pool.spec.attention[block].n_kv_heads, pool.rows[block]
    found = np.empty((len(pages), runs, SLOTS, width), np.uint8)
    for i, at in enumerate(pages):
        pool.read(table.pages[at], block, found[i])
    return found.transpose(1, 0, 2, 3).reshape(runs, -1, width)


def keys(table: PageTable, block: int, kv: str, start: int) -> Floats:
    """Keys [kv_heads, slots - start, head_dim] of the committed slots from `start` on."""
    facts, slots = table.pool.spec.attention[block], table.slots.committed
    first = start // SLOTS
    rows = block_rows(table, block, range(first, -(-slots // SLOTS)))[: facts.n_kv_heads]
    chosen = rows[:, max(start - first * SLOTS, 0) : max(slots - first * SLOTS, 0)]
    return load_rows(np.ascontiguousarray(chosen), facts.head_dim, kv_format(facts, kv))


def drop_by_head(table: PageTable, block: int, gone: Ints) -> None:
    """Drop slots [kv_heads, n] of each head; the table is exclusive to the block."""
    for head, stay in enumerate(table.slots.drop_by_head(gone)):
        moved = stay != np.arange(len(stay))
        table.move(stay[moved].tolist(), np.flatnonzero(moved).tolist(), [block], head)
    table.shrink()


def merge(
    table: PageTable, members: Sequence[int], block: int, kv: str, into: Ints, slots: Ints, weights: Floats
) -> None:
    """Add rows of `slots`, weighted by [kv_heads, n], to those of `into`. The order of sums is the native engine's:
    target by target, the target's own share first. members: the blocks of the table."""
    facts, pool = table.pool.spec.attention[block], table.pool
    dim, fmt = facts.head_dim, kv_format(facts, kv)
    targets = np.unique(into)
    for page in np.unique(targets // SLOTS).tolist():
        table.own(page * SLOTS, page * SLOTS + 1, members)
    touched = np.unique(np.concatenate([into, slots]) // SLOTS)
    rows = block_rows(table, block, touched)
    both = np.concatenate([weights, weights])  # keys, then values
    for target in targets.tolist():
        added = np.flatnonzero(into == target)
        at = _within(touched, target)
        own = np.ones((len(both), 1), np.float32)
        for i in added:
            own = own - both[:, i, None]
        total = load_rows(np.ascontiguousarray(rows[:, at]), dim, fmt) * own
        for i in added:
            other = np.ascontiguousarray(rows[:, _within(touched, int(slots[i]))])
            total = total + both[:, i, None] * load_rows(other, dim, fmt)
        rows[:, at] = store_rows(total, fmt, rows.shape[2])
    paged = rows.reshape(len(rows), len(touched), SLOTS, -1).transpose(1, 0, 2, 3)
    for at, page in enumerate(touched.tolist()):
        if page in targets // SLOTS:
            pool.write(table.pages[page], block, np.ascontiguousarray(paged[at]))


def _within(pages: Ints, slot: int) -> int:
    """The index of each slot within the rows of some pages, ascending."""
    return int(np.searchsorted(pages, slot // SLOTS)) * SLOTS + slot % SLOTS
