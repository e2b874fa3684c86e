"""The keys that a row sees: ranks, their slots, the slots' pages. Also stores a row's own key and value.

A rank is a key's number among what a row sees, so trees and chains are the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.export.compiled.emitter import BlockTable, Emitter, Frame
from edgedec.export.compiled.kv import KvRows, row_bytes
from edgedec.export.compiled.lanes import LANES, Expr, Ptr, bind, int64, mul
from edgedec.export.compiled.prepare import normed
from edgedec.runtimes.tvm.frame import CHUNK, PAGE_SLOTS, ROWS, block_fields
from edgedec.spec import Attention


@dataclass(frozen=True)
class RowSight:
    """What one row sees: ranks 0 .. own. length: committed slots; begin: where its path begins (negative: a chain);
    slots: where the positions of its sequence's slots begin (negative: positions are ranks)."""

    frame: Frame
    block: Attention
    row: Expr
    length: Expr
    own: Expr
    begin: Expr
    pages: Expr
    slots: Expr

    @classmethod
    def of(cls, frame: Frame, table: BlockTable, block: Attention, row: Expr) -> RowSight:
        sequence = bind(int64(frame.array("sequence")[row]))
        view = frame.array("views").at((table.address("view") * frame.number("sequences") + sequence) * 4)
        length, begin = bind(int64(view[0])), bind(int64(frame.array("begin")[row]))
        path = int64(frame.array("end")[row]) - begin - 1
        own = bind(length + T.Select(begin >= T.int64(0), path, int64(frame.array("at")[row])))
        return cls(frame, block, row, length, own, begin, bind(int64(view[2])), bind(int64(view[3])))

    def slot(self, rank: Expr) -> Expr:
        """The slot of a rank."""
        dense = T.Or(self.begin < T.int64(0), rank < self.length)
        path = self.length + int64(self.frame.array("path")[self.begin + rank - self.length])
        return bind(T.if_then_else(dense, rank, path))

    def place(self, slot: Expr, offset: Expr, size: int) -> tuple[Expr, Expr]:
        """A slot's page, and where a row of `size` bytes lies there in the rows that begin at `offset`."""
        pages = self.frame.array("pages", "int64")
        page = bind(T.reinterpret("handle", pages[self.pages + slot // PAGE_SLOTS]))
        return page, bind(offset + slot % PAGE_SLOTS * size)

    def first(self) -> Expr:
        """The first chunk that may be seen after the sinks."""
        if self.block.window is None:
            return T.int64(0)
        low = T.max(self.own - (self.block.window - 1), T.int64(0)) // CHUNK
        return bind(T.Select(self.slots < T.int64(0), low, T.int64(0)))

    def hides(self, rank: Expr) -> Callable[[], Expr]:
        """Whether a window hides a rank that is not after the row's own."""
        window, sinks = self.block.window or 0, self.block.sinks

        def by_position() -> Expr:
            positions = self.frame.array("slot_positions")
            position = bind(int64(positions[self.slots + self.slot(rank)]))
            row = int64(self.frame.array("positions")[self.row])
            return T.And(position <= row - window, position >= T.int64(sinks))

        return by_position


# ---- heads into pages --------------------------------------------------------------------------------


def emit_store(emit: Emitter, name: str, block: Attention, kv: str) -> None:
    """Item: a row and a kv head; its query heads and its key normed and turned, key and value into their slot."""
    dim, group, width = block.head_dim, block.n_heads // block.n_kv_heads, block.q_dim + 2 * block.kv_dim
    with emit.function(name) as work:
        table = BlockTable(work.table, block_fields(block, emit.spec.hidden_size))
        row, head = bind(work.item // block.n_kv_heads), bind(work.item % block.n_kv_heads)
        line = emit.place(work.frame, "qkv", "float32", ROWS * width).at(row * width)
        key = line.at(block.q_dim + head * dim)
        position = bind(int64(work.frame.array("positions")[row]))
        with T.serial(group) as i:
            _turn_head(emit, table, block, line.at((head * group + i) * dim), "q_norm", position)
        _turn_head(emit, table, block, key, "k_norm", position)
        sight = RowSight.of(work.frame, table, block, row)
        size, rows = row_bytes(dim, kv), KvRows(dim, kv)
        slot = bind(sight.length + int64(work.frame.array("at")[row]))
        offset = bind(table.address("page_offset") + head * (PAGE_SLOTS * size))
        page, at = sight.place(slot, offset, size)
        rows.store(key, page, at)
        rows.store(key.at(block.kv_dim), page, bind(at + block.n_kv_heads * PAGE_SLOTS * size))


def _turn_head(emit: Emitter, table: BlockTable, block: Attention, x: Ptr, norm: str, position: Expr) -> None:
    if block.qk_norm == "head":
        normed(x, x, block.head_dim, "rms", table.pointer(norm), None, emit.spec.norm_eps)
    if block.rope is None:
        return
    pairs = len(emit.spec.ropes[block.rope].inv_freq)
    cos, sin = (table.pointer(part).at(position * pairs) for part in ("cos", "sin"))
    lanes = LANES if pairs % LANES == 0 else 1
    with T.serial(pairs // lanes) as i:
        at = i * lanes

        def get(of: Ptr, j: Expr) -> Expr:
            return bind(of.vec(j, lanes) if lanes > 1 else of[j])

        a, b, c, s = get(x, at), get(x, at + pairs), get(cos, at), get(sin, at)
        x.put(at, mul(a, c) - mul(b, s), lanes)
        x.put(at + pairs, mul(b, c) + mul(a, s), lanes)
