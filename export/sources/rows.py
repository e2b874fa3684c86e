"""What is done to rows: embeddings, norms, rows quantized (`kernels/cpu/ops.inl`). An item is nothing:
groups go by rows."""

from __future__ import annotations

from collections.abc import Callable

from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.kernel import GroupWork, Kernels
from edgedec.export.sources.weights import kind_of, parts_of, scale_of, step_of, steps_of
from edgedec.export.sources.words import (
    LANES,
    Array,
    Expr,
    absolute,
    barrier,
    bind,
    branch,
    div,
    f32,
    half_of,
    i32,
    larger,
    mod,
    own,
    shared,
    strided,
    total,
    u32,
)
from edgedec.runtimes.tvm.plans import ROW_NUMBERS
from edgedec.spec import Norm

THREADS = 64


def row_number(rows: Array, row: Expr, name: str) -> Expr:
    """A number of a row."""
    return rows[row * len(ROW_NUMBERS) + ROW_NUMBERS.index(name)]


# ---- embeddings --------------------------------------------------------------------------------------


def embed(k: Kernels, t: Tensor, scale: float) -> str:
    """Write the kernel that looks rows up: arrays rows, data, scales (of quantized ones), hidden; its name."""
    n, name = t.shape[-1], f"embed_{t.format}_{t.block}_{t.shape[-1]}"
    arrays = {"rows": "int32", "data": "float32" if t.format == "f32" else "uint32"}
    arrays |= dict.fromkeys(parts_of(t), "uint32")
    if k.has(name):
        return name
    with k.kernel(name, THREADS, {**arrays, "hidden": "float32"}) as work:
        token = row_number(work["rows"], work.tile, "token")

        def one(i: Expr) -> None:
            value = _element(k.dialect, work, t, token, i)
            work["hidden"].put(work.tile * n + i, k.dialect.mul(value, f32(scale)))

        strided(work.thread, THREADS, n, one)
    return name


