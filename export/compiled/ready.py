"""Rows made ready for products with quantized weights: as records, one a step (`kernels/cpu/kernels.h`)."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.compiled.emitter import Emitter, Frame
from edgedec.export.compiled.lanes import (
    LANES,
    Expr,
    Ptr,
    absolute,
    bind,
    int64,
    larger,
    most,
    mul,
    part_of,
    pointer,
    rounded,
    spread,
    total,
)
from edgedec.export.compiled.machines import Processor
from edgedec.runtimes.tvm.frame import ROWS


@dataclass(frozen=True)
class ReadyRows:
    """Rows made ready for a product with quantized weights, as records, one a step: its int8 inputs; a scale; what its
    sum of integers begins with; for zero points of int4 the step's sum, for those of int8 the scaled sum of a block at
    its first step. The same memory as bytes, words and floats."""

    q: Ptr
    words: Ptr
    floats: Ptr
    step: int
    steps: int

    @classmethod
    def at(cls, address: Expr, t: Tensor) -> ReadyRows:
        q, words, floats = (pointer(address, dtype) for dtype in ("int8", "int32", "float32"))
        return cls(q, words, floats, step_of(t), steps_of(t))

    def row(self, row: Expr) -> Expr:
        """Where a row begins, in words."""
        return bind(row * (row_bytes(self.step, self.steps) // 4))

    def record(self, row: Expr, s: Expr) -> ReadyStep:
        """Step s of the row that begins at `row`."""
        return ReadyStep(self, bind(row + s * ((self.step + _ABOUT) // 4)))


@dataclass(frozen=True)
class ReadyStep:
    """One step of a row that is ready; `at`: in words."""

    rows: ReadyRows
    at: Expr

    def inputs(self, i: int) -> Expr:
        """Four inputs in a word."""
        return bind(self.rows.words[self.at + i])

    @property
    def scale(self) -> Expr:
        return bind(self.rows.floats[self._about(0)])

    @property
    def offset(self) -> Expr:
        return bind(self.rows.words[self._about(1)])

    @property
    def sum(self) -> Expr:
        return bind(self.rows.floats[self._about(2)])

    def put_inputs(self, i: int, values: Expr) -> None:
        self.rows.q.put(self.at * 4 + i, values, LANES)

    def put(self, scale: Expr, offset: Expr) -> None:
        self.rows.floats.put(self._about(0), scale)
        self.rows.words.put(self._about(1), offset)

    def put_sum(self, value: Expr) -> None:
        self.rows.floats.put(self._about(2), value)

    def _about(self, i: int) -> Expr:
        return self.at + (self.rows.step // 4 + i)


_ABOUT = 16  # bytes of a record after its inputs


def row_bytes(step: int, steps: int) -> int:
    """Bytes from row to row: not a multiple of a page, so that adjacent rows do not compete for the same cache
    lines."""
    return steps * (step + _ABOUT) + 64


def step_of(t: Tensor) -> int:
    return 16 if t.block == 16 else 32


def steps_of(t: Tensor) -> int:
    """Steps of a row; the last may be filled up."""
    return t.blocks * t.block // step_of(t)


def stands_for_zero(t: Tensor, machine: Processor) -> int:
    """The offset subtracted from each weight before the zero points: zero points of int4 may be added to bytes, which
    stay positive."""
    if t.format == "int8":
        return machine.offset8
    return 15 if t.zeros and machine.zero_bytes else 8


def is_quantized(t: Tensor) -> bool:
    return t.format in ("int4", "int8")


def same_rows(a: Tensor, b: Tensor) -> bool:
    """Whether rows prepared for one matrix fit the other."""
    if not is_quantized(a) or not is_quantized(b):
        return is_quantized(a) == is_quantized(b)
    alike = (a.format, step_of(a), steps_of(a), bool(a.zeros)) == (b.format, step_of(b), steps_of(b), bool(b.zeros))
    return alike and (not a.zeros or a.block == b.block)


def reserve_rows(emit: Emitter, t: Tensor, rows: int = ROWS, name: str = "rows") -> None:
    """Make the working memory of `prepared` large enough for a matrix."""
    if is_quantized(t):
        emit.reserve(name, "int8", rows * row_bytes(step_of(t), steps_of(t)))


def prepared(emit: Emitter, frame: Frame, t: Tensor, rows: int = ROWS, name: str = "rows") -> ReadyRows:
    """Working memory for rows made ready for a matrix."""
    place = emit.place(frame, name, "int8", rows * row_bytes(step_of(t), steps_of(t)))
    return ReadyRows.at(bind(T.reinterpret("int64", place.buffer.data)), t)


# ---- rows quantized ----------------------------------------------------------------------------------


def quantized(x: Ptr, to: ReadyRows, row: Expr, t: Tensor, machine: Processor) -> None:
    """Make one row ready for a matrix; of int4 every eight inputs in the order 0 2 4 6 1 3 5 7."""
    step, steps, width = step_of(t), steps_of(t), t.shape[-1]
    first, whole = to.row(row), width // step
    if whole:
        with T.serial(whole) as i:
            _quantized_step(x, to, first, bind(int64(i)), t, machine, step)
    for i in range(whole, steps):
        _quantized_step(x, to, first, T.int64(i), t, machine, max(0, width - i * step))


def _quantized_step(x: Ptr, to: ReadyRows, first: Expr, i: Expr, t: Tensor, machine: Processor, held: int) -> None:
    """Step i of a row that begins at `first`; the first `held` inputs of the step exist."""
    step, record = step_of(t), to.record(first, i)
    counts = [min(max(held - j * LANES, 0), LANES) for j in range(step // LANES)]
    values = [part_of(x, i * step + j * LANES, n) if n else spread(0.0) for j, n in enumerate(counts)]
    top, nothing = spread(0.0), spread(0.0)
    for value in values:
        top, nothing = larger(top, absolute(value)), bind(nothing + bind(value - value))
    # `nothing` is 0, and NaN where there is a NaN or an infinity: then the scale is, and so all outputs.
    size = bind(most(top) + total(nothing))
    inverse = spread(bind(T.Select(size > T.float32(0.0), T.float32(127.0) / size, T.float32(0.0))))
    sums = T.broadcast(T.int32(0), LANES)
    for j, value in enumerate(values):
        q = rounded(mul(value, inverse))
        sums = bind(sums + q)
        small = bind(T.Cast("int8x16", q))
        if t.format == "int4":
            order = [8 * half + k for half in range(2) for k in (0, 2, 4, 6, 1, 3, 5, 7)]
            small = bind(T.Shuffle([small], [T.int32(k) for k in order]))
        record.put_inputs(j * LANES, small)
    scale, sum_ = mul(size, T.float32(1.0 / 127.0)), total(sums)
    record.put(scale, T.int32(-stands_for_zero(t, machine)) * sum_)
    if t.zeros:
        _put_sum(to, first, i, t, scale, bind(T.Cast("float32", sum_)))


def _put_sum(to: ReadyRows, first: Expr, i: Expr, t: Tensor, scale: Expr, sum_: Expr) -> None:
    """The sum of a step; of int8 added to that of its block, scaled."""
    if t.format == "int4":
        return to.record(first, i).put_sum(sum_)
    within = bind(i % (t.block // step_of(t)))
    block = to.record(first, bind(i - within))
    before = bind(T.Select(within == T.int64(0), T.float32(0.0), block.sum))
    block.put_sum(before + mul(scale, sum_))
