"""Attention: a row and a head a group over chunks of 256 ranks (`kernels/cpu/attention.inl`). A rank is a key's number
among what a row sees, so trees and chains are the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.functions import exp, softcap
from edgedec.export.sources.kernel import GroupWork, Kernels
from edgedec.export.sources.kv import KvWords
from edgedec.export.sources.rows import THREADS, row_number
from edgedec.export.sources.words import (
    CHUNK,
    LANES,
    NOTHING,
    PAGE_SLOTS,
    Array,
    Expr,
    barrier,
    bind,
    branch,
    div,
    f32,
    larger,
    own,
    shared,
    strided,
    total,
)
from edgedec.spec import Attention


@dataclass(frozen=True)
class GroupSight:
    """What a row sees: ranks 0 to `own`. begin: where its path lies (negative: a chain)."""

    work: GroupWork
    block: Attention
    length: Expr
    own: Expr
    begin: Expr
    pages: Expr

    @classmethod
    def of(cls, work: GroupWork, block: Attention) -> GroupSight:
        """The sight of a group's row."""
        length, begin, end, at, pages = (
            row_number(work["rows"], work.tile, name) for name in ("length", "begin", "end", "at", "pages")
        )
        last = bind(length + T.Select(begin >= T.int32(0), end - begin - T.int32(1), at))
        return cls(work, block, length, last, begin, pages)

    def slot(self, rank: Expr) -> Expr:
        """The slot of a rank."""
        dense = T.Or(self.begin < T.int32(0), rank < self.length)
        place = bind(T.Select(dense, T.int32(0), self.begin + rank - self.length))
        return bind(T.Select(dense, rank, self.length + self.work["path"][place]))

    def page(self, slot: Expr) -> Expr:
        """The page of a slot."""
        return self.work["pages"][self.pages + div(slot, PAGE_SLOTS)]

    def sees(self, rank: Expr) -> Expr | None:
        """Whether a window leaves a rank that is not after the row's own; None: there is no window."""
        if self.block.window is None:
            return None
        return T.Or(rank > self.own - self.block.window, rank < T.int32(self.block.sinks))

    def sees_any(self, base: Expr) -> Expr | None:
        """Whether a window leaves any of a chunk."""
        if self.block.window is None:
            return None
        return T.Or(base < T.int32(self.block.sinks), base + (CHUNK - 1) > self.own - self.block.window)


@dataclass(frozen=True)
class Item:
    """A query and the group's memory for it: its values, scores of a chunk, lanes, sums of values; state: the maximum
    and the sum so far."""

    sight: GroupSight
    words: KvWords
    head: Expr
    query: Array
    scores: Array
    lanes: Array
    sums: Array
    state: Array


