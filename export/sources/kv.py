"""One key or value in and out of a cache page (`kernels/cpu/kv.inl`), as words of 32 bits.

Each attention block has a pool of its own: pages of 64 slots, of each page the keys of every kv head, then the values.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.rows import packed
from edgedec.export.sources.words import (
    LANES,
    PAGE_SLOTS,
    Array,
    Expr,
    absolute,
    as_float,
    barrier,
    bind,
    branch,
    div,
    f32,
    half_bits,
    half_of,
    i32,
    larger,
    mod,
    shared,
    smaller,
    strided,
    u32,
)
from edgedec.spec import Attention

_LARGEST, _LEAST, _NARROW = 3.4028234663852886e38, 1.1754943508222875e-38, 16


class KvWords:
    """Rows of one format. dim: of a head."""

    def __init__(self, dialect: Dialect, block: Attention, kv: str) -> None:
        self.d, self.block, self.dim = dialect, block, block.head_dim
        self.format = "int8" if kv == "int4" and self.dim <= _NARROW else kv

    @property
    def row_words(self) -> int:
        """Words of one key or value of a head."""
        dim = self.dim
        return {"f32": dim, "f16": dim // 2, "int8": dim // 4 + 1, "int4": dim // 8 + dim // LANES}[self.format]

    @property
    def page_words(self) -> int:
        """Words of a page of a block's pool."""
        return 2 * self.block.n_kv_heads * PAGE_SLOTS * self.row_words

    def place(self, page: Expr, slot: Expr, part: Expr) -> Expr:
        """Where the row of a slot begins. part: a kv head's number, of values after those of keys."""
        run = PAGE_SLOTS * self.row_words
        return bind(page * self.page_words + part * run + mod(slot, PAGE_SLOTS) * self.row_words)

    # ---- reading ----

    def factor(self, pool: Array, at: Expr) -> Expr | None:
        """The scale that the values of a row still need; None: no scale."""
        return as_float(pool[at + self.dim // 4]) if self.format == "int8" else None

    def element(self, pool: Array, at: Expr, i: Expr) -> Expr:
        """Value i of a row."""
        if self.format == "f32":
            return as_float(pool[at + i])
        if self.format == "f16":
            return half_of(pool[at + div(i, 2)], mod(i, 2))
        if self.format == "int8":
            word, shift = i32(pool[at + div(i, 4)]), bind(T.int32(24) - mod(i, 4) * T.int32(8))
            return bind(T.Cast("float32", bind((word << shift) >> T.int32(24))))
        piece = div(i, LANES)
        word = i32(pool[at + div(piece, 2) * (LANES // 4) + div(mod(i, LANES), 4)])
        shift = bind(mod(i, 4) * T.int32(8) + mod(piece, 2) * T.int32(4))
        pair = i32(pool[at + self.dim // 8 + piece])
        scale, least = as_float(pair << T.int32(16)), as_float(pair & T.int32(-0x10000))
        return self.d.fma(bind(T.Cast("float32", bind((word >> shift) & T.int32(15)))), scale, least)

    # ---- writing, by all threads of a group ----

    def store(self, x: Array, pool: Array, at: Expr, thread: Expr, threads: int) -> None:
        """Write a row of floats."""
        kinds = {"f32": self._store_f32, "f16": self._store_f16, "int8": self._store_int8, "int4": self._store_int4}
        kinds[self.format](x, pool, at, thread, threads)

    def _store_f32(self, x: Array, pool: Array, at: Expr, thread: Expr, threads: int) -> None:
        strided(thread, threads, self.dim, lambda i: pool.put(at + i, u32(x[i])))

    def _store_f16(self, x: Array, pool: Array, at: Expr, thread: Expr, threads: int) -> None:
        def word(i: Expr) -> None:
            low, high = (half_bits(self.d.rounded, x[i * 2 + j]) for j in range(2))
            pool.put(at + i, u32(bind(low | (high << T.int32(16)))))

        strided(thread, threads, self.dim // 2, word)

    def _store_int8(self, x: Array, pool: Array, at: Expr, thread: Expr, threads: int) -> None:
        lanes = shared(LANES)

        def lane() -> None:
            top = f32(0.0)
            for i in range(self.dim // LANES):
                top = larger(absolute(x[i * LANES + thread]), top)
            lanes.put(thread, top)

        branch(thread < LANES, lane)
        barrier()
        top = lanes[0]
        for i in range(1, LANES):
            top = larger(lanes[i], top)
        scale = self.d.divide(smaller(top, f32(_LARGEST)), f32(127.0))
        scale = bind(T.Select(scale < f32(_LEAST), f32(0.0), scale))
        unit = self._inverse(scale)

        def word(i: Expr) -> None:
            scaled = [self.d.mul(x[i * 4 + j], unit) for j in range(4)]
            limited = [smaller(larger(v, f32(-127.0)), f32(127.0)) for v in scaled]
            pool.put(at + i, packed([self.d.rounded(v) for v in limited]))

        strided(thread, threads, self.dim // 4, word)
        branch(thread == 0, lambda: pool.put(at + self.dim // 4, u32(scale)))

    def _store_int4(self, x: Array, pool: Array, at: Expr, thread: Expr, threads: int) -> None:
        """A thread eight values: four of one sixteen by the low nibbles, four of the next by the high ones."""

        def word(i: Expr) -> None:
            group, part = div(i, LANES // 4), mod(i, LANES // 4)
            made = bind(T.uint32(0))
            for j in range(2):
                values = x.at((group * 2 + j) * LANES)
                pair = self._pair(values)
                four = [self._nibble(values[part * 4 + b], pair) for b in range(4)]
                made = bind(made | (packed(four) << T.uint32(4 * j)))
                to = bind(at + self.dim // 8 + group * 2 + j)
                branch(part == 0, lambda to=to, pair=pair: pool.put(to, u32(pair)))  # type: ignore[misc]
            pool.put(at + i, made)

        strided(thread, threads, self.dim // 8, word)

    def _pair(self, x: Array) -> Expr:
        """Of sixteen values: scale (in the low half) and least value, rounded so that 0 to 15 cover them."""
        least, top = f32(1e38), f32(-1e38)
        for i in range(LANES):
            least, top = smaller(x[i], least), larger(x[i], top)
        some = bind(T.Cast("float32", bind(top >= least)))
        least, top = (bind(T.Select(some > f32(0.0), v, f32(0.0))) for v in (least, top))
        least, top = larger(least, f32(-1e38)), smaller(top, f32(1e38))
        away = bind(T.Select(least < f32(0.0), T.int32(0xFFFF), T.int32(0)))
        low = bind((i32(least) + away) & T.int32(-0x10000))
        wide = self.d.divide(bind(top - as_float(low)), f32(15.0))
        step = bind((i32(wide) + T.int32(0xFFFF)) & T.int32(-0x10000))
        step = bind(T.Select(as_float(step) < f32(_LEAST), T.int32(0), step))
        return bind(low | ((step >> T.int32(16)) & T.int32(0xFFFF)))

    def _nibble(self, x: Expr, pair: Expr) -> Expr:
        scale, least = as_float(pair << T.int32(16)), as_float(pair & T.int32(-0x10000))
        scaled = self.d.mul(bind(x - least), self._inverse(scale))
        return self.d.rounded(smaller(larger(scaled, f32(0.0)), f32(15.0)))

    def _inverse(self, scale: Expr) -> Expr:
        return bind(T.Select(scale >= f32(_LEAST), self.d.divide(f32(1.0), scale), f32(0.0)))
