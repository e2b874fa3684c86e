"""Products with float weights: sixteen threads an output, the sixteen lanes along a row."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.epilogue import KernelEnd, Stacked, finish, outputs, place_of
from edgedec.export.sources.kernel import GroupWork, Kernels
from edgedec.export.sources.words import (
    LANES,
    Array,
    Expr,
    barrier,
    bind,
    branch,
    div,
    f32,
    half_of,
    mod,
    own,
    shared,
    total,
)


def float_product(
    k: Kernels, name: str, arrays: dict[str, str], t: Tensor, e: KernelEnd, stacked: Stacked | None
) -> None:
    """A thread an output and a lane of its sum."""
    n = outputs(t, e)
    with k.kernel(name, LANES * LANES, arrays) as work:
        lane, which = mod(work.thread, LANES), div(work.thread, LANES)
        place = place_of(work, t, e, stacked, 1)
        output = bind(place.group * LANES + which)
        lanes = shared(LANES * LANES)
        sums = [
            _float_sum(
                k.dialect, work, t, place.source, bind(T.min(output, n - 1) + place.first * LANES + at), lane, lanes
            )
            for at in ((0, n) if e.glu else (0,))
        ]
        branch(
            T.And(lane == 0, output < n),
            lambda: finish(k.dialect, work, t, e, place.target, output, sums),
        )


def _float_sum(d: Dialect, work: GroupWork, t: Tensor, row: Expr, output: Expr, lane: Expr, lanes: Array) -> Expr:
    k, acc = t.shape[-1], own(1)
    acc.put(0, f32(0.0))
    with T.serial(k // LANES) as i:
        at = bind(output * k + i * LANES + lane)
        if t.format == "f32":
            weight = work["data"][at]
        else:
            weight = half_of(work["data"][at >> T.int32(1)], bind(at & T.int32(1)))
        acc.put(0, d.fma(work["x"][row * k + i * LANES + lane], weight, acc[0]))
    barrier()
    lanes.put(work.thread, acc[0])
    barrier()
    first = lanes.at(work.thread - lane)
    return total([first[i] for i in range(LANES)])
