"""The ends: embedding of all rows, and the head: logits of its rows, their best tokens, sums of exp by strips."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.export.compiled.emitter import BlockTable, Emitter, Frame, ItemWork, branch
from edgedec.export.compiled.lanes import (
    LANES,
    Expr,
    Ptr,
    bind,
    by_parts,
    exp,
    larger,
    local,
    most,
    mul,
    part_of,
    pointer,
    put_part,
    spread,
    total,
)
from edgedec.export.compiled.prepare import embed_row, normed
from edgedec.export.compiled.product import Epilogue, MatrixProduct, items_of, product_item, words_of
from edgedec.export.compiled.ready import is_quantized, prepared, quantized
from edgedec.runtimes.tvm.frame import ROWS, STRIP, end_fields


def emit_ends(emit: Emitter) -> None:
    """Write "embed" (item: a row), "head_ready" (a row of the head), "head" (a part of the vocabulary), "strip_sums"
    and "best" (a row of the head)."""
    _embed(emit)
    _ready(emit)
    _product(emit)
    _strip_sums(emit)
    _best(emit)


def _table(emit: Emitter, work: ItemWork) -> BlockTable:
    return BlockTable(work.table, end_fields(emit.spec))


def head_name(emit: Emitter) -> str:
    return "embed" if emit.spec.tied else "head"


def _embed(emit: Emitter) -> None:
    width = emit.spec.hidden_size
    with emit.function("embed") as work:
        out = emit.place(work.frame, "hidden", "float32", ROWS * width).at(work.item * width)
        embed_row(emit, _table(emit, work), work.frame, work.item, out)


def _ready(emit: Emitter) -> None:
    spec, t = emit.spec, emit.tensors[head_name(emit)]
    width = spec.hidden_size
    with emit.function("head_ready") as work:
        table, row = _table(emit, work), bind(T.Cast("int64", work.frame.array("head_rows")[work.item]))
        x = emit.place(work.frame, "hidden", "float32", ROWS * width).at(row * width)
        out = emit.place(work.frame, "normed", "float32", ROWS * width).at(work.item * width)
        if spec.final_norm == "none":
            by_parts(width, lambda at, count: put_part(out, at, part_of(x, at, count), count))
        else:
            bias = table.pointer("final_norm_bias") if spec.final_norm == "layer" else None
            normed(x, out, width, spec.final_norm, table.pointer("final_norm"), bias, spec.norm_eps)
        if is_quantized(t):
            quantized(out, prepared(emit, work.frame, t), work.item, t, emit.machine)


def head_items(emit: Emitter) -> int:
    """Items of "head"."""
    return items_of(emit, emit.tensors[head_name(emit)], emit.spec.vocab_size)


def _product(emit: Emitter) -> None:
    spec, name = emit.spec, head_name(emit)
    t = emit.tensors[name]
    with emit.function("head") as work:
        logits = pointer(bind(work.frame["logits"]), "float32")
        x = None if is_quantized(t) else emit.place(work.frame, "normed", "float32", ROWS * spec.hidden_size)
        a = prepared(emit, work.frame, t) if is_quantized(t) else None
        rows, epilogue = bind(work.frame.number("n_head")), Epilogue(softcap=spec.final_softcap)
        product = MatrixProduct(
            t, spec.vocab_size, rows, logits, spec.vocab_size, words_of(_table(emit, work), name, t), a, x, None,
            epilogue, T.int64(0),
        )  # fmt: skip
        product_item(emit, product, work.item)


# ---- of the logits -----------------------------------------------------------------------------------


def _top(x: Ptr, n: Expr) -> Expr:
    """The largest of n floats; NaN is passed over."""
    acc, one = local(1, "float32x16"), local(1, "float32")
    acc.put(0, spread(-float("inf")))
    with T.serial(bind(n // LANES)) as i:
        acc.put(0, larger(bind(x.vec(T.Cast("int64", i) * LANES)), bind(acc[0])))
    one.put(0, most(bind(acc[0])))
    start = bind(n // LANES * LANES)
    with T.serial(bind(n - start)) as i:
        one.put(0, larger(bind(x[start + T.Cast("int64", i)]), bind(one[0])))
    return bind(one[0])


def _strips(emit: Emitter, frame: Frame, item: Expr) -> tuple[Ptr, Expr, Expr, Expr]:
    """A strip: its logits, their count, the first token, the head's row."""
    vocab = emit.spec.vocab_size
    count = -(-vocab // STRIP)
    row, at = bind(item // count), bind(item % count * STRIP)
    logits = pointer(bind(frame["logits"]), "float32").at(row * vocab + at)
    return logits, bind(T.min(T.int64(STRIP), T.int64(vocab) - at)), at, row


def _strip_sums(emit: Emitter) -> None:
    """Item: a row and a strip of its logits; the largest, and the sum of exp((x - largest) * heat) in 16 lanes."""
    with emit.function("strip_sums") as work:
        x, n, _, row = _strips(emit, work.frame, work.item)
        heat, top = spread(bind(work.frame.array("heat", "float32")[row])), _top(x, n)
        acc = local(2, "float32x16")
        acc.put(0, spread(0.0))
        acc.put(1, spread(0.0))
        numbers = T.ramp(T.int64(0), T.int64(1), LANES)
        with T.serial(bind((n + (LANES - 1)) // LANES)) as i:
            at = bind(T.Cast("int64", i) * LANES)
            inside = numbers + T.broadcast(at, LANES) < T.broadcast(n, LANES)
            lanes = local(LANES, "float32")
            for j in range(LANES):
                lanes.put(j, T.if_then_else(at + j < n, x[at + j], T.float32(0.0)))
            value = bind(lanes.vec(0))
            powers = exp(mul(bind(value - spread(top)), heat))
            acc.put(0, bind(acc[0]) + T.Select(inside, powers, spread(0.0)))
            acc.put(1, bind(acc[1]) + bind(value - value))
        out = pointer(bind(work.frame["sums"]), "float32")
        out.put(work.item * 2, top)
        out.put(work.item * 2 + 1, total(bind(acc[0])) + total(bind(acc[1])))


def _best(emit: Emitter) -> None:
    """Item: a row of the head; its best tokens in order, of equals the smaller token."""
    vocab = emit.spec.vocab_size
    with emit.function("best") as work:
        top = bind(work.frame["top"])
        ids = pointer(bind(work.frame["ids"]), "int32").at(work.item * top)
        scores = pointer(bind(work.frame["scores"]), "float32").at(work.item * top)
        logits = pointer(bind(work.frame["logits"]), "float32").at(work.item * vocab)
        with T.serial(top) as i:
            ids.put(i, T.int32(-1))
            scores.put(i, T.float32(-float("inf")))
        with T.serial(-(-vocab // STRIP)) as strip:
            first = bind(T.Cast("int64", strip) * STRIP)
            n = bind(T.min(T.int64(STRIP), T.int64(vocab) - first))
            x = logits.at(first)

            def search(x: Ptr = x, n: Expr = n, first: Expr = first) -> None:
                with T.serial(n) as i:
                    value, token = bind(x[i]), bind(T.Cast("int32", first + T.Cast("int64", i)))
                    better = _better(value, token, scores[top - 1], ids[top - 1])
                    branch(better, lambda: _insert(ids, scores, top, value, token))

            branch(T.Not(_top(x, n) < scores[top - 1]), search)
        with T.serial(top) as i:
            finite = bind(scores[i] - scores[i]) == T.float32(0.0)
            ids.put(i, T.Select(finite, ids[i], T.int32(-1)))


def _better(value: Expr, token: Expr, than: Expr, than_token: Expr) -> Expr:
    """A larger logit, or an equal one of a smaller token; -1 is the largest token."""
    smaller = T.Cast("uint32", token) < T.Cast("uint32", than_token)
    return bind(T.Or(value > than, T.And(value == than, smaller)))


def _insert(ids: Ptr, scores: Ptr, top: Expr, value: Expr, token: Expr) -> None:
    at = local(1, "int64")
    at.put(0, top - 1)
    before = T.max(at[0] - 1, T.int64(0))
    with T.While(T.And(at[0] > T.int64(0), _better_now(value, token, scores[before], ids[before]))):
        scores.put(at[0], scores[at[0] - 1])
        ids.put(at[0], ids[at[0] - 1])
        at.put(0, at[0] - 1)
    scores.put(at[0], value)
    ids.put(at[0], token)


def _better_now(value: Expr, token: Expr, than: Expr, than_token: Expr) -> Expr:
    """As `_better`, evaluated where it stands."""
    smaller = T.Cast("uint32", token) < T.Cast("uint32", than_token)
    return T.Or(value > than, T.And(value == than, smaller))
