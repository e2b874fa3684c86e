"""One key or value in and out of a cache page (`kernels/cpu/kv.inl`), in pieces of sixteen values."""

from __future__ import annotations

from collections.abc import Callable

from tvm.script.ir_builder import tirx as T

from edgedec.export.compiled.lanes import (
    LANES,
    Expr,
    Ptr,
    absolute,
    bind,
    fma,
    larger,
    most,
    mul,
    pick,
    reinterpret,
    rounded,
    smaller,
    spread,
)
from edgedec.export.compiled.prepare import half

_LARGEST, _LEAST = 3.4028234663852886e38, 1.1754943508222875e-38
_NARROW_HEAD = 16


def format_of(dim: int, kv: str) -> str:
    """How heads of this size are kept: those of so few values have no int4."""
    return "int8" if kv == "int4" and dim <= _NARROW_HEAD else kv


def row_bytes(dim: int, kv: str) -> int:
    """Bytes of one key or value of a head, of whole sixteens."""
    return {"f32": 4 * dim, "f16": 2 * dim, "int8": dim + 4, "int4": dim // 2 + 4 * (dim // LANES)}[format_of(dim, kv)]


class KvRows:
    """Rows of one format in pages. `address`: of a page; `at`: bytes from there to a row."""

    def __init__(self, dim: int, kv: str) -> None:
        self.dim, self.format = dim, format_of(dim, kv)

    def factor(self, page: Expr, at: Expr) -> Expr | None:
        """The scale that the values of a row still need; None: no scale."""
        if self.format != "int8":
            return None
        return bind(_view(page, "float32")[(at + self.dim) // 4])

    def piece(self, page: Expr, at: Expr, i: int) -> Expr:
        """Values 16 i .. of a row."""
        if self.format == "f32":
            return bind(_view(page, "float32").vec(at // 4 + i * LANES))
        if self.format == "f16":
            return half(bind(_view(page, "uint16").vec(at // 2 + i * LANES)))
        if self.format == "int8":
            return bind(T.Cast("float32x16", _view(page, "int8").vec(at + i * LANES)))
        return self._int4(page, at, i)

    def _int4(self, page: Expr, at: Expr, i: int) -> Expr:
        nibbles = bind(T.Cast("int32x16", _view(page, "uint8").vec(at + i // 2 * LANES)))
        shift, mask = T.broadcast(T.int32(4 * (i % 2)), LANES), T.broadcast(T.int32(15), LANES)
        pair = bind(_view(page, "int32")[(at + self.dim // 2) // 4 + i])
        scale, least = (reinterpret("float32", bits) for bits in (pair << T.int32(16), pair & T.int32(-0x10000)))
        values = bind(T.Cast("float32x16", (nibbles >> shift) & mask))
        return fma(values, spread(bind(scale)), spread(bind(least)))

    def store(self, x: Ptr, page: Expr, at: Expr) -> None:
        """Write a row of floats."""
        pieces = [bind(x.vec(i * LANES)) for i in range(self.dim // LANES)]
        if self.format == "f32":
            for i, piece in enumerate(pieces):
                _view(page, "float32").put(at // 4 + i * LANES, piece, LANES)
        elif self.format == "f16":
            for i, piece in enumerate(pieces):
                small = reinterpret("uint16x16", T.Cast("float16x16", piece))
                _view(page, "uint16").put(at // 2 + i * LANES, small, LANES)
        elif self.format == "int8":
            self._store_int8(pieces, page, at)
        else:
            self._store_int4(pieces, page, at)

    def _store_int8(self, pieces: list[Expr], page: Expr, at: Expr) -> None:
        top = spread(0.0)
        for piece in pieces:
            top = larger(absolute(piece), top)
        scale = bind(smaller(most(top), T.float32(_LARGEST)) / T.float32(127.0))
        scale = bind(T.Select(scale < T.float32(_LEAST), T.float32(0.0), scale))
        unit = spread(_inverse(scale))
        for i, piece in enumerate(pieces):
            q = rounded(smaller(larger(mul(piece, unit), spread(-127.0)), spread(127.0)))
            _view(page, "int8").put(at + i * LANES, T.Cast("int8x16", q), LANES)
        _view(page, "float32").put((at + self.dim) // 4, scale)

    def _store_int4(self, pieces: list[Expr], page: Expr, at: Expr) -> None:
        for i in range(0, len(pieces), 2):
            made = [_nibbles(piece) for piece in pieces[i : i + 2]]
            both = bind(made[0][0] | (made[1][0] << T.broadcast(T.int32(4), LANES)))
            _view(page, "uint8").put(at + i // 2 * LANES, T.Cast("uint8x16", both), LANES)
            for j, (_, pair) in enumerate(made):
                _view(page, "int32").put((at + self.dim // 2) // 4 + i + j, pair)


def _view(page: Expr, dtype: str) -> Ptr:
    return Ptr(T.decl_buffer((T.int64(1 << 40),), dtype, data=page), T.int64(0))


def _inverse(scale: Expr) -> Expr:
    return bind(T.Select(scale >= T.float32(_LEAST), T.float32(1.0) / scale, T.float32(0.0)))


def _bf16(x: Expr, away: Expr) -> Expr:
    """The bfloat16 next to x on the side away from zero, or toward it."""
    bits = reinterpret("int32", x)
    return bind((bits + T.Select(away, T.int32(0xFFFF), T.int32(0))) & T.int32(-0x10000))


def _extreme(x: Expr, better: Callable[[Expr, Expr], Expr], start: float) -> Expr:
    """The smallest or largest of sixteen lanes; NaN is passed over."""
    kept = better(x, spread(start))
    n = LANES
    while n > 1:
        n //= 2
        kept = better(pick(kept, None, range(n)), pick(kept, None, range(n, 2 * n)))
    return kept


def _nibbles(x: Expr) -> tuple[Expr, Expr]:
    """Sixteen values as 0 to 15 (int32x16), and their scale and least value as stored."""
    limit = 1e38
    least, top = _extreme(x, smaller, limit), _extreme(x, larger, -limit)
    none = bind(T.Select(top >= least, T.int32(0), T.int32(1)))
    least, top = (bind(T.Select(none == T.int32(0), v, T.float32(0.0))) for v in (least, top))
    least, top = larger(least, T.float32(-limit)), smaller(top, T.float32(limit))
    low = _bf16(least, least < T.float32(0.0))
    least = bind(reinterpret("float32", low))
    step = _bf16(bind(bind(top - least) / T.float32(15.0)), T.float32(0.0) < T.float32(1.0))
    small = reinterpret("float32", step) < T.float32(_LEAST)
    step = bind(T.Select(small, T.int32(0), step))
    unit = spread(_inverse(bind(reinterpret("float32", step))))
    scaled = mul(bind(x - spread(least)), unit)
    q = rounded(smaller(larger(scaled, spread(0.0)), spread(15.0)))
    pair = bind(low | ((step >> T.int32(16)) & T.int32(0xFFFF)))
    return q, pair
