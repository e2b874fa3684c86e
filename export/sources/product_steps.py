"""Products with quantized weights: a thread takes a step of 32 inputs of one output at a time. Sums of integers are
exact in any order, and what they are scaled to is added up step after step.

Zero points of int4 go into the integer sum of a step, those of int8 beside the sums of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.epilogue import KernelEnd, Stacked, finish, outputs, place_of
from edgedec.export.sources.kernel import GroupWork, Kernels
from edgedec.export.sources.weights import scale_of, step_of, steps_of, zero_of
from edgedec.export.sources.words import LANES, Array, Expr, barrier, bind, branch, div, f32, i32, mod, own, shared

# Steps of a row at a time.
_STEPS = 8


def step_product(
    k: Kernels, name: str, arrays: dict[str, str], t: Tensor, e: KernelEnd, stacked: Stacked | None, tile: int
) -> None:
    """A thread an output and a step; those of the first steps add up, a row each."""
    with k.kernel(name, LANES * _STEPS, arrays) as work:
        lane, step = mod(work.thread, LANES), div(work.thread, LANES)
        whole, factor = (shared(tile * _STEPS * LANES) for _ in range(2))
        place = place_of(work, t, e, stacked, tile)
        halves = (0, outputs(t, e) // LANES) if e.glu else (0,)
        sums = [
            _sums(
                k.dialect,
                work,
                t,
                place.source,
                bind(place.first + place.group + at),
                (lane, step),
                (whole, factor),
                tile,
            )
            for at in halves
        ]
        output = bind(place.group * LANES + lane)

        def put() -> None:
            finish(k.dialect, work, t, e, bind(place.target + step), output, [acc[0] for acc in sums])

        mine = step < tile
        if outputs(t, e) % LANES:
            mine = T.And(mine, output < outputs(t, e))
        branch(mine, put)


def _sums(
    d: Dialect,
    work: GroupWork,
    t: Tensor,
    row0: Expr,
    group: Expr,
    place: tuple[Expr, Expr],
    parts: tuple[Array, Array],
    tile: int,
) -> Array:
    """The sum of this thread's output and row."""
    (lane, step), (whole, factor), steps = place, parts, steps_of(t)
    acc = own(2 if _by_block(t) else 1)
    acc.put(0, f32(0.0))
    with T.serial(-(-steps // _STEPS)) as turn:
        s = bind(turn * _STEPS + step)
        branch(s < steps, lambda: _one_step(d, work, t, row0, group, (lane, step), s, parts, tile))
        barrier()

        def add() -> None:
            for i in range(_STEPS):
                at = bind((step * _STEPS + i) * LANES + lane)
                if _by_block(t):
                    s, terms = bind(turn * _STEPS + i), (whole.at(at), factor.at(at))
                    one = _BlockStep(d, work, t, bind(row0 + step), group, lane, s, terms, acc)
                    branch(s < steps, one.add)
                else:
                    branch(turn * _STEPS + i < steps, lambda at=at: acc.put(0, d.fma(whole[at], factor[at], acc[0])))  # type: ignore[misc]

        branch(step < tile, add)
        barrier()
    return acc


def _one_step(
    d: Dialect,
    work: GroupWork,
    t: Tensor,
    row0: Expr,
    group: Expr,
    place: tuple[Expr, Expr],
    s: Expr,
    parts: tuple[Array, Array],
    tile: int,
) -> None:
    """The integer sums of one step of one output, and what they are multiplied by."""
    (lane, step), (whole, factor) = place, parts
    steps, size, nibbles = steps_of(t), step_of(t), t.format == "int4"
    lines = size // (8 if nibbles else 4)
    data = work["data"].at(((group * steps + s) * lines) * LANES + lane)
    words = [i32(data[line * LANES]) for line in range(lines)]
    block = div(s, t.block // size)
    weight_scale = None if _by_block(t) else scale_of(work["scales"], t, group, block, lane)
    zero = zero_of(work, t, group, block, lane) if t.zeros and nibbles else None
    for j in range(tile):
        at = bind((row0 + j) * steps + s)
        q = work["q"].at(at * (size // 4))
        acc = T.int32(0) if weight_scale is None else work["sum"][at]
        if zero is not None:  # there is -8 times the sum of the inputs
            acc = bind((acc >> T.int32(3)) * zero)
        for line, word in enumerate(words):
            if nibbles:
                low, high = bind(word & T.int32(0x0F0F0F0F)), bind((word >> T.int32(4)) & T.int32(0x0F0F0F0F))
                acc = d.dot4(d.dot4(acc, low, q[2 * line]), high, q[2 * line + 1])
            else:
                acc = d.dot4(acc, bind(word ^ T.int32(-0x7F7F7F80)), q[line])
        to = bind((j * _STEPS + step) * LANES + lane)
        whole.put(to, T.Cast("float32", acc))
        factor.put(to, work["scale"][at] if weight_scale is None else d.mul(weight_scale, work["scale"][at]))


# ---- zero points by block ----------------------------------------------------------------------------


def _by_block(t: Tensor) -> bool:
    """Are zero points added beside the sums of blocks?"""
    return bool(t.zeros) and t.format == "int8"


@dataclass(frozen=True)
class _BlockStep:
    """A step of one row and output as it is added up. terms: its integer sum and the row's scale; acc: the sum so far,
    and that of the block."""

    d: Dialect
    work: GroupWork
    t: Tensor
    row: Expr
    group: Expr
    lane: Expr
    step: Expr
    terms: tuple[Array, Array]
    acc: Array

    @property
    def _each(self) -> int:
        """Steps of a block."""
        return self.t.block // step_of(self.t)

    def add(self) -> None:
        """Begin a block with its zero point, add the step, end a block with its scale."""
        acc, (whole, factor) = self.acc, self.terms
        self._at(0, self._begin)
        acc.put(1, self.d.fma(whole[0], factor[0], acc[1]))
        self._at(self._each - 1, self._end)

    def _at(self, number: int, run: Callable[[], None]) -> None:
        if self._each == 1:
            return run()
        branch(mod(self.step, self._each) == number, run)

    def _begin(self) -> None:
        zero = zero_of(self.work, self.t, self.group, div(self.step, self._each), self.lane)
        off = bind(T.Cast("float32", bind(T.int32(128) - zero)))
        self.acc.put(1, self.d.mul(off, self._inputs()))

    def _inputs(self) -> Expr:
        """The sum of the row's inputs in the block."""
        total, at = own(1), bind(self.row * steps_of(self.t) + self.step)
        total.put(0, f32(0.0))
        with T.serial(self._each) as i:
            here = bind(at + i)
            value = self.d.mul(self.work["scale"][here], bind(T.Cast("float32", self.work["sum"][here])))
            total.put(0, bind(total[0] + value))
        return total[0]

    def _end(self) -> None:
        scale = scale_of(self.work["scales"], self.t, self.group, div(self.step, self._each), self.lane)
        self.acc.put(0, self.d.fma(scale, self.acc[1], self.acc[0]))
