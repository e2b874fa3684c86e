"""The launches of an attention block."""

from __future__ import annotations

from edgedec.kernels.device import structs
from edgedec.kernels.device.structs import HeadNorms, Product
from edgedec.runtimes._device.attending import attend
from edgedec.runtimes._device.formats import kv_format
from edgedec.runtimes._device.pages import PagePool
from edgedec.runtimes._device.stack import Stack, StepShape
from edgedec.runtimes._device.sums import keep_queries
from edgedec.spec import Attention


def attention(
    stack: Stack, step: int, shape: StepShape, number: int, block: Attention, pool: PagePool, kv: str
) -> None:
    """hidden += post_norm(o(inner_norm(attention(qkv(norm(input))))))."""
    model, prefix, rows = stack.model, f"blocks.{number}.", shape.rows
    width = block.qkv_rows
    qkv, out = stack.floats("qkv", width), stack.floats("attended", block.q_dim)
    p = Product(model.weights(prefix + "qkv"), qkv, width, bias=model.vector(prefix + "qkv_bias"))
    stack.adapted(step, rows, prefix + "qkv", p, model.norm(block.norm, prefix + "norm"), stack.input)
    if block.clip:
        stack.launch("copy_rows", (rows, 1), 128, 0, structs.copy_rows(step, qkv, qkv, width, limit=block.clip))
    if block.qk_norm == "full":
        _norm_whole(stack, step, rows, number, block, qkv)
    _store(stack, step, shape, number, block, pool, kv, qkv)
    keep_queries(stack, step, shape, number, qkv, block.q_dim, width)
    attend(stack, step, shape, number, block, pool, qkv, out)
    stack.norm_whole(step, rows, block.inner_norm, prefix + "inner_norm", out, block.q_dim)
    p = Product(model.weights(prefix + "o"), 0, stack.spec.hidden_size, bias=model.vector(prefix + "o_bias"))
    stack.residual(step, rows, number, block, p, out, "o")


def _norm_whole(stack: Stack, step: int, rows: int, number: int, block: Attention, qkv: int) -> None:
    """Queries and keys of all heads normed together."""
    for name, at, n in (("q_norm", 0, block.q_dim), ("k_norm", block.q_dim, block.kv_dim)):
        matrix = f"blocks.{number}.{name}"
        stack.norm_whole(step, rows, block.qk_norm_kind, matrix, qkv + 4 * at, n, block.qkv_rows)


def _head_norms(stack: Stack, number: int, block: Attention) -> HeadNorms:
    if block.qk_norm not in ("head", "heads"):
        return HeadNorms()
    q, k = (stack.model.norm(block.qk_norm_kind, f"blocks.{number}.{name}") for name in ("q_norm", "k_norm"))
    return HeadNorms(q.weight, k.weight, q.bias, k.bias, block.qk_norm == "heads", block.qk_norm_last)


def _view(stack: Stack, shape: StepShape, number: int) -> int:
    attention = [b for b in shape.blocks if b in stack.spec.attention]
    return shape.views[attention.index(number)]


def _store(
    stack: Stack, step: int, shape: StepShape, number: int, block: Attention, pool: PagePool, kv: str, qkv: int
) -> None:
    """Heads normed and turned by their positions, keys and values into the pages."""
    cos, sin, pairs = stack.model.rope(block.rope) if block.rope is not None else (0, 0, 0)
    arguments = structs.rope(
        step, qkv, cos, sin, _head_norms(stack, number, block), pool.offsets[number], block.n_heads, block.n_kv_heads,
        block.head_dim, pairs, kv_format(block, kv), _view(stack, shape, number), stack.spec.norm_eps,
        pool.rows[number], block.qkv_rows,
    )  # fmt: skip
    warps = min(32, block.n_heads // block.n_kv_heads + 1)
    stack.launch("rope_store", (shape.rows, block.n_kv_heads), 32 * warps, 0, arguments)
