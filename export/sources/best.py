"""The token of the largest logit."""

from __future__ import annotations

from collections.abc import Callable

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.kernel import Kernels
from edgedec.export.sources.words import Array, Expr, barrier, branch, f32, own, shared, strided


def best(k: Kernels, vocab: int) -> str:
    """Write the kernel that finds the token of the largest logit, of equals the smallest: arrays logits, ids."""
    name, threads = f"best_{vocab}", 256
    if k.has(name):
        return name
    with k.kernel(name, threads, {"logits": "float32", "ids": "int32"}) as work:
        logits, value, token = work["logits"].at(work.tile * vocab), own(1), own(1, "int32")
        value.put(0, f32(-3.4e38))
        token.put(0, T.int32(0))

        def take(x: Expr, i: Expr) -> None:
            value.put(0, x)
            token.put(0, i)

        def one(i: Expr) -> None:
            x = logits[i]
            branch(x > value[0], lambda: take(x, i))

        strided(work.thread, threads, vocab, one)
        values, tokens = shared(threads), shared(threads, "int32")
        values.put(work.thread, value[0])
        tokens.put(work.thread, token[0])
        barrier()
        branch(
            work.thread == 0, lambda: _best_of(values, tokens, threads, work["ids"], work.tile, take, (value, token))
        )
    return name


def _best_of(
    values: Array,
    tokens: Array,
    threads: int,
    ids: Array,
    row: Expr,
    take: Callable[[Expr, Expr], None],
    held: tuple[Array, Array],
) -> None:
    value, token = held
    with T.serial(threads) as i:
        x, name = values[i], tokens[i]
        better = T.Or(x > value[0], T.And(x == value[0], name < token[0]))
        branch(better, lambda: take(x, name))
    ids.put(row, token[0])
