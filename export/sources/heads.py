"""What comes before attention: heads normed and turned, keys and values put into the pages."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.kernel import GroupWork, Kernels
from edgedec.export.sources.kv import KvWords
from edgedec.export.sources.rows import THREADS, normed, row_number
from edgedec.export.sources.words import LANES, PAGE_SLOTS, Array, Expr, barrier, bind, div, shared, strided
from edgedec.spec import Attention


def heads(k: Kernels, block: Attention, pairs: int, eps: float) -> str:
    """Write the kernel that norms and turns queries and keys where they lie; its name. Item: a head, those of keys
    after those of queries. Arrays qkv, rows, cos, sin, q_norm and k_norm, as far as the block has them."""
    dim, normed_heads = block.head_dim, block.qk_norm == "head"
    name = f"heads_{block.n_heads}_{block.n_kv_heads}_{dim}_{pairs}_{block.qk_norm}"
    if k.has(name):
        return name
    width = block.q_dim + 2 * block.kv_dim
    with k.kernel(name, THREADS, head_arrays(block, pairs)) as work:
        x = work["qkv"].at(work.tile * width + work.item * dim)
        if normed_heads:
            _norm_head(k, work, x, block, eps)
            barrier()
        if pairs:
            _turn(k, work, x, pairs)
    return name


def head_arrays(block: Attention, pairs: int) -> dict[str, str]:
    """Its arguments."""
    found = {"qkv": "float32"} | ({"rows": "int32", "cos": "float32", "sin": "float32"} if pairs else {})
    return found | ({"q_norm": "float32", "k_norm": "float32"} if block.qk_norm == "head" else {})


def _norm_head(k: Kernels, work: GroupWork, x: Array, block: Attention, eps: float) -> None:
    is_query = work.item < block.n_heads

    def weight(i: Expr) -> Expr:
        return bind(T.Select(is_query, work["q_norm"][i], work["k_norm"][i]))

    value = normed(k.dialect, x, block.head_dim, "rms", eps, work, shared(LANES), weight)
    strided(work.thread, THREADS, block.head_dim, lambda i: x.put(i, value(i)))


def _turn(k: Kernels, work: GroupWork, x: Array, pairs: int) -> None:
    at, d = bind(row_number(work["rows"], work.tile, "position") * pairs), k.dialect

    def one(i: Expr) -> None:
        a, b, c, s = x[i], x[i + pairs], work["cos"][at + i], work["sin"][at + i]
        x.put(i, bind(d.mul(a, c) - d.mul(b, s)))
        x.put(i + pairs, bind(d.mul(b, c) + d.mul(a, s)))

    strided(work.thread, THREADS, pairs, one)


def norm_whole(k: Kernels, block: Attention, eps: float) -> str:
    """Write the kernel that norms all queries of a row, and all keys, where they lie; its name. Arrays qkv, q_norm,
    k_norm."""
    name = f"norm_whole_{block.q_dim}_{block.kv_dim}"
    if k.has(name):
        return name
    width = block.q_dim + 2 * block.kv_dim
    with k.kernel(name, THREADS, {"qkv": "float32", "q_norm": "float32", "k_norm": "float32"}) as work:
        lanes = shared(LANES)
        for weight, start, n in (("q_norm", 0, block.q_dim), ("k_norm", block.q_dim, block.kv_dim)):
            x = work["qkv"].at(work.tile * width + start)
            value = normed(k.dialect, x, n, "rms", eps, work, lanes, work[weight].__getitem__)
            strided(work.thread, THREADS, n, lambda i, x=x, value=value: x.put(i, value(i)))  # type: ignore[misc]
    return name


def store(k: Kernels, block: Attention, kv: str) -> str:
    """Write the kernel that puts a row's keys and values into their slot; its name. Item: a kv head, those of values
    after those of keys. Arrays qkv, rows, pages, pool."""
    words = KvWords(k.dialect, block, kv)
    name = f"store_{kv}_{block.n_heads}_{block.n_kv_heads}_{block.head_dim}"
    if k.has(name):
        return name
    width = block.q_dim + 2 * block.kv_dim
    with k.kernel(name, THREADS, {"qkv": "float32", "rows": "int32", "pages": "int32", "pool": "uint32"}) as work:
        x = work["qkv"].at(work.tile * width + block.q_dim + work.item * block.head_dim)
        length, at, pages = (row_number(work["rows"], work.tile, name) for name in ("length", "at", "pages"))
        slot = bind(length + at)
        page = work["pages"][pages + div(slot, PAGE_SLOTS)]
        words.store(x, work["pool"], words.place(page, slot, work.item), work.thread, THREADS)
    return name