def attend(k: Kernels, block: Attention, kv: str) -> str:
    """Write the kernel of attention; its name. Item: a head. Arrays qkv, rows, path, pages, pool, attended."""
    name = _name_of(block, kv)
    if k.has(name):
        return name
    arrays = {"qkv": "float32", "rows": "int32", "path": "int32", "pages": "int32", "pool": "uint32"}
    with k.kernel(name, THREADS, {**arrays, "attended": "float32"}) as work:
        dim, d = block.head_dim, k.dialect
        x = work["qkv"].at(work.tile * (block.q_dim + 2 * block.kv_dim) + work.item * dim)
        head = div(work.item, block.n_heads // block.n_kv_heads)
        item = Item(
            GroupSight.of(work, block), KvWords(d, block, kv), head, shared(dim), shared(CHUNK), shared(THREADS),
            shared(dim), own(2),
        )  # fmt: skip
        item.state.put(0, f32(NOTHING))
        item.state.put(1, f32(0.0))

        def begin(i: Expr) -> None:
            item.query.put(i, x[i])
            item.sums.put(i, f32(0.0))

        strided(work.thread, THREADS, dim, begin)
        barrier()
        with T.serial(bind(div(item.sight.own, CHUNK) + 1)) as chunk:
            _one_chunk(k, item, bind(chunk * CHUNK))
        size = bind(T.Select(item.state[1] == f32(0.0), f32(1.0), item.state[1]))
        out = work["attended"].at((work.tile * block.n_heads + work.item) * dim)
        strided(work.thread, THREADS, dim, lambda i: out.put(i, d.divide(item.sums[i], size)))
    return name


def _name_of(block: Attention, kv: str) -> str:
    facts = (
        block.n_heads,
        block.n_kv_heads,
        block.head_dim,
        block.window or 0,
        block.sinks,
        block.scale,
        block.softcap,
    )
    return re.sub(r"\W", "_", f"attend_{kv}_{'_'.join(format(n, '.9g') for n in facts)}")


def _one_chunk(k: Kernels, item: Item, base: Expr) -> None:
    any_seen = item.sight.sees_any(base)
    n = bind(T.min(item.sight.own + 1 - base, T.int32(CHUNK)))
    if any_seen is None:
        return _chunk(k, item, base, n)
    branch(any_seen, lambda: _chunk(k, item, base, n))


def _chunk(k: Kernels, item: Item, base: Expr, n: Expr) -> None:
    """Scores, their maximum, weights and their sum, the weighted values; put together with the chunks before."""
    d, thread = k.dialect, item.sight.work.thread

    def each(run: Callable[[Expr], None]) -> None:
        strided(thread, THREADS, CHUNK, lambda i: branch(i < n, lambda: run(i)))

    each(lambda i: item.scores.put(i, _score(k, item, bind(base + i))))
    barrier()
    top = _largest(item, n)

    def weigh(i: Expr) -> None:
        score = item.scores[i]
        weight = exp(d, bind(score - top))
        item.scores.put(i, T.Select(score <= f32(NOTHING), f32(0.0), weight))

    each(weigh)
    barrier()
    size = _sum(item, n)
    old, more, first = _merge(k, item, top, size)
    strided(thread, THREADS, item.sight.block.head_dim, lambda i: _values(k, item, base, n, i, (old, more, first)))
    barrier()


def _score(k: Kernels, item: Item, rank: Expr) -> Expr:
    """The score of a rank: the dot product in sixteen lanes and their halves, times the scale."""
    d, block, words = k.dialect, item.sight.block, item.words
    pool, slot = item.sight.work["pool"], item.sight.slot(rank)
    at, lanes = words.place(item.sight.page(slot), slot, item.head), own(LANES)
    for lane in range(LANES):
        lanes.put(lane, f32(0.0))
    with T.serial(block.head_dim // LANES) as piece:
        for lane in range(LANES):
            i = bind(piece * LANES + lane)
            lanes.put(lane, d.fma(item.query[i], words.element(pool, at, i), lanes[lane]))
    factor = words.factor(pool, at)
    scale = f32(block.scale) if factor is None else d.mul(factor, f32(block.scale))
    score = softcap(d, d.mul(total([lanes[i] for i in range(LANES)]), scale), block.softcap)
    seen = item.sight.sees(rank)
    return score if seen is None else bind(T.Select(seen, score, f32(NOTHING)))


def _largest(item: Item, n: Expr) -> Expr:
    """The largest score, in all threads."""
    thread, mine = item.sight.work.thread, own(1)
    mine.put(0, f32(NOTHING))
    strided(thread, THREADS, CHUNK, lambda i: branch(i < n, lambda: mine.put(0, larger(item.scores[i], mine[0]))))
    item.lanes.put(thread, mine[0])
    barrier()
    with T.serial(THREADS) as i:
        mine.put(0, larger(item.lanes[i], mine[0]))
    barrier()
    return bind(mine[0] + f32(0.0))


def _sum(item: Item, n: Expr) -> Expr:
    """The sum of the weights in sixteen lanes by rank, in all threads."""
    thread = item.sight.work.thread

    def lane() -> None:
        mine = own(1)
        mine.put(0, f32(0.0))
        with T.serial(CHUNK // LANES) as i:
            at = bind(i * LANES + thread)
            branch(at < n, lambda: mine.put(0, bind(mine[0] + item.scores[at])))
        item.lanes.put(thread, mine[0])

    branch(thread < LANES, lane)
    barrier()
    return total([item.lanes[i] for i in range(LANES)])


def _merge(k: Kernels, item: Item, m: Expr, new: Expr) -> tuple[Expr, Expr, Expr]:
    """The factors of the totals so far and of the chunk, and whether the chunk is the first visible one."""
    d, held, size = k.dialect, item.state[0], item.state[1]
    top = larger(held, m)
    old, more = exp(d, bind(held - top)), exp(d, bind(m - top))
    first = bind(T.Select(held <= f32(NOTHING), T.int32(1), T.int32(0)))
    both = d.fma(new, more, d.mul(size, old))
    item.state.put(1, T.Select(first == T.int32(1), new, both))
    item.state.put(0, T.Select(first == T.int32(1), m, top))
    return old, more, first


def _values(k: Kernels, item: Item, base: Expr, n: Expr, i: Expr, merge: tuple[Expr, Expr, Expr]) -> None:
    """Value i: the chunk's weighted values one after another."""
    d, words, pool = k.dialect, item.words, item.sight.work["pool"]
    part, acc, (old, more, first) = bind(item.head + item.sight.block.n_kv_heads), own(1), merge
    acc.put(0, f32(0.0))
    with T.serial(n) as key:
        slot = item.sight.slot(bind(base + key))
        at = words.place(item.sight.page(slot), slot, part)
        factor, weight = words.factor(pool, at), item.scores[key]
        weight = weight if factor is None else d.mul(weight, factor)
        acc.put(0, d.fma(weight, words.element(pool, at, i), acc[0]))
    new = bind(acc[0] + f32(0.0))
    both = d.fma(new, more, d.mul(item.sums[i], old))
    item.sums.put(i, T.Select(first == T.int32(1), new, both))
