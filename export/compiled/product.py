"""Matrix products (`kernels/cpu/gemm.inl`): items of a few groups of sixteen outputs, by tiles of rows.

A schedule sets the tiles (`schedules.py`); `tiles.py` has the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.compiled.emitter import BlockTable, Emitter, branch
from edgedec.export.compiled.lanes import ACTIVATIONS, LANES, Expr, Ptr, bind, int64, local, mul, spread, tanh
from edgedec.export.compiled.ready import ReadyRows, is_quantized
from edgedec.export.compiled.schedules import ProductShape, Schedule
from edgedec.export.compiled.tiles import Strip, Sums, Tile, Words, float_sums, quantized_sums
from edgedec.spec import Activation


@dataclass(frozen=True)
class Epilogue:
    """What is done with a sum: store, or add to the output; glu: the first half of the outputs gates the second."""

    add: bool = False
    glu: bool = False
    activation: Activation | None = None
    softcap: float = 0.0


def same(row: Expr) -> Expr:
    """A row by its own number."""
    return row


@dataclass(frozen=True)
class MatrixProduct:
    """rows: how many; a, or x [.., k] for float weights; out [.., stride]. group0: the first group of a share of the
    matrix, of `n` outputs. source, target: where a row's inputs and outputs are among those of a and out."""

    t: Tensor
    n: int
    rows: Expr
    out: Ptr
    stride: int
    words: Words
    a: ReadyRows | None
    x: Ptr | None
    bias: Ptr | None
    epilogue: Epilogue
    group0: Expr
    source: Callable[[Expr], Expr] = same
    target: Callable[[Expr], Expr] = same

    @property
    def outputs(self) -> int:
        """Of glu those of half of the matrix."""
        return self.n // 2 if self.epilogue.glu else self.n

    @property
    def groups(self) -> int:
        """Of these outputs."""
        return -(-self.outputs // LANES)


def words_of(table: BlockTable, name: str, t: Tensor) -> Words:
    """A matrix where it lies."""
    if not is_quantized(t):
        return Words(table.pointer(name, "float32" if t.format == "f32" else "uint16"))
    zeros = table.pointer(f"{name}.zeros", "uint8") if t.zeros else None
    return Words(table.pointer(name, "int32"), table.pointer(f"{name}.scales", "uint16"), zeros)


def items_of(emit: Emitter, t: Tensor, n: int, glu: bool = False) -> int:
    """How many items the product with n outputs of a matrix has."""
    groups = -(-(n // 2 if glu else n) // LANES)
    return -(-groups // _span(emit, _schedule(emit, t, n, glu)))


def _schedule(emit: Emitter, t: Tensor, n: int, glu: bool) -> Schedule:
    if not is_quantized(t):
        return Schedule((1, 1, 1, 1))
    return emit.schedule(ProductShape.of(t, n, glu))


def _span(emit: Emitter, schedule: Schedule) -> int:
    """Groups of an item: so many that the widest tile fits."""
    return max(1, max(schedule.vectors) * emit.machine.width // LANES)


def product_item(emit: Emitter, p: MatrixProduct, item: Expr) -> None:
    """The outputs of one item, of all rows."""
    schedule = _schedule(emit, p.t, p.n, p.epilogue.glu)
    span = _span(emit, schedule)
    first = bind(int64(item) * span)

    def by_tiles(count: int) -> None:
        with T.serial(T.truncdiv(p.rows + T.int64(schedule.rows - 1), T.int64(schedule.rows))) as i:
            row0 = bind(int64(i) * schedule.rows)
            left = bind(p.rows - row0)
            _by_rows(left, schedule.rows, lambda m: _tile(emit, schedule, p, first, count, row0, m))

    edge = p.groups % span
    if not edge:
        return by_tiles(span)
    branch(first + span <= T.int64(p.groups), lambda: by_tiles(span), lambda: by_tiles(edge))


def _by_rows(left: Expr, most: int, write: Callable[[int], None]) -> None:
    """Code for 1, 2, .. `most` rows, of which one is run."""
    if most == 1:
        return write(1)
    branch(left >= T.int64(most), lambda: write(most), lambda: _by_rows(left, most - 1, write))


def _tile(emit: Emitter, schedule: Schedule, p: MatrixProduct, first: Expr, count: int, row0: Expr, m: int) -> None:
    """`count` groups from `first` on, of m rows."""
    sources = [bind(p.source(bind(row0 + j))) for j in range(m)]
    targets = [bind(p.target(bind(row0 + j))) for j in range(m)]
    if not is_quantized(p.t):
        return _float_tile(p, first, sources, targets)
    assert p.a is not None
    tile = Tile(emit.machine, p.t, p.words, p.a, [p.a.row(row) for row in sources], schedule.ahead)
    per_group = LANES // emit.machine.width
    vectors = [(bind(first + i // per_group), i % per_group) for i in range(count * per_group)]
    wide = min(schedule.vectors[m - 1], len(vectors))
    for at in range(0, len(vectors), wide):
        part = vectors[at : at + wide]
        sums, gates = _both(tile, p, part)
        for v, (group, vector) in enumerate(part):
            output = bind(group * LANES + vector * emit.machine.width)
            for j in range(m):
                _put(p, targets[j], output, sums[v][j], gates[v][j] if gates else None)


def _both(tile: Tile, p: MatrixProduct, part: list[tuple[Expr, int]]) -> tuple[Sums, Sums | None]:
    """The sums of a strip, and for glu those of its gates, in the same tile if two vectors fit."""
    own = [(bind(p.group0 + group), vector) for group, vector in part]
    if not p.epilogue.glu:
        return quantized_sums(tile, Strip(own)), None
    up = [(bind(group + T.int64(p.n // 2 // LANES)), vector) for group, vector in own]
    gates = quantized_sums(tile, Strip(own))
    return quantized_sums(tile, Strip(up)), gates


def _float_tile(p: MatrixProduct, group: Expr, sources: list[Expr], targets: list[Expr]) -> None:
    assert p.x is not None
    x, first = p.x, bind(p.group0 * LANES)
    with T.serial(T.min(T.int64(LANES), T.int64(p.outputs) - group * LANES)) as i:
        output = bind(group * LANES + i)
        gates = None
        at = bind(first + output)
        if p.epilogue.glu:
            gates = float_sums(p.t, p.words.data, x, at, sources)
            at = bind(at + p.n // 2)
        sums = float_sums(p.t, p.words.data, x, at, sources)
        for j, row in enumerate(targets):
            _store(p, row, output, sums[j], gates[j] if gates else None, 1)


# ---- the epilogue ------------------------------------------------------------------------------------


def _put(p: MatrixProduct, row: Expr, output: Expr, y: Expr, gate: Expr | None) -> None:
    """Sums of a native vector; the last group may have fewer outputs than lanes."""
    outputs, width = p.outputs, _width(y)
    if outputs % LANES == 0:
        return _store(p, row, output, y, gate, width)

    def edge() -> None:
        lanes = local(1, f"float32x{width}")
        lanes.put(0, y)
        for i in range(width):
            one = T.Shuffle([y], [T.int32(i)])
            branch(output + i < T.int64(outputs), lambda i=i, one=one: _store(p, row, output + i, bind(one), None, 1))  # type: ignore[misc]

    branch(output + width <= T.int64(outputs), lambda: _store(p, row, output, y, gate, width), edge)


def _width(y: Expr) -> int:
    return int(str(y.ty.dtype).rpartition("x")[2])


def _store(p: MatrixProduct, row: Expr, output: Expr, y: Expr, gate: Expr | None, width: int) -> None:
    def vec(of: Ptr, at: Expr) -> Expr:
        return bind(of[at] if width == 1 else of.vec(at, width))

    e = p.epilogue
    if p.bias is not None:
        y = bind(y + vec(p.bias, output + (p.n // 2 if e.glu else 0)))
        gate = None if gate is None else bind(gate + vec(p.bias, output))
    if gate is not None:
        assert e.activation is not None
        y = mul(ACTIVATIONS[e.activation](gate), y)
    elif e.activation is not None:
        y = ACTIVATIONS[e.activation](y)
    if e.softcap > 0:
        cap = T.float32(e.softcap) if width == 1 else spread(e.softcap, width)
        y = mul(tanh(bind(y / cap)), cap)
    at = bind(row * p.stride + output)
    p.out.put(at, vec(p.out, at) + y if e.add else y, width)