def _element(d: Dialect, work: GroupWork, t: Tensor, row: Expr, i: Expr) -> Expr:
    """Element i of a row of a matrix."""
    n, data = t.shape[-1], work["data"]
    if t.format == "f32":
        return data[row * n + i]
    if t.format == "f16":
        at = bind(row * n + i)
        return half_of(data[at >> T.int32(1)], bind(at & T.int32(1)))
    per = 8 if t.format == "int4" else 4
    group, lane = div(row, LANES), mod(row, LANES)
    word = i32(data[(group * (t.blocks * t.block // per) + div(i, per)) * LANES + lane])
    block = div(i, t.block)
    if t.format == "int4":
        q = bind(((word >> (mod(i, 8) << T.int32(2))) & T.int32(15)) - T.int32(8))
    else:
        q = bind(((word >> (mod(i, 4) << T.int32(3))) & T.int32(255)) - T.int32(128))
    return d.mul(T.Cast("float32", q), scale_of(work["scales"], t, group, block, lane))


# ---- norms -------------------------------------------------------------------------------------------


def norm(k: Kernels, kind: Norm, n: int, eps: float, then: str = "store") -> str:
    """Write a kernel of a norm of rows of n; its name. Arrays x, weight, bias (of a layer norm), y. then: "store",
    "add" to what is there, "pick" rows that an array "which" names first."""
    name = f"norm_{kind}_{n}_{then}"
    if k.has(name):
        return name
    arrays = {"which": "int32"} if then == "pick" else {}
    arrays |= {"x": "float32"} | ({} if kind == "none" else {"weight": "float32"})
    arrays |= {"bias": "float32"} if kind == "layer" else {}
    with k.kernel(name, THREADS, {**arrays, "y": "float32"}) as work:
        row = work["which"][work.tile] if then == "pick" else work.tile
        x, y = work["x"].at(row * n), work["y"].at(work.tile * n)
        value = normed(k.dialect, x, n, kind, eps, work, shared(LANES))

        def one(i: Expr) -> None:
            found = value(i)
            y.put(i, bind(y[i] + found) if then == "add" else found)

        strided(work.thread, THREADS, n, one)
    return name


def normed(
    d: Dialect,
    x: Array,
    n: int,
    kind: Norm,
    eps: float,
    work: GroupWork,
    lanes: Array,
    weight: Callable[[Expr], Expr] | None = None,
) -> Callable[[Expr], Expr]:
    """A function for elements of the normed row; all threads of the group have to call this. weight: elements
    of what is multiplied by, if not the array of that name."""
    if kind == "none":
        return lambda i: x[i]
    mean = f32(0.0)
    if kind == "layer":
        mean = d.divide(_lane_sums(work, n, lanes, lambda acc, i: bind(acc + x[i])), f32(n))

    def square(acc: Expr, i: Expr) -> Expr:
        value = bind(x[i] - mean) if kind == "layer" else x[i]
        return d.fma(value, value, acc)

    size = d.divide(_lane_sums(work, n, lanes, square), f32(n))
    scale = d.divide(f32(1.0), d.root(bind(size + f32(eps))))
    factor = weight or work["weight"].__getitem__

    def element(i: Expr) -> Expr:
        value = bind(x[i] - mean) if kind == "layer" else x[i]
        y = d.mul(d.mul(value, scale), factor(i))
        return y if kind != "layer" else bind(y + work["bias"][i])

    return element


def _lane_sums(work: GroupWork, n: int, lanes: Array, add: Callable[[Expr, Expr], Expr]) -> Expr:
    """A sum over a row in sixteen lanes, in all threads."""
    barrier()

    def lane() -> None:
        acc = own(1)
        acc.put(0, f32(0.0))
        with T.serial(n // LANES) as i:
            acc.put(0, add(acc[0], bind(i * LANES + work.thread)))
        lanes.put(work.thread, acc[0])

    branch(work.thread < LANES, lane)
    barrier()
    return total([lanes[i] for i in range(LANES)])


# ---- rows quantized ----------------------------------------------------------------------------------


def ready(k: Kernels, t: Tensor, copies: int = 1) -> str:
    """Write the kernel that makes rows ready for a matrix: arrays x, q, scale, sum; its name. A thread a step. copies:
    of each row, one an item."""
    width, step, steps = t.shape[-1], step_of(t), steps_of(t)
    name = f"ready_{kind_of(t) if t.format == 'int8' else t.format}_{step}_{width}_{steps}"
    name += f"_by{copies}" if copies > 1 else ""
    if k.has(name):
        return name
    arrays = {"x": "float32", "q": "uint32", "scale": "float32", "sum": "int32"}
    with k.kernel(name, THREADS, arrays) as work:
        row = bind(work.tile * copies + work.item) if copies > 1 else work.tile
        x, at = work["x"].at(row * width), bind(row * steps)

        def one(s: Expr) -> None:
            _ready_step(k.dialect, work, t, x.at(s * step), bind(at + s), bind(width - s * step))

        strided(work.thread, THREADS, steps, one)
    return name


def _ready_step(d: Dialect, work: GroupWork, t: Tensor, x: Array, at: Expr, left: Expr) -> None:
    """One step, of which `left` inputs are there."""
    step, whole = step_of(t), t.shape[-1] == steps_of(t) * step_of(t)
    values = [x[i] if whole else bind(T.if_then_else(left > i, x.buffer[x.base + i], f32(0.0))) for i in range(step)]
    top, nothing = f32(0.0), f32(0.0)
    for value in values:
        top, nothing = larger(top, absolute(value)), bind(nothing + bind(value - value))
    size = bind(top + nothing)
    inverse = bind(T.Select(size > f32(0.0), d.divide(f32(127.0), size), f32(0.0)))
    numbers = [d.rounded(d.mul(value, inverse)) for value in values]
    acc = numbers[0]
    for number in numbers[1:]:
        acc = bind(acc + number)
    order = [8 * (i // 8) + (0, 2, 4, 6, 1, 3, 5, 7)[i % 8] if t.format == "int4" else i for i in range(step)]
    for word in range(step // 4):
        work["q"].put(at * (step // 4) + word, packed([numbers[order[4 * word + i]] for i in range(4)]))
    work["scale"].put(at, d.mul(size, f32(1.0 / 127.0)))
    # Of int4 what is taken off its products; of int8 the sum where a zero point is to be multiplied by it.
    work["sum"].put(at, bind(acc * T.int32(-8 if t.format == "int4" else int(bool(t.zeros)))))


def packed(numbers: list[Expr]) -> Expr:
    """Four integers as the bytes of a word."""
    word = bind(numbers[0] & T.int32(255))
    for i, number in enumerate(numbers[1:], 1):
        word = bind(word | ((number & T.int32(255)) << T.int32(8 * i)))
    return u32(word)
