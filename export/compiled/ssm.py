"""The state-space block: projection, a short convolution, a recurrence along each row's path in its tree, a gated norm,
projection (`kernels/cpu/ssm_block.cpp`, `kernels/cuda/ssm.h`).

State [heads][lane groups][state_size][16]: value d of a head is lane d % 16 of lane group d / 16, so that no sum
crosses lanes. The host decides which updates apply to which state (`Recurrent` of kernels/cuda/args.h).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.export.compiled.emitter import BlockTable, Emitter, Frame, Phase, branch
from edgedec.export.compiled.lanes import (
    ACTIVATIONS,
    LANES,
    Expr,
    Ptr,
    bind,
    by_parts,
    exp,
    fma,
    int64,
    larger,
    like,
    local,
    mul,
    part_of,
    pointer,
    put_part,
    smaller,
    softplus,
    spread,
)
from edgedec.export.compiled.parts import BlockCode, emit_product, emit_ready, emit_residual, items
from edgedec.export.compiled.prepare import normed
from edgedec.export.compiled.product import Epilogue
from edgedec.export.compiled.ready import is_quantized, prepared, quantized
from edgedec.runtimes.tvm.frame import ROWS
from edgedec.spec import Ssm

# Lane groups that one item processes at once: independent sums hide latency.
_AT_ONCE = 4
_RECURRENT = 6  # numbers of 64 bits in `Recurrent`


def reserve_ssm(code: BlockCode) -> None:
    """Working memory of a state-space block."""
    block = code.block
    assert isinstance(block, Ssm)
    code.emit.reserve("projected", "float32", ROWS * block.in_rows)
    code.emit.reserve("scanned", "float32", ROWS * block.inner_size)


def ssm(code: BlockCode, kv: tuple[str, ...]) -> list[Phase]:
    """Write a state-space block; its phases."""
    del kv
    block, name = code.block, code.name
    assert isinstance(block, Ssm)
    emit_ready(code, f"{name}_ready", "in_proj", "hidden", block.norm)
    x = "hidden" if block.norm == "none" else "normed"
    bias = "in_proj_bias" if block.proj_bias else None
    emit_product(code, f"{name}_in", "in_proj", x, ("projected", block.in_rows), Epilogue(), bias)
    _emit_inputs(code, block, f"{name}_inputs")
    _emit_scan(code, block, f"{name}_scan")
    _emit_gate_norm(code, block, f"{name}_gate_norm")
    return [
        Phase(f"{name}_ready", each=1),
        Phase(f"{name}_in", groups=items(code, "in_proj")),
        Phase(f"{name}_inputs", each=1),
        Phase(f"{name}_scan", each=block.n_heads * _parts(block), per="sequences"),
        Phase(f"{name}_gate_norm", each=1),
        *emit_residual(code, "out_proj", "scanned", "out_proj_bias" if block.proj_bias else None, ready=False),
    ]


def _lane_groups(block: Ssm) -> int:
    return block.head_dim // LANES


def _parts(block: Ssm) -> int:
    """Items that a head is cut into."""
    return -(-_lane_groups(block) // _AT_ONCE)


@dataclass(frozen=True)
class States:
    """The host's description of one sequence's state: start, history, next, rows; `number`: its number in the call."""

    words: Ptr
    number: Expr

    @classmethod
    def of(cls, frame: Frame, table: BlockTable, sequence: Expr) -> States:
        number = bind(table.address("view") * frame.number("sequences") + sequence)
        return cls(frame.array("recurrent", "int64").at(number * _RECURRENT), number)

    def pointer(self, name: str) -> Ptr:
        return pointer(self.address(name), "float32")

    def address(self, name: str) -> Expr:
        return bind(self.words[("start", "history", "next", "rows", "first", "call_row").index(name)])


def _row_floats(block: Ssm) -> int:
    """Of a row of a tree: before and after the convolution; dt and decay of each head."""
    return 2 * block.conv_dim + 2 * block.n_heads


# ---- a row's inputs ----------------------------------------------------------------------------------


def _emit_inputs(code: BlockCode, block: Ssm, name: str) -> None:
    """Item: a row; its convolution and time steps, kept for the commit."""
    if code.emit.has(name):
        return
    with code.emit.function(name) as work:
        frame, table, row, width = work.frame, code.table(work.table), work.item, block.in_rows
        states = States.of(frame, table, bind(int64(frame.array("sequence")[row])))
        own = code.place(frame, "projected", width).at(row * width + block.inner_size)
        to = states.pointer("rows").at(bind(int64(frame.array("at")[row])) * _row_floats(block))
        n_taps = frame.number("n_taps")
        taps = frame.array("taps").at(row * n_taps + n_taps - block.conv_size)
        places = [_tapped(code, block, frame, states, bind(int64(taps[t]))) for t in range(block.conv_size)]
        conv, bias = table.pointer("conv"), table.pointer("conv_bias")

        def put(at: Expr, n: int) -> None:
            sums = mul(part_of(conv, at, n), part_of(places[0], at, n))
            for t, tap in enumerate(places[1:], start=1):
                sums = fma(part_of(conv, at + t * block.conv_dim, n), part_of(tap, at, n), sums)
            put_part(to, at, part_of(own, at, n), n)
            mixed = ACTIVATIONS["silu"](bind(sums + part_of(bias, at, n)))
            put_part(to, at + block.conv_dim, mixed, n)

        by_parts(block.conv_dim, put)
        _time_steps(block, table, own.at(block.conv_dim), to.at(2 * block.conv_dim))


def _tapped(code: BlockCode, block: Ssm, frame: Frame, states: States, tap: Expr) -> Ptr:
    """The values before the convolution for a tap: from the history, a pending row, or a row of the call."""
    first = states.address("first")
    base = code.place(frame, "projected", block.in_rows).buffer.data
    projected = bind(T.reinterpret("int64", base))
    places = (
        states.address("history") + (T.int64(block.conv_size - 1) + tap) * (4 * block.conv_dim),
        states.address("rows") + tap * (4 * _row_floats(block)),
        projected + ((states.address("call_row") + tap - first) * block.in_rows + block.inner_size) * 4,
    )
    inner = bind(T.Select(tap < first, places[1], places[2]))
    return pointer(bind(T.Select(tap < T.int64(0), places[0], inner)), "float32")


def _time_steps(block: Ssm, table: BlockTable, x: Ptr, to: Ptr) -> None:
    """dt and the decay of the state for each head."""
    bias, a, heads = table.pointer("dt_bias"), table.pointer("a"), block.n_heads

    def put(at: Expr, n: int) -> None:
        dt = softplus(bind(part_of(x, at, n) + part_of(bias, at, n)))
        dt = smaller(larger(dt, like(dt, block.dt_min)), like(dt, block.dt_max))
        put_part(to, at, dt, n)
        put_part(to, at + heads, exp(mul(dt, part_of(a, at, n))), n)

    by_parts(heads, put)


# ---- the recurrence ----------------------------------------------------------------------------------


def _emit_scan(code: BlockCode, block: Ssm, name: str) -> None:
    """Item: a sequence, a head, some of its lane groups; all updates, and y of every row times its gate."""
    if code.emit.has(name):
        return
    parts, groups = _parts(block), _lane_groups(block)
    with code.emit.function(name) as work:
        frame, table, each = work.frame, code.table(work.table), block.n_heads * parts
        states = States.of(frame, table, bind(work.item // each))
        head, part = bind(work.item % each // parts), bind(work.item % parts)
        ends, updates = frame.array("update_ends"), frame.array("updates")
        before = bind(T.if_then_else(states.number > 0, int64(ends[states.number - 1]), T.int64(0)))
        with T.serial(bind(int64(ends[states.number]) - before)) as u:
            update = updates.at((before + int64(u)) * 3)
            source = bind(T.Select(update[0] != 0, states.address("next"), states.address("start")))
            inputs = states.pointer("rows").at(int64(update[1]) * _row_floats(block))
            step = ScanStep(code, block, head, inputs, source, states.address("next"), bind(int64(update[2])))
            for p in range(parts):
                count = min(_AT_ONCE, groups - p * _AT_ONCE)
                branch(part == p, lambda p=p, n=count, step=step: _scan(step, frame, table, p * _AT_ONCE, n))  # type: ignore[misc]


@dataclass(frozen=True)
class ScanStep:
    """One row of one head: its inputs; addresses of the state before it and after it; the call's row that its output
    is of (negative: none)."""

    code: BlockCode
    block: Ssm
    head: Expr
    inputs: Ptr
    source: Expr
    to: Expr
    row: Expr


def _scan(step: ScanStep, frame: Frame, table: BlockTable, first: int, count: int) -> None:
    block, head = step.block, step.head
    mixed = step.inputs.at(block.conv_dim)
    x = [bind(mixed.vec(head * block.head_dim + (first + g) * LANES)) for g in range(count)]
    b = mixed.at(block.inner_size + head // (block.n_heads // block.n_groups) * block.state_size)
    sums = _advance(
        [pointer(address, "float32") for address in (step.source, step.to)],
        bind((head * _lane_groups(block) + first) * (block.state_size * LANES)),
        x, bind(step.inputs[2 * block.conv_dim + head]),
        bind(step.inputs[2 * block.conv_dim + block.n_heads + head]), b, T.int64(block.state_size),
        b.at(block.n_groups * block.state_size),
    )  # fmt: skip

    def put() -> None:
        d = spread(bind(table.pointer("d")[head]))
        z = step.code.place(frame, "projected", block.in_rows).at(step.row * block.in_rows)
        out = step.code.place(frame, "scanned", block.inner_size).at(step.row * block.inner_size)
        for g in range(count):
            at = bind(head * block.head_dim + (first + g) * LANES)
            gate = ACTIVATIONS["silu"](bind(z.vec(at)))
            out.put(at, mul(gate, fma(d, x[g], sums[g])), LANES)

    branch(step.row >= T.int64(0), put)


def _advance(
    states: list[Ptr], at: Expr, x: list[Expr], dt: Expr, decay: Expr, b: Ptr, size: Expr, c: Ptr
) -> list[Expr]:
    """Neighbouring lane groups of a state, the first at `at`: state = decay * state + (dt * x) b; their sums by c."""
    source, to = states
    inputs, kept = [mul(spread(dt), value) for value in x], spread(decay)
    sums = local(len(x), "float32x16")
    for g in range(len(x)):
        sums.put(g, spread(0.0))
    with T.serial(size) as number:
        n = bind(int64(number))
        of_b, of_c = spread(bind(b[n])), spread(bind(c[n]))
        for g, value in enumerate(inputs):
            place = bind(at + g * size * LANES + n * LANES)
            state = fma(kept, bind(source.vec(place)), mul(value, of_b))
            to.put(place, state, LANES)
            sums.put(g, fma(state, of_c, bind(sums[g])))
    return [bind(sums[g]) for g in range(len(x))]


# ---- after the recurrence ----------------------------------------------------------------------------


def _emit_gate_norm(code: BlockCode, block: Ssm, name: str) -> None:
    """Item: a row; its outputs normed by parts, and made ready for `out_proj`."""
    emit, t, inner = code.emit, code.tensor("out_proj"), block.inner_size
    if emit.has(name):
        return
    with emit.function(name) as work:
        y = code.place(work.frame, "scanned", inner).at(work.item * inner)
        weight, width = code.table(work.table).pointer("gate_norm"), inner // block.norm_groups
        with T.serial(block.norm_groups) as i:
            part = bind(int64(i) * width)
            normed(y.at(part), y.at(part), width, "rms", weight.at(part), None, emit.spec.norm_eps)
        if is_quantized(t):
            quantized(y, prepared(emit, work.frame, t), work.item, t, emit.machine)


def emit_advance(emit: Emitter) -> None:
    """Write "ssm_advance": given [from, rows, to, path, heads, head_dim, state_size, groups, n] (`AdvanceArgs` of
    kernels/cuda/args.h); the state after a path of rows."""
    with emit.function("ssm_advance", exported=True) as work:
        source, rows, to, path_at, heads, dim, size, groups, n = (bind(work.frame.words[i]) for i in range(9))
        path, lanes = pointer(path_at, "int32"), bind((dim + (LANES - 1)) // LANES)
        conv_dim = bind(heads * dim + 2 * groups * size)
        with T.serial(n) as i:
            inputs = pointer(rows, "float32").at(int64(path[i]) * (2 * conv_dim + 2 * heads))
            states = [pointer(bind(T.Select(int64(i) > 0, to, source)), "float32"), pointer(to, "float32")]
            with T.serial(bind(heads * lanes)) as group:
                head = bind(int64(group) // lanes)
                x = bind(inputs.vec(conv_dim + head * dim + (int64(group) % lanes) * LANES))
                b = inputs.at(conv_dim + heads * dim + head // (heads // groups) * size)
                dt, decay = (bind(inputs[2 * conv_dim + k + head]) for k in (T.int64(0), heads))
                _advance(states, bind(int64(group) * size * LANES), [x], dt, decay, b, size, b)
