"""Mixture of experts: a router, the rows grouped by expert, two products of all chosen experts, the weighted sum.

A row that goes through an expert is a pair; pairs are numbered by expert, then by row, so that the weights of an expert
are read once for all its rows and those of an expert without rows are not read. A row's experts are added up in the
order in which it ranks them, the shared expert last (`kernels/cpu/moe_block.cpp`).
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.export.compiled.emitter import ItemWork, Phase
from edgedec.export.compiled.lanes import Expr, Ptr, bind, by_parts, fma, int64, part_of, put_part, spread
from edgedec.export.compiled.parts import (
    BlockCode,
    add_normed,
    emit_product,
    emit_ready,
    fuses,
    gate_row,
    items,
)
from edgedec.export.compiled.product import Epilogue, MatrixProduct, items_of, product_item, words_of
from edgedec.export.compiled.ready import ReadyRows, is_quantized, prepared, quantized, reserve_rows, same_rows
from edgedec.export.compiled.routing import Numbers, emit_group, emit_route
from edgedec.runtimes.tvm.frame import ROWS
from edgedec.spec import Moe


def reserve_moe(code: BlockCode) -> None:
    """Working memory of a block of experts."""
    block, emit, hidden = code.block, code.emit, code.emit.spec.hidden_size
    assert isinstance(block, Moe)
    pairs = ROWS * block.top_k
    wide = max(block.top_k * block.inner_size, block.shared_size)
    Numbers.of(emit, block).reserve()
    emit.reserve("expert act", "float32", ROWS * wide)
    emit.reserve("expert gate and up", "float32", 2 * ROWS * wide)
    emit.reserve("expert out", "float32", pairs * hidden)
    reserve_rows(emit, code.tensor("down"), pairs, "expert rows")
    if block.shared_size:
        emit.reserve("shared out", "float32", ROWS * hidden)
        emit.reserve("shared act", "float32", ROWS * block.shared_size)
        emit.reserve("shared gate and up", "float32", 2 * ROWS * block.shared_size)
        for name in ("shared_gate_up", "shared_down"):
            reserve_rows(emit, code.tensor(name), ROWS, f"{name} rows")


def moe(code: BlockCode, kv: tuple[str, ...]) -> list[Phase]:
    """Write a block of experts; its phases."""
    del kv
    block, name = code.block, code.name
    assert isinstance(block, Moe)
    emit_ready(code, f"{name}_ready", "gate_up", "hidden", block.norm, keep=True)
    n = block.n_experts
    emit_product(code, f"{name}_router", "router", "normed", ("router", n), Epilogue(), None)
    emit_route(code, block, f"{name}_route")
    emit_group(code, block, f"{name}_group")
    phases = [
        Phase(f"{name}_ready", each=1),
        Phase(f"{name}_router", groups=items(code, "router")),
        Phase(f"{name}_route", each=1),
        Phase(f"{name}_group", groups=1),
        *_emit_experts(code, block),
        *(_emit_shared(code, block) if block.shared_size else []),
    ]
    _emit_combine(code, block)
    return [*phases, Phase(f"{name}_combine", each=1)]


# ---- the chosen experts ------------------------------------------------------------------------------


def _emit_experts(code: BlockCode, block: Moe) -> list[Phase]:
    """Gate and up, the activation, down of all experts that rows have chosen; the phases."""
    name, hidden, k = code.name, code.emit.spec.hidden_size, block.top_k
    fused = fuses(block.inner_size)
    up = Epilogue(glu=True, activation=block.activation) if fused else Epilogue()
    outs = ("expert act", block.inner_size) if fused else ("expert gate and up", 2 * block.inner_size)
    first = _expert_product(code, block, f"{name}_up", "gate_up", 2 * block.inner_size, up, outs)
    _emit_pair_rows(code, block, f"{name}_pairs")
    last = _expert_product(code, block, f"{name}_down", "down", hidden, Epilogue(), ("expert out", hidden))
    between = [] if fused and not is_quantized(code.tensor("down")) else [Phase(f"{name}_pairs", each=k)]
    return [first, *between, last]


def _expert_product(
    code: BlockCode, block: Moe, name: str, matrix: str, n: int, epilogue: Epilogue, out: tuple[str, int]
) -> Phase:
    """Item: some outputs of one expert that rows have chosen, for its pairs."""
    emit, t, numbers = code.emit, code.tensor(matrix), Numbers.of(code.emit, block)
    each = items_of(emit, t, n, epilogue.glu)
    if not emit.has(name):
        with emit.function(name) as work:
            table, is_up = code.table(work.table), matrix == "gate_up"
            expert = bind(int64(numbers.active(work.frame)[bind(work.item // each)]))
            first = bind(int64(numbers.first(work.frame)[expert]))
            rows = bind(int64(numbers.first(work.frame)[expert + 1]) - first)
            of_pair = numbers.rows(work.frame)

            def source(row: Expr) -> Expr:
                return int64(of_pair[first + row]) if is_up else first + row

            product = MatrixProduct(
                t, n, rows, _pair_place(code, block, work, *out), out[1], words_of(table, matrix, t),
                _inputs(code, block, work, matrix), _floats(code, block, work, matrix), None, epilogue,
                bind(expert * (n // 16)), source, lambda row: first + row,
            )  # fmt: skip
            product_item(emit, product, bind(work.item % each))
    return Phase(name, groups=each, counted=numbers.counted)


def _pair_place(code: BlockCode, block: Moe, work: ItemWork, name: str, width: int) -> Ptr:
    return code.place(work.frame, name, block.top_k * width)


def _inputs(code: BlockCode, block: Moe, work: ItemWork, matrix: str) -> ReadyRows | None:
    """Rows made ready for a matrix of the experts; None if it is of floats."""
    t = code.tensor(matrix)
    if not is_quantized(t):
        return None
    if matrix == "gate_up":
        return prepared(code.emit, work.frame, t)
    return prepared(code.emit, work.frame, t, ROWS * block.top_k, "expert rows")


def _floats(code: BlockCode, block: Moe, work: ItemWork, matrix: str) -> Ptr | None:
    if is_quantized(code.tensor(matrix)):
        return None
    if matrix == "gate_up":
        return code.place(work.frame, "normed", code.emit.spec.hidden_size)
    return _pair_place(code, block, work, "expert act", block.inner_size)


def _emit_pair_rows(code: BlockCode, block: Moe, name: str) -> None:
    """Item: a pair; its activation if that is apart, and made ready for `down`."""
    emit, t, inner = code.emit, code.tensor("down"), block.inner_size
    if emit.has(name):
        return
    with emit.function(name) as work:
        act = _pair_place(code, block, work, "expert act", inner).at(work.item * inner)
        if not fuses(inner):
            x = _pair_place(code, block, work, "expert gate and up", 2 * inner).at(work.item * 2 * inner)
            gate_row(x, act, inner, block.activation)
        if is_quantized(t):
            to = prepared(emit, work.frame, t, ROWS * block.top_k, "expert rows")
            quantized(act, to, work.item, t, emit.machine)


# ---- the shared expert -------------------------------------------------------------------------------


def _emit_shared(code: BlockCode, block: Moe) -> list[Phase]:
    """The expert that every row passes; its phases."""
    name, inner, fused = code.name, block.shared_size, fuses(block.shared_size)
    hidden = code.emit.spec.hidden_size
    up = Epilogue(glu=True, activation=block.activation) if fused else Epilogue()
    out = ("shared act", inner) if fused else ("shared gate and up", 2 * inner)
    again = not same_rows(code.tensor("gate_up"), code.tensor("shared_gate_up"))
    _emit_shared_rows(code, f"{name}_shared_ready", "shared_gate_up", "normed", None)
    where = "shared_gate_up rows" if again else "rows"
    _shared_product(code, f"{name}_shared_up", "shared_gate_up", where, "normed", out, up)
    _emit_shared_rows(code, f"{name}_shared_rows", "shared_down", "shared act", None if fused else block)
    _shared_product(
        code, f"{name}_shared_down", "shared_down", "shared_down rows", "shared act", ("shared out", hidden), Epilogue()
    )
    between = not fused or is_quantized(code.tensor("shared_down"))
    return [
        *([Phase(f"{name}_shared_ready", each=1)] if again else []),
        Phase(f"{name}_shared_up", groups=items(code, "shared_gate_up", fused)),
        *([Phase(f"{name}_shared_rows", each=1)] if between else []),
        Phase(f"{name}_shared_down", groups=items(code, "shared_down")),
    ]


def _emit_shared_rows(code: BlockCode, name: str, matrix: str, source: str, gated: Moe | None) -> None:
    """Item: a row of `source`, gated if gate and up are apart, made ready for `matrix`."""
    emit, t = code.emit, code.tensor(matrix)
    width = t.shape[-1]
    if emit.has(name):
        return
    with emit.function(name) as work:
        x = code.place(work.frame, source, width).at(work.item * width)
        if gated is not None:
            both = code.place(work.frame, "shared gate and up", 2 * width).at(work.item * 2 * width)
            gate_row(both, x, width, gated.activation)
        if is_quantized(t):
            quantized(x, prepared(emit, work.frame, t, ROWS, f"{matrix} rows"), work.item, t, emit.machine)


def _shared_product(
    code: BlockCode, name: str, matrix: str, ready: str, x: str, out: tuple[str, int], epilogue: Epilogue
) -> None:
    """Item: some outputs of the shared expert, for all rows."""
    emit, t = code.emit, code.tensor(matrix)
    if emit.has(name):
        return
    with emit.function(name) as work:
        is_packed = is_quantized(t)
        product = MatrixProduct(
            t, t.shape[0], bind(work.frame.number("rows")), code.place(work.frame, *out), out[1],
            words_of(code.table(work.table), matrix, t),
            prepared(emit, work.frame, t, ROWS, ready) if is_packed else None,
            None if is_packed else code.place(work.frame, x, t.shape[-1]), None, epilogue, T.int64(0),
        )  # fmt: skip
        product_item(emit, product, work.item)


# ---- the sum -----------------------------------------------------------------------------------------


def _emit_combine(code: BlockCode, block: Moe) -> None:
    """Item: a row; hidden += post_norm(the weighted sum of its experts)."""
    emit, hidden, numbers = code.emit, code.emit.spec.hidden_size, Numbers.of(code.emit, block)
    if emit.has(f"{code.name}_combine"):
        return
    with emit.function(f"{code.name}_combine") as work:
        weights = code.place(work.frame, "expert weights", block.top_k).at(work.item * block.top_k)
        pairs = numbers.pairs(work.frame).at(work.item * block.top_k)
        out = code.place(work.frame, "post", hidden).at(work.item * hidden)
        made = _pair_place(code, block, work, "expert out", hidden)
        lines = [made.at(bind(int64(pairs[j])) * hidden) for j in range(block.top_k)]
        factors = [spread(bind(weights[j])) for j in range(block.top_k)]
        if block.shared_size:
            lines.append(code.place(work.frame, "shared out", hidden).at(work.item * hidden))
            factors.append(spread(bind(code.place(work.frame, "shared weights", 1)[work.item])))

        def put(at: Expr, count: int) -> None:
            y = spread(0.0)
            for line, factor in zip(lines, factors, strict=True):
                y = fma(factor, part_of(line, at, count), y)
            put_part(out, at, y, count)

        by_parts(hidden, put)
        add_normed(code, code.table(work.table), work.frame, work.item)
