"""Which experts a row goes through, and which rows an expert has (`kernels/cpu/moe_block.cpp`)."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.export.compiled.emitter import Emitter, Frame, branch
from edgedec.export.compiled.lanes import Expr, Ptr, bind, by_parts, exp, int64, local, mul, part_of, put_part, sigmoid
from edgedec.export.compiled.parts import BlockCode
from edgedec.export.compiled.tiles import float_sums
from edgedec.runtimes.tvm.frame import ROWS
from edgedec.spec import Moe

_NUMBERS = "expert numbers"


@dataclass(frozen=True)
class Numbers:
    """Integers of a call's pairs, in places of their own: active: the experts that rows have chosen; first [experts +
    1]: the first pair of each; pairs, rows: of each row and rank the pair, of each pair the row."""

    emit: Emitter
    block: Moe

    counted = f"{_NUMBERS} active count"

    @classmethod
    def of(cls, emit: Emitter, block: Moe) -> Numbers:
        return cls(emit, block)

    def _sizes(self) -> dict[str, int]:
        n, pairs = self.block.n_experts, ROWS * self.block.top_k
        by_pair = dict.fromkeys(("pairs", "rows", "chosen"), pairs)
        return {"active count": 1, "active": n, "first": n + 1, "next": n, **by_pair}

    def reserve(self) -> None:
        """Make them large enough."""
        for name, count in self._sizes().items():
            self.emit.reserve(f"{_NUMBERS} {name}", "int32", count)
        self.emit.reserve("expert weights", "float32", ROWS * self.block.top_k)
        self.emit.reserve("shared weights", "float32", ROWS)
        for name in ("router", "router scores", "router ranked"):
            self.emit.reserve(name, "float32", ROWS * self.block.n_experts)

    def get(self, frame: Frame, name: str) -> Ptr:
        return self.emit.place(frame, f"{_NUMBERS} {name}", "int32", self._sizes()[name])

    def active(self, frame: Frame) -> Ptr:
        return self.get(frame, "active")

    def first(self, frame: Frame) -> Ptr:
        return self.get(frame, "first")

    def pairs(self, frame: Frame) -> Ptr:
        return self.get(frame, "pairs")

    def rows(self, frame: Frame) -> Ptr:
        return self.get(frame, "rows")


# ---- a row's experts ---------------------------------------------------------------------------------


def emit_route(code: BlockCode, block: Moe, name: str) -> None:
    """Item: a row; its experts, the best first, and their weights; that of the shared one."""
    emit, n, k = code.emit, block.n_experts, block.top_k
    if emit.has(name):
        return
    with emit.function(name) as work:
        table, frame, row = code.table(work.table), work.frame, work.item
        logits, scores, biased = (
            code.place(frame, place, n).at(row * n) for place in ("router", "router scores", "router ranked")
        )
        weights = code.place(frame, "expert weights", k).at(row * k)
        experts = Numbers.of(emit, block).get(frame, "chosen").at(row * k)
        ranked = logits
        if block.router == "sigmoid":
            by_parts(n, lambda at, count: put_part(scores, at, sigmoid(part_of(logits, at, count)), count))
            ranked = scores
        else:
            _softmax(logits, n, scores)
        if block.router_bias:
            bias = table.pointer("router_bias")
            ranked = biased
            by_parts(n, lambda at, m: put_part(biased, at, part_of(scores, at, m) + part_of(bias, at, m), m))
        if block.groups > 1:
            _keep_best_groups(ranked, biased, block)
            ranked = biased
        _rank(ranked, n, k, experts)
        _weigh(block, logits if block.router == "softmax_topk" else scores, experts, weights)
        if block.shared_size:
            _weigh_shared(code, block, table.pointer("shared_gate") if block.shared_gate else None, frame, row)


def _softmax(x: Ptr, n: int, y: Ptr) -> None:
    """y = softmax(x), its sum one after another: experts are few."""
    top = local(2, "float32")
    top.put(0, T.float32(-float("inf")))
    with T.serial(n) as i:
        value = bind(x[i])
        top.put(0, T.Select(value > top[0], value, top[0]))
    most = bind(top[0])
    by_parts(n, lambda at, count: put_part(y, at, exp(bind(part_of(x, at, count) - T.broadcast(most, 16))), count))
    top.put(1, T.float32(0.0))
    with T.serial(n) as i:
        top.put(1, top[1] + y[i])
    whole = bind(top[1])
    with T.serial(n) as i:
        y.put(i, y[i] / whole)


def _keep_best_groups(scores: Ptr, kept: Ptr, block: Moe) -> None:
    """kept = scores, with -inf for the experts outside the `top_groups` groups whose two best have the largest sum; of
    equals the smaller number."""
    size, none = block.n_experts // block.groups, T.float32(-float("inf"))
    sums, best, before = local(block.groups, "float32"), local(2, "float32"), local(1, "int32")
    with T.serial(block.groups) as group:
        start = bind(int64(group) * size)
        best.put(0, none)
        best.put(1, none)
        with T.serial(size) as i:
            value, first, second = bind(scores[start + int64(i)]), bind(best[0]), bind(best[1])
            best.put(1, T.Select(value > first, first, T.Select(value > second, value, second)))
            best.put(0, T.Select(value > first, value, first))
        sums.put(group, best[0] + best[1])
    with T.serial(block.groups) as group:
        start, mine = bind(int64(group) * size), bind(sums[group])
        before.put(0, T.int32(0))
        with T.serial(block.groups) as other:
            value = bind(sums[other])
            ahead = T.Or(value > mine, T.And(value == mine, int64(other) < int64(group)))
            before.put(0, before[0] + T.Select(ahead, T.int32(1), T.int32(0)))
        count = bind(before[0])
        with T.serial(size) as i:
            value = bind(scores[start + int64(i)])
            kept.put(start + int64(i), T.Select(count < T.int32(block.top_groups), value, none))


def _rank(scores: Ptr, n: int, k: int, best: Ptr) -> None:
    """The k largest in order; of equals the smaller number."""
    numbers = local(2, "int64")  # how many are held; where the next goes
    numbers.put(0, T.int64(0))
    with T.serial(n) as number:
        e = bind(int64(number))
        value, last = bind(scores[e]), bind(T.max(numbers[0] - 1, T.int64(0)))
        full = bind(T.Cast("int32", numbers[0] == T.int64(k)))
        worse = bind(T.Cast("int32", T.Not(value > scores[bind(_held(best, last, numbers[0]))])))

        def insert(e: Expr = e, value: Expr = value, last: Expr = last, full: Expr = full) -> None:
            numbers.put(1, T.Select(full == T.int32(1), last, numbers[0]))
            numbers.put(0, T.Select(full == T.int32(1), numbers[0], numbers[0] + 1))
            before = T.max(numbers[1] - 1, T.int64(0))
            with T.While(T.And(numbers[1] > T.int64(0), value > scores[int64(_held(best, before, numbers[1]))])):
                best.put(numbers[1], best[numbers[1] - 1])
                numbers.put(1, numbers[1] - 1)
            best.put(numbers[1], T.Cast("int32", e))

        branch(T.Or(full == T.int32(0), worse == T.int32(0)), insert)


def _held(best: Ptr, at: Expr, count: Expr) -> Expr:
    """The expert at a rank; 0 if none is held there yet."""
    return T.if_then_else(count > T.int64(0), int64(best[at]), T.int64(0))


def _weigh(block: Moe, scores: Ptr, experts: Ptr, weights: Ptr) -> None:
    """The weights of the chosen experts."""
    k, sums = block.top_k, local(1, "float32")
    with T.serial(k) as j:
        weights.put(j, scores[int64(experts[j])])
    if block.router == "softmax_topk":
        _softmax(weights, k, weights)
    sums.put(0, T.float32(0.0 if block.normalize else 1.0))
    if block.normalize:
        with T.serial(k) as j:
            sums.put(0, sums[0] + weights[j])
    whole = bind(sums[0])
    with T.serial(k) as j:
        weights.put(j, mul(bind(weights[j] / whole), T.float32(block.scale)))


def _weigh_shared(code: BlockCode, block: Moe, gate: Ptr | None, frame: Frame, row: Expr) -> None:
    """The weight of the shared expert: 1, or sigmoid(x . shared_gate)."""
    to = code.place(frame, "shared weights", 1)
    if gate is None:
        return to.put(row, T.float32(1.0))
    hidden = code.emit.spec.hidden_size
    x = code.place(frame, "normed", hidden)
    logit = float_sums(code.tensor("shared_gate"), gate, x, T.int64(0), [row])[0]
    to.put(row, sigmoid(logit))


# ---- an expert's rows --------------------------------------------------------------------------------


def emit_group(code: BlockCode, block: Moe, name: str) -> None:
    """The only item: all pairs numbered by expert, then by row; the experts that have any."""
    emit, n, k = code.emit, block.n_experts, block.top_k
    if emit.has(name):
        return
    with emit.function(name) as work:
        numbers, frame = Numbers.of(emit, block), work.frame
        chosen, first, after = (numbers.get(frame, part) for part in ("chosen", "first", "next"))
        pairs, rows = numbers.pairs(frame), numbers.rows(frame)
        count = bind(frame.number("rows") * k)
        with T.serial(n + 1) as e:
            first.put(e, T.int32(0))
        with T.serial(count) as i:
            e = bind(int64(chosen[i]) + 1)
            first.put(e, first[e] + 1)
        with T.serial(n) as e:
            first.put(e + 1, first[e + 1] + first[e])
            after.put(e, first[e])
        with T.serial(count) as i:
            e = bind(int64(chosen[i]))
            pair = bind(after[e])
            pairs.put(i, pair)
            rows.put(int64(pair), T.Cast("int32", int64(i) // k))
            after.put(e, pair + 1)
        _list_active(numbers, frame, first, n)


def _list_active(numbers: Numbers, frame: Frame, first: Ptr, n: int) -> None:
    active, held = numbers.active(frame), local(1, "int32")
    held.put(0, T.int32(0))
    with T.serial(n) as e:

        def note(e: Expr = e) -> None:
            active.put(int64(held[0]), T.Cast("int32", e))
            held.put(0, held[0] + 1)

        branch(first[e + 1] > first[e], note)
    numbers.get(frame, "active count").put(0, held[0])
