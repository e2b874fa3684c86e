"""The native engine's saved cache (`kernels/cpu/cache.cpp`), read from and written to pages on a device.

A header, then the blocks that keep a state. Attention: slots, whether they are named, of named ones tokens and
positions, then rows [k and v][kv_heads][slots]. Recurrent: slots, length, history, state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct, error
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.base import MOST_ATTACHED
from edgedec.kernels.device import structs
from edgedec.runtimes._device.pages import SLOTS, PagePool
from edgedec.runtimes._device.recurrent import DeviceRecurrent, Recurring
from edgedec.spec import Attention, Conv, Delta, ModelSpec, Ssm

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
_header, _block = Struct("=4s3iQq"), Struct("=2q")
_KINDS = {"attention": 1, "mlp": 2, "moe": 3, "ssm": 4, "conv": 10, "delta": 11}


class SavedSlots(Protocol):
    """Committed slots of a block."""

    @property
    def committed(self) -> int: ...
    @property
    def positions(self) -> Ints: ...
    @property
    def tokens(self) -> Ints: ...


class SavedTable(Protocol):
    """A block's slots and pages."""

    @property
    def slots(self) -> SavedSlots: ...
    @property
    def pages(self) -> list[int]: ...

    def identity(self) -> bool: ...


@dataclass(frozen=True)
class SavedBlock:
    """pages: of each the bytes [2 * kv_heads, SLOTS, row bytes], zeros after the last slot."""

    tokens: Ints
    positions: Ints
    pages: list[Bytes]


@dataclass(frozen=True)
class SavedState:
    slots: int
    length: int
    history: bytes
    state: bytes


@dataclass(frozen=True)
class Saved:
    length: int
    blocks: dict[int, SavedBlock]
    states: dict[int, SavedState]


def state_shape(spec: ModelSpec) -> int:
    """A number that is equal for models with interchangeable caches (`state_shape` there)."""
    found = 14695981039346656037
    for block in spec.blocks:
        numbers = [_KINDS.get(block.kind, 0)]
        if isinstance(block, Attention):
            numbers += [block.n_kv_heads, block.head_dim]
        if isinstance(block, Delta | Ssm):
            numbers += [block.n_heads, block.head_dim, block.state_size, block.n_groups, block.conv_size]
        if isinstance(block, Conv):
            numbers += [block.inner_size, block.conv_size]
        for number in numbers:
            found = (found ^ number) * 1099511628211 % (1 << 64)
    return found


def save(
    pool: PagePool,
    kv: str,
    length: int,
    tables: Mapping[int, SavedTable],
    states: Mapping[int, DeviceRecurrent],
) -> Bytes:
    """The bytes that the native engine saves for such a cache."""
    spec = pool.spec
    parts = [_header.pack(b"edkv", 1, structs.FORMATS[kv], spec.n_blocks, state_shape(spec), length)]
    for b in sorted([*tables, *states]):
        if b in states:
            parts += [_block.pack(states[b].slots, states[b].length), states[b].save()]
            continue
        table = tables[b]
        named = not table.identity()
        parts.append(_block.pack(table.slots.committed, named))
        if named:
            parts += [table.slots.tokens.astype("<i8").tobytes(), table.slots.positions.astype("<i8").tobytes()]
        parts.append(_rows(pool, b, table))
    return np.frombuffer(b"".join(parts), np.uint8).copy()


def _rows(pool: PagePool, block: int, table: SavedTable) -> bytes:
    """Rows [k and v][kv_heads][slots] of a block."""
    slots, runs, width = table.slots.committed, 2 * pool.spec.attention[block].n_kv_heads, pool.rows[block]
    n = -(-slots // SLOTS)
    pages = np.empty((n, runs, SLOTS, width), np.uint8)
    for at, page in enumerate(table.pages[:n]):
        pool.read(page, block, pages[at])
    return pages.transpose(1, 0, 2, 3).reshape(runs, n * SLOTS, width)[:, :slots].tobytes()


def read(state: Bytes, spec: ModelSpec, kv: str, rows: Mapping[int, int], capacity: int) -> Saved | None:
    """A saved state; None if it is of another kind of cache or holds more than `capacity`."""
    data = state.tobytes()
    try:
        magic, version, fmt, blocks, shape, length = _header.unpack_from(data)
        known = (b"edkv", 1, structs.FORMATS[kv], spec.n_blocks, state_shape(spec))
        if (magic, version, fmt, blocks, shape) != known or not 0 <= length <= capacity:
            return None
        at, found, states = _header.size, dict[int, SavedBlock](), dict[int, SavedState]()
        for b, block in enumerate(spec.blocks):
            if isinstance(block, Recurring):
                states[b], at = read_state(data, at, block)
                if not 0 <= states[b].slots <= states[b].length <= length:
                    return None
            if not isinstance(block, Attention):
                continue
            part = _read_block(data, at, 2 * block.n_kv_heads, rows[b], length)
            if part is None:
                return None
            found[b], at = part
    except (error, ValueError):
        return None
    return Saved(length, found, states) if at == len(data) else None


def state_bytes(block: Recurring) -> tuple[int, int]:
    """Of the history and of the state that a block saves."""
    lanes = -(-block.head_dim // structs.LANES) * structs.LANES
    return 4 * (block.conv_size - 1) * block.conv_dim, 4 * block.n_heads * lanes * block.state_size


def read_state(data: bytes | memoryview, at: int, block: Recurring) -> tuple[SavedState, int]:
    """The state of a block from byte `at` on, and where the next one begins."""
    slots, length = _block.unpack_from(data, at)
    history, state = state_bytes(block)
    end = at + _block.size + history + state
    if end > len(data):
        raise ValueError("shorter than its state")
    parts = bytes(data[at + _block.size : end])
    return SavedState(slots, length, parts[:history], parts[history:]), end


def _read_block(data: bytes, at: int, runs: int, width: int, length: int) -> tuple[SavedBlock, int] | None:
    """A block from byte `at` on, and where the next one begins."""
    slots, named = _block.unpack_from(data, at)
    at += _block.size
    if not 0 <= slots <= length + MOST_ATTACHED or named not in (0, 1):
        return None
    tokens = positions = np.arange(slots, dtype=np.int64)
    if named:
        tokens = np.frombuffer(data, "<i8", slots, at).astype(np.int64)
        positions = np.frombuffer(data, "<i8", slots, at + 8 * slots).astype(np.int64)
        at += 16 * slots
        if slots and ((np.diff(tokens) < 0).any() or tokens[0] < 0):
            return None
    values = np.frombuffer(data, np.uint8, runs * slots * width, at).reshape(runs, slots, width)
    padded = np.pad(values, ((0, 0), (0, -slots % SLOTS), (0, 0)))
    pages = padded.reshape(runs, -1, SLOTS, width).transpose(1, 0, 2, 3)
    return SavedBlock(tokens, positions, [np.ascontiguousarray(page) for page in pages]), at + values.nbytes
