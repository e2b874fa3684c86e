"""The state-space block between its projections (`kernels/cpu/ssm_block.cpp`): convolution, time steps, recurrence,
gate, norm; and the update of a sequence's state at a commit.

A state is [state_size, inner values], then the inputs of the convolution of the last rows [conv_size - 1, conv_dim]. A
call reads the state and does not change it: each row is computed along its path from the committed state, a chain once
for all of its rows. The inputs of rows are kept for the commit: for each row the values before the convolution and
after it, dt and decay of each head.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.functions import ACTIVATIONS, exp, softplus
from edgedec.export.sources.kernel import Kernels
from edgedec.export.sources.rows import THREADS, normed, row_number
from edgedec.export.sources.scan import ScanWork, advanced, row_floats, state_floats
from edgedec.export.sources.words import (
    LANES,
    Array,
    Expr,
    barrier,
    bind,
    branch,
    f32,
    larger,
    own,
    shared,
    smaller,
    strided,
)
from edgedec.spec import Ssm


def _shape(block: Ssm) -> str:
    return f"{block.n_heads}_{block.head_dim}_{block.state_size}_{block.n_groups}_{block.conv_size}"


def _floats(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "float32")


# ---- inputs of rows ---------------------------------------------------------------------------


def convolve(k: Kernels, block: Ssm) -> str:
    """Write the kernel of a row's convolution; its name. Arrays projected, rows, path, state, conv, conv_bias, kept."""
    name = f"ssm_convolve_{_shape(block)}"
    if k.has(name):
        return name
    arrays = _floats("projected") | {"rows": "int32", "path": "int32"} | _floats("state", "conv", "conv_bias", "kept")
    with k.kernel(name, THREADS, arrays) as work:
        d, size = k.dialect, block.conv_size
        to = work["kept"].at(work.tile * row_floats(block))
        history = work["state"].at(row_number(work["rows"], work.tile, "state") * state_floats(block))
        taps = [_Tap.of(ScanWork.of(work, block), size - 1 - t) for t in range(size)]

        def one(i: Expr) -> None:
            values = [tap.value(history, i) for tap in taps]
            total = d.mul(work["conv"][i * size], values[0])
            for t, value in enumerate(values[1:], 1):
                total = d.fma(work["conv"][i * size + t], value, total)
            to.put(i, values[-1])
            to.put(i + block.conv_dim, ACTIVATIONS["silu"](d, bind(total + work["conv_bias"][i])))

        strided(work.thread, THREADS, block.conv_dim, one)
    return name


class _Tap:
    """The values that the convolution reads `back` rows before a row: of a row of the call, or of the history."""

    def __init__(self, scan: ScanWork, row: Expr, inside: Expr, line: Expr) -> None:
        self._scan, self._row, self._inside, self._line = scan, row, inside, line

    @classmethod
    def of(cls, scan: ScanWork, back: int) -> _Tap:
        """`back` rows before the group's row."""
        inside = bind(T.Select(scan.depth >= T.int32(back), T.int32(1), T.int32(0)))
        before = bind(T.Select(inside == T.int32(1), scan.depth - T.int32(back), scan.depth))
        line = bind(T.Select(inside == T.int32(1), T.int32(0), scan.depth + T.int32(scan.block.conv_size - 1 - back)))
        return cls(scan, scan.row_at(before), inside, line)

    def value(self, state: Array, i: Expr) -> Expr:
        """Channel i. state: the sequence's."""
        block = self._scan.block
        new = self._scan.work["projected"][self._row * block.in_rows + block.inner_size + i]
        old = state[block.state_size * block.inner_size + self._line * block.conv_dim + i]
        return bind(T.Select(self._inside == T.int32(1), new, old))


def time_steps(k: Kernels, block: Ssm) -> str:
    """Write the kernel of dt of each head and of what it leaves of a state; its name. Arrays projected, dt_bias, a,
    kept."""
    limits = "_".join(format(x, ".9g").replace(".", "_").replace("+", "").replace("-", "m") for x in _limits(block))
    name = f"ssm_steps_{_shape(block)}_{limits}"
    if k.has(name):
        return name
    with k.kernel(name, THREADS, _floats("projected", "dt_bias", "a", "kept")) as work:
        d, heads = k.dialect, block.n_heads
        x = work["projected"].at(work.tile * block.in_rows + block.inner_size + block.conv_dim)
        to = work["kept"].at(work.tile * row_floats(block) + 2 * block.conv_dim)

        def one(h: Expr) -> None:
            step = softplus(d, bind(x[h] + work["dt_bias"][h]))
            step = smaller(larger(step, f32(block.dt_min)), f32(block.dt_max))
            to.put(h, step)
            to.put(h + heads, exp(d, d.mul(step, work["a"][h])))

        strided(work.thread, THREADS, heads, one)
    return name


def _limits(block: Ssm) -> tuple[float, float]:
    return block.dt_min, block.dt_max


# ---- the recurrence ----------------------------------------------------------------------------------


def scan(k: Kernels, block: Ssm) -> str:
    """Write the kernel of the recurrence and the gate; its name. Item: values of the state, a thread one. Arrays rows,
    path, state, kept, d, projected, scanned."""
    name = f"ssm_scan_{_shape(block)}"
    if k.has(name):
        return name
    arrays = {"rows": "int32", "path": "int32"} | _floats("state", "kept", "d", "projected", "scanned")
    with k.kernel(name, THREADS, arrays) as work:
        rows, value = ScanWork.of(work, block), bind(work.item * THREADS + work.thread)

        def run() -> None:
            branch(rows.begin < T.int32(0), lambda: _chain(k, rows, value), lambda: _path(k, rows, value))

        branch(value < T.int32(block.inner_size), run)
    return name


