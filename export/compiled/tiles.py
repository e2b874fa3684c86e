"""The sums of a tile, a few rows by a few native vectors of outputs, in registers (`kernels/cpu/gemm.inl`).

A step is 32 inputs (16 in blocks of 16): exact sums of integers, then one fused multiply-add by the scales of weights
and row, step after step. Zero points of int4 are part of the integers; a block of int8 that has one is added up by
itself. Sums of float weights run in sixteen lanes along the row.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.compiled.lanes import (
    LANES,
    Expr,
    Ptr,
    bind,
    fma,
    local,
    mul,
    part_of,
    prefetch,
    reinterpret,
    spread,
    total,
)
from edgedec.export.compiled.machines import Processor
from edgedec.export.compiled.prepare import half
from edgedec.export.compiled.ready import ReadyRows, ReadyStep, stands_for_zero, step_of, steps_of

Sums = list[list[Expr]]


@dataclass(frozen=True)
class Words:
    """A matrix where it lies: data; of quantized ones scales; zero points, if it has them."""

    data: Ptr
    scales: Ptr | None = None
    zeros: Ptr | None = None


@dataclass(frozen=True)
class Strip:
    """Native vectors of outputs: each one's group, and which vector of the group it is."""

    vectors: list[tuple[Expr, int]]


@dataclass(frozen=True)
class Tile:
    """What a tile is made of. rows: where each row that was made ready begins (`ReadyRows.row`); ahead: prefetch
    distance in bytes of weights."""

    machine: Processor
    t: Tensor
    words: Words
    a: ReadyRows
    rows: list[Expr]
    ahead: int = 0

    @property
    def steps(self) -> int:
        return steps_of(self.t)

    @property
    def lines(self) -> int:
        """Lines of 64 bytes that a step of a group has."""
        return step_of(self.t) // (8 if self.nibbles else 4)

    @property
    def nibbles(self) -> bool:
        return self.t.format == "int4"

    @property
    def in_bytes(self) -> bool:
        """Whether zero points are added to the weights' bytes; not for one row, which has more bytes than sums."""
        return bool(self.t.zeros) and self.nibbles and self.machine.zero_bytes and len(self.rows) > 1


