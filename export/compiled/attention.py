"""Attention: heads normed and turned, keys and values into the pages, then rows by kv heads over chunks of 256 ranks.

For one query and one chunk, as `kernels/cpu/attention.inl`: scores = scale * (query . key), the dot product in 16 lanes
and their halves; the chunk's maximum; p = exp(score - maximum); the sum of p in 16 lanes by rank; the weighted values
one key after another. Chunks are merged in order. A rank is a key's number among what a row sees, so trees and chains
are the same arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.export.compiled.emitter import BlockTable, Emitter, branch
from edgedec.export.compiled.kv import KvRows, row_bytes
from edgedec.export.compiled.lanes import (
    LANES,
    Expr,
    Ptr,
    bind,
    exp,
    fma,
    int64,
    larger,
    local,
    most,
    mul,
    spread,
    tanh,
    total,
    totals,
)
from edgedec.export.compiled.sight import RowSight
from edgedec.runtimes.tvm.frame import CHUNK, PAGE_SLOTS, ROWS, block_fields, scratch_floats
from edgedec.spec import Attention

_INFINITY = float("inf")


# ---- rows by kv heads --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """The queries of one row that share a kv head, and a thread's memory for them: sixteen keys as floats, scores
    [group, CHUNK], sums [group, dim], maximum and sum of each. lanes: of the machine's vectors."""

    block: Attention
    rows: KvRows
    size: int
    queries: Ptr
    scores: Ptr
    totals: Ptr
    facts: Ptr
    keys: Ptr
    lanes: int

    @property
    def count(self) -> int:
        return self.block.n_heads // self.block.n_kv_heads

    @property
    def pieces(self) -> int:
        return self.block.head_dim // LANES