def _chain(k: Kernels, scan: ScanWork, value: Expr) -> None:
    """All rows of a chain, by the group of its first one."""
    block, work = scan.block, scan.work
    count, out = row_number(work["rows"], work.tile, "count"), work["scanned"]

    def place(r: Expr) -> Expr:
        return bind((work.tile + r) * block.inner_size + value)

    def run() -> None:
        with T.serial(count) as r:
            out.put(place(r), f32(0.0))
        with T.serial(block.state_size) as n:
            state = own(1)
            state.put(0, scan.state[n * block.inner_size + value])
            with T.serial(count) as r:
                row = scan.kept(bind(work.tile + r))
                state.put(0, advanced(k.dialect, row, value, n, state[0]))
                at = place(r)
                out.put(at, k.dialect.fma(state[0], row.c(value, n), out[at]))
        with T.serial(count) as r:
            row = bind(work.tile + r)
            out.put(place(r), _gated(k, scan, row, value, out[place(r)]))

    branch(scan.at == T.int32(0), run)


def _path(k: Kernels, scan: ScanWork, value: Expr) -> None:
    """A row of a tree, from the committed state on."""
    block, work, total, state = scan.block, scan.work, own(1), own(1)
    total.put(0, f32(0.0))
    last = scan.kept(work.tile)
    with T.serial(block.state_size) as n:
        state.put(0, scan.state[n * block.inner_size + value])
        with T.serial(bind(scan.depth + 1)) as i:
            state.put(0, advanced(k.dialect, scan.kept(scan.row_at(i)), value, n, state[0]))
        total.put(0, k.dialect.fma(state[0], last.c(value, n), total[0]))
    work["scanned"].put(work.tile * block.inner_size + value, _gated(k, scan, work.tile, value, total[0]))


def _gated(k: Kernels, scan: ScanWork, row: Expr, value: Expr, total: Expr) -> Expr:
    """(sum + d x) silu(z)."""
    d, block, kept = k.dialect, scan.block, scan.kept(row)
    y = d.fma(scan.work["d"][kept.head(value)], kept.x(value), total)
    return d.mul(ACTIVATIONS["silu"](d, scan.work["projected"][row * block.in_rows + value]), y)


def gate_norm(k: Kernels, block: Ssm, eps: float) -> str:
    """Write the kernel that norms a row by parts where it lies; its name. Arrays scanned, gate_norm."""
    name = f"ssm_norm_{block.inner_size}_{block.norm_groups}"
    if k.has(name):
        return name
    width = block.inner_size // block.norm_groups
    with k.kernel(name, THREADS, _floats("scanned", "gate_norm")) as work:
        lanes = shared(LANES)
        for part in range(block.norm_groups):
            x, weight = (
                work["scanned"].at(work.tile * block.inner_size + part * width),
                work["gate_norm"].at(part * width),
            )
            value = normed(k.dialect, x, width, "rms", eps, work, lanes, weight.__getitem__)
            strided(work.thread, THREADS, width, lambda i, x=x, value=value: x.put(i, value(i)))  # type: ignore[misc]
            barrier()
    return name


# ---- the commit --------------------------------------------------------------------------------------


def advance(k: Kernels, block: Ssm) -> str:
    """Write the kernel that brings a sequence's state to the end of committed rows; its name. Item: values of the
    state. Arrays commit, kept, state."""
    name = f"ssm_advance_{_shape(block)}"
    if k.has(name):
        return name
    with k.kernel(name, THREADS, {"commit": "int32"} | _floats("kept", "state")) as work:
        commit = work["commit"]
        scan = ScanWork.of_commit(work, block)
        value = bind(work.item * THREADS + work.thread)

        def run() -> None:
            with T.serial(block.state_size) as n:
                state, at = own(1), bind(n * block.inner_size + value)
                state.put(0, scan.state[at])
                with T.serial(commit[2]) as i:
                    row = scan.kept(bind(commit[1] + commit[3 + i]))
                    state.put(0, advanced(k.dialect, row, value, n, state[0]))
                scan.state.put(at, state[0])

        branch(value < T.int32(block.inner_size), run)
    return name


def remember(k: Kernels, block: Ssm) -> str:
    """Write the kernel that keeps the inputs of the convolution of the last committed rows; its name. Item: channels.
    Arrays commit, kept, state."""
    name = f"ssm_remember_{_shape(block)}"
    if k.has(name):
        return name
    with k.kernel(name, THREADS, {"commit": "int32"} | _floats("kept", "state")) as work:
        commit, most = work["commit"], block.conv_size - 1
        scan = ScanWork.of_commit(work, block)
        channel, before = bind(work.item * THREADS + work.thread), block.state_size * block.inner_size

        def run() -> None:
            values = own(most)
            for j in range(most):
                number = bind(commit[2] + T.int32(j - most))  # of the committed rows; negative: of the history
                inside = number >= T.int32(0)
                row = bind(commit[1] + commit[3 + T.Select(inside, number, T.int32(0))])
                line = bind(T.Select(inside, T.int32(0), number + T.int32(most)))
                new = work["kept"][row * row_floats(block) + channel]
                old = scan.state[before + line * block.conv_dim + channel]
                values.put(j, T.Select(inside, new, old))
            for j in range(most):
                scan.state.put(before + j * block.conv_dim + channel, values[j])

        branch(channel < T.int32(block.conv_dim), run)
    return name
