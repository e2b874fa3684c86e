"""The tokens of a cache from one on, as the native engine keeps them (`ed_cache_save_rest`), in and out of pages on a
device: a header with the token they begin at, then rows [k and v][kv_heads][tokens] or a state of each block."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device import structs
from edgedec.runtimes._device.pages import SLOTS, PagePool
from edgedec.runtimes._device.recurrent import DeviceRecurrent, recurring
from edgedec.runtimes._device.saved import SavedState, read_state, state_bytes, state_shape
from edgedec.runtimes._device.table import PageTable

Bytes = NDArray[np.uint8]
Tables = Mapping[int, PageTable]
States = Mapping[int, DeviceRecurrent]
_header, _state = Struct("=4s3iQ2q"), Struct("=2q")


def contiguous(length: int, tables: Tables, states: States) -> bool:
    """Whether the slots of all blocks are the tokens 0 .. length - 1."""
    whole = all(table.slots.committed == length and table.identity() for table in set(tables.values()))
    return whole and all(state.slots == state.length == length for state in states.values())


def save_rest(pool: PagePool, kv: str, start: int, length: int, tables: Tables, states: States) -> Bytes:
    """Tokens `start` .. `length` - 1 of a contiguous cache."""
    parts = [_header.pack(b"edkr", 1, structs.FORMATS[kv], pool.spec.n_blocks, state_shape(pool.spec), length, start)]
    for b in sorted([*tables, *states]):
        if b in states:
            parts += [_state.pack(states[b].slots, states[b].length), states[b].save()]
        else:
            parts.append(_rows(pool, b, tables[b], start, length))
    return np.frombuffer(b"".join(parts), np.uint8).copy()


def rest_length(rest: Bytes, pool: PagePool, kv: str, length: int, capacity: int) -> int | None:
    """The number of tokens after appending `rest` to `length` tokens; None if it does not fit there."""
    if rest.nbytes < _header.size:
        return None
    *known, end, start = _header.unpack_from(rest.data)
    if known != [b"edkr", 1, structs.FORMATS[kv], pool.spec.n_blocks, state_shape(pool.spec)]:
        return None
    return end if start == length <= end <= capacity and rest.nbytes == _size(pool, end - start) else None


def append(rest: Bytes, pool: PagePool, tables: Tables, states: States, start: int, end: int) -> None:
    """Write tokens `start` .. `end` - 1 after the tokens of contiguous tables."""
    groups, at = dict[int, list[int]](), _header.size
    for b, table in tables.items():
        groups.setdefault(id(table), []).append(b)
    for members in groups.values():
        tables[members[0]].own(start, end, members)
    for members in groups.values():
        tables[members[0]].slots.extend(np.arange(start, end))
    for b in sorted([*tables, *states]):
        if b in states:
            saved, at = read_state(rest.data, at, recurring(pool.spec)[b])
            _append_state(states[b], saved)
            continue
        runs, width = 2 * pool.spec.attention[b].n_kv_heads, pool.rows[b]
        size = runs * (end - start) * width
        _write(pool, b, tables[b], start, end, rest[at : at + size].reshape(runs, end - start, width))
        at += size


def _append_state(state: DeviceRecurrent, saved: SavedState) -> None:
    """Continue with a later state; earlier checkpoints stay."""
    before = state.checkpoints
    state.load(saved.history, saved.state, saved.length, saved.slots)
    state.remember_before(before)


def _size(pool: PagePool, tokens: int) -> int:
    """Bytes of a rest of so many tokens."""
    rows = sum(2 * block.n_kv_heads * tokens * pool.rows[b] for b, block in pool.spec.attention.items())
    return _header.size + rows + sum(_state.size + sum(state_bytes(block)) for block in recurring(pool.spec).values())


def _rows(pool: PagePool, block: int, table: PageTable, start: int, end: int) -> bytes:
    """Rows [k and v][kv_heads][tokens] of a block."""
    runs, width, first = 2 * pool.spec.attention[block].n_kv_heads, pool.rows[block], start // SLOTS
    pages = np.empty((-(-end // SLOTS) - first, runs, SLOTS, width), np.uint8)
    for page, out in zip(table.pages[first:], pages, strict=False):
        pool.read(page, block, out)
    rows = pages.transpose(1, 0, 2, 3).reshape(runs, -1, width)
    return rows[:, start - first * SLOTS : end - first * SLOTS].tobytes()


def _write(pool: PagePool, block: int, table: PageTable, start: int, end: int, rows: Bytes) -> None:
    """Put rows [k and v][kv_heads][tokens] into the pages of a block; what lies before them there stays."""
    for at in range(start // SLOTS, -(-end // SLOTS)):
        low, high = max(start, at * SLOTS), min(end, (at + 1) * SLOTS)
        page = np.zeros((len(rows), SLOTS, rows.shape[2]), np.uint8)
        if low > at * SLOTS:
            pool.read(table.pages[at], block, page)
        page[:, low - at * SLOTS : high - at * SLOTS] = rows[:, low - start : high - start]
        pool.write(table.pages[at], block, page)
