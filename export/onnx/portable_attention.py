"""The attention block for devices, of plain operators: keys and values of the past come in, those of the call's
rows go out, and the host keeps both. What a row sees is a mask that the host makes, so chains, trees and groups of rows
are one graph.

A uint8 cache holds q + 128 of the int8 format's q: its scales, one a channel, are multiplied into the queries and the
output, so that the compiler sees tensors with one scale (1) and one zero point (128), and multiplies bytes
(`quantized_products.py`).
"""

from __future__ import annotations

from edgedec.export.graph import FLOAT, FLOAT16, UINT8, Graph
from edgedec.export.layout import Layout
from edgedec.export.onnx import quantized_products
from edgedec.export.onnx.attention import kv_scales
from edgedec.export.onnx.common import capped, norm, scalar
from edgedec.spec import Attention

CACHE_TYPE = {"f32": FLOAT, "f16": FLOAT16, "int8": UINT8}


def emit(g: Graph, layout: Layout, b: int, x: str, kv: str) -> str:
    """f of block b: normed hidden state [1, rows, hidden] -> what is added to it."""
    spec, block, p = layout.spec, layout.spec.attention[b], f"blocks.{b}"
    if block.paired:
        embedding = g.input("embedding", FLOAT, [1, "rows", spec.hidden_size])
        x = g.node(
            "Concat", [norm(g, block.embedding_norm, embedding, f"{p}.embedding_norm", spec.norm_eps), x], axis=-1
        )
    qkv = g.linear(x, f"{p}.qkv", f"{p}.qkv_bias" if block.qkv_bias else None)
    q, k, v = g.split(qkv, [block.q_dim, block.kv_dim, block.kv_dim])
    q = _turned(g, layout, block, _heads(g, layout, block, q, block.n_heads, f"{p}.q_norm"))
    k = _turned(g, layout, block, _heads(g, layout, block, k, block.n_kv_heads, f"{p}.k_norm"))
    v = _heads(g, layout, block, v, block.n_kv_heads)
    if kv == "int8":
        scales = kv_scales(g, layout, b, kv)
        k, v = g.node("Div", [k, scales[0]]), g.node("Div", [v, scales[1]])
        q = _by_channel(g, block, q, scales[0])
    keys, values = (_seen(g, layout, b, part, new, kv) for part, new in (("key", k), ("value", v)))
    y = _mixed(g, layout, block, q, keys, values, kv)
    if kv == "int8":
        y = _by_channel(g, block, y, scales[1])
    y = g.reshaped(g.node("Transpose", [y], perm=[0, 2, 1, 3]), [0, 0, block.q_dim])
    return g.linear(y, f"{p}.o", f"{p}.o_bias" if block.o_bias else None)


def _by_channel(g: Graph, block: Attention, x: str, scales: str) -> str:
    """x [1, n_heads, rows, head_dim] times the scales [1, n_kv_heads, 1, head_dim] of its heads' kv heads."""
    grouped = g.reshaped(x, [0, block.n_kv_heads, -1, block.head_dim])
    return g.reshaped(g.node("Mul", [grouped, scales]), [0, block.n_heads, -1, block.head_dim])


def _heads(g: Graph, layout: Layout, block: Attention, x: str, n: int, normed: str = "") -> str:
    """x [1, rows, n * head_dim] -> [1, n, rows, head_dim], normed as the block does it."""
    if normed and block.qk_norm == "full":
        x = norm(g, "rms", x, normed, layout.spec.norm_eps)
    if normed and block.qk_norm == "head":
        # Flat: of four dims, Qualcomm's compiler (QNN of onnxruntime-qnn 2.7) gets 32 rows wrong.
        flat = g.reshaped(x, [1, -1, block.head_dim])
        x = g.reshaped(norm(g, "rms", flat, normed, layout.spec.norm_eps), [1, -1, n * block.head_dim])
    x = g.reshaped(x, [0, 0, n, block.head_dim])
    return g.node("Transpose", [x], perm=[0, 2, 1, 3])


def _turned(g: Graph, layout: Layout, block: Attention, x: str) -> str:
    """x [1, n, rows, head_dim] turned by the rows' positions, whose cos and sin are inputs [1, 1, rows, pairs]."""
    if block.rope is None:
        return x
    pairs = len(layout.spec.ropes[block.rope].inv_freq)
    cos, sin = (g.input(f"{name}.{block.rope}", FLOAT, [1, 1, "rows", pairs]) for name in ("cos", "sin"))
    rest = block.head_dim - 2 * pairs
    first, second, *left = g.split(x, [pairs, pairs, *([rest] if rest else [])])
    ahead = g.node("Sub", [g.node("Mul", [first, cos]), g.node("Mul", [second, sin])])
    behind = g.node("Add", [g.node("Mul", [second, cos]), g.node("Mul", [first, sin])])
    return g.node("Concat", [ahead, behind, *left], axis=-1)


def _seen(g: Graph, layout: Layout, b: int, part: str, new: str, kv: str) -> str:
    """All keys or values of the call, as floats or as `quantized_products` takes them: those of the past, an input, and
    those of its rows, an output too."""
    block, number = layout.spec.attention[b], list(layout.spec.attention).index(b)
    past = g.input(f"past.{number}.{part}", CACHE_TYPE[kv], [1, block.n_kv_heads, "past", block.head_dim])
    g.output(f"new.{number}.{part}", CACHE_TYPE[kv], [1, block.n_kv_heads, "rows", block.head_dim])
    match kv:
        case "f16":
            g.node("Cast", [new], out=f"new.{number}.{part}", to=FLOAT16)
            past = g.node("Cast", [past], to=FLOAT)
        case "int8":
            stored = quantized_products.stored(g, new, f"new.{number}.{part}")
            return quantized_products.joined(g, [past, stored])
        case _:
            g.node("Identity", [new], out=f"new.{number}.{part}")
    return g.node("Concat", [past, new], axis=2)


def _mixed(g: Graph, layout: Layout, block: Attention, q: str, keys: str, values: str, kv: str) -> str:
    """q [1, n_heads, rows, head_dim], keys and values [1, n_kv_heads, slots, head_dim] -> as q. The query heads of a kv
    head are rows of one product."""
    number = layout.spec.windows.index((block.window, block.sinks))
    mask = g.input(f"mask.{number}", FLOAT, [1, 1, "rows", "total"])
    q = g.reshaped(g.node("Mul", [q, scalar(g, block.scale)]), [0, block.n_kv_heads, -1, block.head_dim])
    if kv == "int8":
        scores = quantized_products.scores(g, q, keys)
    else:
        scores = g.node("MatMul", [q, g.node("Transpose", [keys], perm=[0, 1, 3, 2])])
    scores = capped(g, g.reshaped(scores, [0, block.n_heads, -1, 0]), block.softcap)
    weights = g.node("Softmax", [g.node("Add", [scores, mask])], axis=-1)
    weights = g.reshaped(weights, [0, block.n_kv_heads, -1, 0])
    y = quantized_products.mixed(g, weights, values) if kv == "int8" else g.node("MatMul", [weights, values])
    return g.reshaped(y, [0, block.n_heads, -1, block.head_dim])
