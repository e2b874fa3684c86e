"""Mixture of experts: which a row goes through, and the weighted sum of what they give (`kernels/cpu/moe_block.cpp`).

Sums are one after another, as the CPU engine's: experts are few.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.functions import exp
from edgedec.export.sources.kernel import GroupWork, Kernels
from edgedec.export.sources.rows import THREADS
from edgedec.export.sources.words import Array, Expr, barrier, bind, branch, div, f32, larger, own, shared, strided
from edgedec.spec import Moe

# Below every score of a router and its bias; WGSL has no infinity.
_LEAST = -3e38


def route(k: Kernels, block: Moe) -> str:
    """Write the kernel that chooses a row's experts, the best first, and weighs them; its name. Arrays logits, bias of
    a router that has one, experts, weights."""
    n, top = block.n_experts, block.top_k
    name = f"route_{n}_{top}_{block.router}" + ("_normalized" if block.normalize else "")
    name += f"_{f32_name(block.scale)}" + ("_bias" if block.router_bias else "")
    name += f"_{block.top_groups}_of_{block.groups}" if block.groups > 1 else ""
    if k.has(name):
        return name
    bias = {"bias": "float32"} if block.router_bias else {}
    with k.kernel(name, THREADS, {"logits": "float32", **bias, "experts": "int32", "weights": "float32"}) as work:
        logits = work["logits"].at(work.tile * n)
        scores = _scores(k.dialect, work, block, logits)
        ranked = scores if block.router == "sigmoid" else logits
        if block.router_bias:
            ranked = shared(n)
            strided(work.thread, THREADS, n, lambda e: ranked.put(e, bind(scores[e] + work["bias"][e])))
            barrier()
        if block.groups > 1:
            ranked = _in_best_groups(work, ranked, block)
        chosen = _chosen(work, ranked, n, top)
        source = logits if block.router == "softmax_topk" else scores
        branch(work.thread == 0, lambda: _weigh(k.dialect, work, block, source, chosen))
    return name


def f32_name(x: float) -> str:
    """A number as a part of a name.

    >>> f32_name(0.5)
    '0_5'
    """
    return format(x, ".9g").replace(".", "_").replace("-", "m").replace("+", "")


def _scores(d: Dialect, work: GroupWork, block: Moe, logits: Array) -> Array:
    """Of all experts: the softmax, or of each its sigmoid."""
    n, scores = block.n_experts, shared(block.n_experts)
    if block.router == "sigmoid":
        strided(work.thread, THREADS, n, lambda e: scores.put(e, sigmoid(d, logits[e])))
        barrier()
        return scores
    state = own(2)
    state.put(0, logits[0])
    state.put(1, f32(0.0))
    with T.serial(n) as e:
        state.put(0, larger(logits[e], state[0]))
    strided(work.thread, THREADS, n, lambda e: scores.put(e, exp(d, bind(logits[e] - state[0]))))
    barrier()
    with T.serial(n) as e:
        state.put(1, bind(state[1] + scores[e]))
    barrier()
    strided(work.thread, THREADS, n, lambda e: scores.put(e, d.divide(scores[e], state[1])))
    barrier()
    return scores


def sigmoid(d: Dialect, x: Expr) -> Expr:
    """1 / (1 + e^-x)."""
    return d.divide(f32(1.0), bind(f32(1.0) + exp(d, bind(f32(0.0) - x))))


def _in_best_groups(work: GroupWork, scores: Array, block: Moe) -> Array:
    """The scores, with the least number for experts outside the `top_groups` groups whose two best have the largest
    sum; of equals the smaller number."""
    size, sums, kept = block.n_experts // block.groups, shared(block.groups), shared(block.n_experts)
    best, before = own(2), own(1, "int32")

    def judge(group: Expr) -> None:
        best.put(0, f32(_LEAST))
        best.put(1, f32(_LEAST))
        with T.serial(size) as i:
            value, first, second = scores[group * size + i], best[0], best[1]
            best.put(1, bind(T.Select(value > first, first, larger(value, second))))
            best.put(0, larger(value, first))
        sums.put(group, bind(best[0] + best[1]))

    def keep(e: Expr) -> None:
        group = div(e, size)
        mine = sums[group]
        before.put(0, T.int32(0))
        with T.serial(block.groups) as other:
            ahead = T.Or(sums[other] > mine, T.And(sums[other] == mine, other < group))
            before.put(0, bind(before[0] + T.Select(ahead, T.int32(1), T.int32(0))))
        kept.put(e, bind(T.Select(before[0] < block.top_groups, scores[e], f32(_LEAST))))

    strided(work.thread, THREADS, block.groups, judge)
    barrier()
    strided(work.thread, THREADS, block.n_experts, keep)
    barrier()
    return kept


def _chosen(work: GroupWork, ranked: Array, n: int, top: int) -> Array:
    """The numbers of the best experts in order; of equals the smaller one."""
    chosen, before = shared(top, "int32"), own(1, "int32")
    strided(work.thread, THREADS, top, lambda j: chosen.put(j, T.int32(0)))
    barrier()

    def place(e: Expr) -> None:
        value = ranked[e]
        before.put(0, T.int32(0))
        with T.serial(n) as other:
            score = ranked[other]
            ahead = T.Or(score > value, T.And(score == value, other < e))
            before.put(0, bind(before[0] + T.Select(ahead, T.int32(1), T.int32(0))))
        branch(before[0] < top, lambda: chosen.put(before[0], T.Cast("int32", e)))

    strided(work.thread, THREADS, n, place)
    barrier()
    return chosen


def _weigh(d: Dialect, work: GroupWork, block: Moe, source: Array, chosen: Array) -> None:
    """Store the chosen experts and their weights."""
    top = block.top_k
    values = [source[chosen[j]] for j in range(top)]
    if block.router == "softmax_topk":
        most = values[0]
        for value in values[1:]:
            most = larger(value, most)
        powers = [exp(d, bind(value - most)) for value in values]
        values = [d.divide(power, _sum(powers)) for power in powers]
    whole = _sum(values) if block.normalize else f32(1.0)
    for j, value in enumerate(values):
        work["experts"].put(work.tile * top + j, chosen[j])
        work["weights"].put(work.tile * top + j, d.mul(d.divide(value, whole), f32(block.scale)))


def _sum(values: list[Expr]) -> Expr:
    total = values[0]
    for value in values[1:]:
        total = bind(total + value)
    return total


def combine(k: Kernels, block: Moe, width: int, add: bool) -> str:
    """Write the kernel of the weighted sum of a row's experts, the best first, the shared one last; its name. Arrays
    weights, outs, shared_out and shared_gate as far as there are, y. add: to what is there."""
    gates = ("shared_gate",) if block.shared_gate else ()
    parts = ("shared_out", *gates) if block.shared_size else ()
    name = "_".join((f"combine_{block.top_k}_{width}", *parts, *(("add",) if add else ())))
    if k.has(name):
        return name
    arrays = dict.fromkeys(("weights", "outs", *parts, "y"), "float32")
    with k.kernel(name, THREADS, arrays) as work:
        d, top, at = k.dialect, block.top_k, bind(work.tile * width)
        factors = [work["weights"][work.tile * top + j] for j in range(top)]
        gate = sigmoid(d, work["shared_gate"][work.tile]) if gates else f32(1.0)

        def one(i: Expr) -> None:
            y = f32(0.0)
            for j, factor in enumerate(factors):
                y = d.fma(factor, work["outs"][(work.tile * top + j) * width + i], y)
            if parts:
                y = d.fma(gate, work["shared_out"][at + i], y)
            here = bind(at + i)
            work["y"].put(here, bind(work["y"][here] + y) if add else y)

        strided(work.thread, THREADS, width, one)
    return name