def quantized_sums(tile: Tile, strip: Strip) -> Sums:
    """By vector, then by row, the sums of quantized weights."""
    t, width, rows, vectors = tile.t, tile.machine.width, len(tile.rows), len(strip.vectors)
    data, scales = _places(tile, strip)
    per_block = t.block // step_of(t)
    by_block = bool(t.zeros) and not tile.nibbles
    acc, of_block = local(vectors * rows, f"float32x{width}"), local(vectors * rows, f"float32x{width}")
    for i in range(vectors * rows):
        acc.put(i, spread(0.0, width))
    with T.serial(tile.steps // per_block) as block:
        weight = [half(bind(s.vec(block * LANES, width))) for s in scales]
        zero = [_zero(tile, *vector, block) for vector in strip.vectors] if t.zeros else []
        if by_block:
            _begin_block(tile, zero, block, of_block)
        for within in range(per_block):
            s = bind(T.Cast("int64", block) * per_block + within)
            records = [tile.a.record(row, s) for row in tile.rows]
            step = _step_by_twos if tile.machine.by_twos and rows > 1 else _step
            sums = step(tile, data, s, records, zero if tile.in_bytes else None)
            scales_ = [spread(record.scale, width) for record in records]
            for v in range(vectors):
                for j, scale in enumerate(scales_):
                    at = v * rows + j
                    whole = bind(T.Cast(f"float32x{width}", sums[v][j]))
                    if by_block:
                        of_block.put(at, fma(whole, scale, bind(of_block[at])))
                        continue
                    if zero and not tile.in_bytes:
                        whole = fma(zero[v], spread(records[j].sum, width), whole)  # exact: below 2^24
                    acc.put(at, fma(whole, mul(weight[v], scale), bind(acc[at])))
        if by_block:
            for at in range(vectors * rows):
                acc.put(at, fma(weight[at // rows], bind(of_block[at]), bind(acc[at])))
    return [[bind(acc[v * rows + j]) for j in range(rows)] for v in range(vectors)]


def _places(tile: Tile, strip: Strip) -> tuple[list[Ptr], list[Ptr]]:
    """Data and scales of each vector."""
    words, width, line = tile.words, tile.machine.width, tile.steps * tile.lines * LANES
    assert words.scales is not None
    data = [words.data.at(group * line + v * width) for group, v in strip.vectors]
    return data, [words.scales.at(group * (tile.t.blocks * LANES) + v * width) for group, v in strip.vectors]


def _zero(tile: Tile, group: Expr, vector: int, block: Expr) -> Expr:
    """The code of zero minus a vector's zero points in a block: floats; bytes where they are added to bytes."""
    width, stands = tile.machine.width, 128
    if tile.nibbles:
        points, stands = _nibble_points(tile, group, vector, block), stands_for_zero(tile.t, tile.machine)
    else:
        points = bind(T.Cast(f"int32x{width}", _stored(tile, group, block, vector * width, width)))
    less = bind(T.broadcast(T.int32(stands), width) - points)
    if not tile.in_bytes:
        return bind(T.Cast(f"float32x{width}", less))
    return bind(reinterpret(f"int8x{4 * width}", less * T.broadcast(T.int32(0x01010101), width)))


def _nibble_points(tile: Tile, group: Expr, vector: int, block: Expr) -> Expr:
    """Zero points of int4: outputs 0 to 7 of a group in the low nibbles of 8 bytes, the others in the high ones."""
    width = tile.machine.width
    count, lane = min(width, 8), vector * width
    points = bind(T.Cast(f"int32x{count}", _stored(tile, group, block, lane % 8, count)))
    low, high = (bind((points >> T.broadcast(T.int32(s), count)) & T.broadcast(T.int32(15), count)) for s in (0, 4))
    if width == LANES:
        return bind(T.Shuffle([low, high], [T.int32(i) for i in range(LANES)]))
    return high if lane >= 8 else low


def _stored(tile: Tile, group: Expr, block: Expr, first: int, count: int) -> Expr:
    """Bytes of a group's zero points in a block."""
    assert tile.words.zeros is not None
    size = LANES // 2 if tile.nibbles else LANES
    return tile.words.zeros.vec((group * tile.t.blocks + block) * size + first, count)


def _begin_block(tile: Tile, zero: list[Expr], block: Expr, of_block: Ptr) -> None:
    """A block with zero points begins with them times the sum of its inputs."""
    rows, width = len(tile.rows), tile.machine.width
    first = bind(T.Cast("int64", block) * (tile.t.block // step_of(tile.t)))
    for v, points in enumerate(zero):
        for j in range(rows):
            of_block.put(v * rows + j, mul(points, spread(tile.a.record(tile.rows[j], first).sum, width)))


def _step(tile: Tile, data: list[Ptr], s: Expr, records: list[ReadyStep], shifted: list[Expr] | None) -> Sums:
    """The integer sums of one step."""
    machine, offsets = tile.machine, [record.offset for record in records]
    sums = [[machine.begin(offset, tile.nibbles) for offset in offsets] for _ in data]
    for line in range(tile.lines):
        for v, weights in enumerate(data):
            at = bind((s * tile.lines + line) * LANES)
            if tile.ahead:
                prefetch(weights, at + tile.ahead // 4)
            words = bind(weights.vec(at, machine.width))
            if tile.nibbles:
                pair = machine.ready4(words, shifted[v] if shifted else None)
                for j, record in enumerate(records):
                    for i, part in enumerate(pair):
                        sums[v][j] = machine.dot4(sums[v][j], part, record.inputs(2 * line + i))
            else:
                ready = machine.ready8(words)
                for j, record in enumerate(records):
                    sums[v][j] = machine.dot8(sums[v][j], ready, record.inputs(line))
    return [[machine.end(x, offset, tile.nibbles) for x, offset in zip(of, offsets, strict=True)] for of in sums]


# ---- two rows by two outputs -------------------------------------------------------------------------

_FIRST, _LAST = (0, 4, 1, 5), (2, 6, 3, 7)  # of two vectors of four words side by side


def _step_by_twos(tile: Tile, data: list[Ptr], s: Expr, records: list[ReadyStep], shifted: list[Expr] | None) -> Sums:
    """As `_step`, of two rows and two outputs at once; a last row without a second one is taken twice."""
    twos = [(records[j], records[min(j + 1, len(records) - 1)]) for j in range(0, len(records), 2)]
    begun = [_words(T.broadcast(a.offset, 4), T.broadcast(b.offset, 4), (0, 0, 4, 4)) for a, b in twos]
    sums = [[[start, start] for start in begun] for _ in data]
    for eight in range(step_of(tile.t) // 8):
        rows = [_words(_eight(a, eight), _eight(b, eight), (0, 1, 2, 3)) for a, b in twos]
        for v, weights in enumerate(data):
            pair = _outputs(tile, weights, s, eight, shifted[v] if shifted else None)
            for of, two in zip(sums[v], rows, strict=True):
                of[:] = [tile.machine.two_by_two(x, two, outputs) for x, outputs in zip(of, pair, strict=True)]
    halves = (0, 1, 4, 5), (2, 3, 6, 7)
    return [[_words(of[j // 2][0], of[j // 2][1], halves[j % 2]) for j in range(len(records))] for of in sums]


def _eight(record: ReadyStep, eight: int) -> Expr:
    """Eight inputs in two words."""
    return bind(record.rows.words.vec(record.at + 2 * eight, 2))


def _outputs(tile: Tile, weights: Ptr, s: Expr, eight: int, shifted: Expr | None) -> list[Expr]:
    """Eight weights of each of four outputs, by twos."""
    machine = tile.machine

    def line(i: int) -> Expr:
        return bind(weights.vec((s * tile.lines + i) * LANES, machine.width))

    if tile.nibbles:
        pair = machine.ready4(line(eight), shifted)
    else:
        pair = machine.ready8(line(2 * eight))[0], machine.ready8(line(2 * eight + 1))[0]
    low, high = (bind(reinterpret("int32x4", part)) for part in pair)
    return [_words(low, high, _FIRST), _words(low, high, _LAST)]


def _words(a: Expr, b: Expr, order: tuple[int, ...]) -> Expr:
    """Lanes of two vectors side by side."""
    return bind(T.Shuffle([bind(a), bind(b)], [T.int32(i) for i in order]))


# ---- float weights -----------------------------------------------------------------------------------


def float_sums(t: Tensor, data: Ptr, x: Ptr, output: Expr, rows: list[Expr]) -> list[Expr]:
    """Of each row [k] of `x` the product with one output of float weights."""
    k = t.shape[-1]
    acc = local(len(rows), "float32x16")
    for j in range(len(rows)):
        acc.put(j, spread(0.0))
    at = bind(output * k)

    def add(i: Expr, count: int) -> None:
        raw = part_of(data, at + i * LANES, count)
        weights = raw if t.format == "f32" else half(raw)
        for j, row in enumerate(rows):
            acc.put(j, fma(part_of(x, row * k + i * LANES, count), weights, bind(acc[j])))

    if k // LANES:
        with T.serial(k // LANES) as i:
            add(i, LANES)
    if k % LANES:
        add(T.int64(k // LANES), k % LANES)
    return [total(bind(acc[j])) for j in range(len(rows))]