def emit_attend(emit: Emitter, name: str, block: Attention, kv: str, threads: int) -> None:
    """Item: a row and a kv head; writes the attention output of its queries to "attended"."""
    dim, group, width = block.head_dim, block.n_heads // block.n_kv_heads, block.q_dim + 2 * block.kv_dim
    with emit.function(name) as work:
        table = BlockTable(work.table, block_fields(block, emit.spec.hidden_size))
        row, head = bind(work.item // block.n_kv_heads), bind(work.item % block.n_kv_heads)
        line = emit.place(work.frame, "qkv", "float32", ROWS * width).at(row * width)
        out = emit.place(work.frame, "attended", "float32", ROWS * block.q_dim).at(
            (row * block.n_heads + head * group) * dim
        )
        floats = -(-scratch_floats(block) // LANES) * LANES
        block_of_keys = emit.place(work.frame, "attention", "float32", threads * floats).at(work.thread * floats)
        mine = block_of_keys.at(LANES * dim)
        g = Group(
            block, KvRows(dim, kv), row_bytes(dim, kv), line.at(head * group * dim), mine,
            mine.at(group * CHUNK), mine.at(group * (CHUNK + dim)), block_of_keys, emit.machine.width,
        )  # fmt: skip
        sight = RowSight.of(work.frame, table, block, row)
        keys = bind(table.address("page_offset") + head * (PAGE_SLOTS * g.size))
        for q in range(group):
            g.facts.put(2 * q, T.float32(-_INFINITY))
            g.facts.put(2 * q + 1, T.float32(0.0))
            for i in range(g.pieces):
                g.totals.put(q * dim + i * LANES, spread(0.0), LANES)
        _over_chunks(g, sight, keys)
        for q in range(group):
            size = bind(g.facts[2 * q + 1])
            size = spread(bind(T.Select(size == T.float32(0.0), T.float32(1.0), size)))
            for i in range(g.pieces):
                at = q * dim + i * LANES
                out.put(at, g.totals.vec(at) / size, LANES)


def _over_chunks(g: Group, sight: RowSight, keys: Expr) -> None:
    values = bind(keys + g.block.n_kv_heads * PAGE_SLOTS * g.size)
    first = sight.first()
    with T.serial(bind(sight.own // CHUNK + 1)) as chunk:
        base = bind(int64(chunk) * CHUNK)
        seen = T.Or(int64(chunk) >= first, base < T.int64(g.block.sinks))

        def run() -> None:
            n = bind(T.min(sight.own + 1 - base, T.int64(CHUNK)))
            _score(g, sight, keys, base, n)
            tops = [_weigh(g, sight, q, base, n) for q in range(g.count)]
            _add_values(g, sight, values, base, n, tops)

        branch(seen, run)


def _score(g: Group, sight: RowSight, keys: Expr, base: Expr, n: Expr) -> None:
    """Scores of all queries with the ranks of a chunk, sixteen at a time; after the last rank it is repeated."""
    scale, dim = T.float32(g.block.scale), g.block.head_dim
    with T.serial(bind((n + (LANES - 1)) // LANES)) as sixteen:
        k0 = bind(int64(sixteen) * LANES)
        factors = []
        for k in range(LANES):
            rank = bind(base + T.min(k0 + k, n - 1))
            place = sight.place(sight.slot(rank), keys, g.size)
            of_row = g.rows.factor(*place)
            factors.append(scale if of_row is None else mul(of_row, scale))
            for i in range(g.pieces):
                g.keys.put(k * dim + i * LANES, g.rows.piece(*place, i), LANES)
        lanes = local(LANES, "float32")
        for k, factor in enumerate(factors):
            lanes.put(k, factor)
        factor = bind(lanes.vec(0))
        for q in range(g.count):
            x = [bind(g.queries.vec(q * dim + i * LANES)) for i in range(g.pieces)]
            dots = totals([_dot(g, x, k) for k in range(LANES)])
            g.scores.put(q * CHUNK + k0, mul(dots, factor), LANES)


def _dot(g: Group, x: list[Expr], key: int) -> Expr:
    """A query by one of the sixteen keys, in sixteen lanes."""
    total = spread(0.0)
    for i, piece in enumerate(x):
        total = fma(piece, bind(g.keys.vec(key * g.block.head_dim + i * LANES)), total)
    return total


def _weigh(g: Group, sight: RowSight, q: int, base: Expr, n: Expr) -> Expr:
    """Scores become weights; the chunk's maximum (-inf: nothing is seen) and their sum go to `facts`' places after the
    totals."""
    line, vectors = g.scores.at(q * CHUNK), bind((n + (LANES - 1)) // LANES)
    top = local(2, "float32x16")
    top.put(0, spread(-_INFINITY))
    numbers = T.ramp(T.int64(0), T.int64(1), LANES)
    if g.block.softcap:
        cap = spread(g.block.softcap)
        with T.serial(vectors) as i:
            line.put(int64(i) * LANES, mul(cap, tanh(bind(line.vec(int64(i) * LANES) / cap))), LANES)
    _hide(g, sight, line, base, n, -_INFINITY)
    with T.serial(vectors) as i:
        at = bind(int64(i) * LANES)
        inside = numbers + T.broadcast(at, LANES) < T.broadcast(n, LANES)
        value = bind(T.Select(inside, line.vec(at), spread(-_INFINITY)))
        top.put(0, larger(value, bind(top[0])))
    m = bind(most(bind(top[0])) + T.float32(0.0))
    top.put(1, spread(0.0))
    with T.serial(vectors) as i:
        at = bind(int64(i) * LANES)
        inside = numbers + T.broadcast(at, LANES) < T.broadcast(n, LANES)
        old = bind(line.vec(at))
        hidden = bind(T.Select(old == spread(-_INFINITY), spread(0.0), exp(bind(old - spread(m)))))
        p = bind(T.Select(inside, hidden if g.block.window is not None else exp(bind(old - spread(m))), spread(0.0)))
        line.put(at, p, LANES)
        top.put(1, bind(top[1]) + p)
    g.facts.put(2 * g.count + q, total(bind(top[1])))
    return m


def _hide(g: Group, sight: RowSight, line: Ptr, base: Expr, n: Expr, value: float) -> None:
    """Set the scores of what a window hides."""
    window, sinks = g.block.window, g.block.sinks
    if window is None:
        return

    def by_rank() -> None:
        low = bind(T.max(sight.own - (window - 1) - base, T.int64(0)))
        start = bind(T.min(T.max(T.int64(sinks) - base, T.int64(0)), low))
        with T.serial(bind(T.max(T.min(low, n) - start, T.int64(0)))) as i:
            line.put(start + int64(i), T.float32(value))

    def by_position() -> None:
        with T.serial(n) as i:
            hidden = sight.hides(bind(base + int64(i)))()
            branch(hidden, lambda i=i: line.put(int64(i), T.float32(value)))  # type: ignore[misc]

    branch(sight.slots < T.int64(0), by_rank, by_position)


def _add_values(g: Group, sight: RowSight, values: Expr, base: Expr, n: Expr, tops: list[Expr]) -> None:
    """The chunk's weighted values, put together with those of the chunks before."""
    dim, at_once = g.block.head_dim, _pieces_at_once(g)
    if g.rows.format == "int8":
        _times_factors(g, sight, values, base, n)
    factors = [_merge(g, q, tops[q]) for q in range(g.count)]
    for piece in range(0, g.pieces, at_once):
        sums = local(g.count * at_once, "float32x16")
        for i in range(g.count * at_once):
            sums.put(i, spread(0.0))
        with T.serial(n) as k:
            page, at = sight.place(sight.slot(bind(base + int64(k))), values, g.size)
            for j in range(at_once):
                value = g.rows.piece(page, at, piece + j)
                for q in range(g.count):
                    weight = spread(bind(g.scores[q * CHUNK + int64(k)]))
                    sums.put(q * at_once + j, fma(weight, value, bind(sums[q * at_once + j])))
        for q in range(g.count):
            for j in range(at_once):
                place = q * dim + (piece + j) * LANES
                _merge_piece(g, place, bind(sums[q * at_once + j] + spread(0.0)), factors[q])


def _pieces_at_once(g: Group) -> int:
    """Pieces of a value whose sums of all queries stay in registers: there are 32 of 16 lanes, or 16 of 8."""
    room = 24 if g.lanes == LANES else 8
    return next((n for n in (4, 2) if g.pieces % n == 0 and n * g.count <= room), 1)


def _times_factors(g: Group, sight: RowSight, values: Expr, base: Expr, n: Expr) -> None:
    with T.serial(n) as k:
        factor = g.rows.factor(*sight.place(sight.slot(bind(base + int64(k))), values, g.size))
        for q in range(g.count):
            g.scores.put(q * CHUNK + int64(k), mul(bind(g.scores[q * CHUNK + int64(k)]), factor))


def _merge(g: Group, q: int, m: Expr) -> tuple[Expr, Expr, Expr]:
    """The factors of the totals so far and of the chunk, and a code: 0 only the chunk counts, 1 both, 2 only the
    totals."""
    none = T.float32(-_INFINITY)
    held, size, new = bind(g.facts[2 * q]), bind(g.facts[2 * q + 1]), bind(g.facts[2 * g.count + q])
    top = bind(T.Select(held > m, held, m))
    old, more = exp(bind(held - top)), exp(bind(m - top))
    code = bind(T.Select(m == none, T.int32(2), T.Select(held == none, T.int32(0), T.int32(1))))
    both = fma(new, more, mul(size, old))
    g.facts.put(2 * q + 1, T.Select(code == 2, size, T.Select(code == 0, new, both)))
    g.facts.put(2 * q, T.Select(code == 2, held, T.Select(code == 0, m, top)))
    return old, more, code


def _merge_piece(g: Group, place: int, new: Expr, factors: tuple[Expr, Expr, Expr]) -> None:
    old, more, code = factors
    branch(code == 0, lambda: g.totals.put(place, new, LANES))

    def both() -> None:
        g.totals.put(place, fma(new, spread(more), mul(bind(g.totals.vec(place)), spread(old))), LANES)

    branch(code == 1, both)
