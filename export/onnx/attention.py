"""The attention block as GroupQueryAttention.

In graphs for trees only the mask of a call defines what a row sees (`causal` is off, so that rows of a group can attend
forward), and `position_ids` are the rows' positions. In the graph of the whole model rows are a chain: the operator
masks and counts by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedec.export.graph import FLOAT, INT64, MICROSOFT, Graph
from edgedec.export.layout import Layout
from edgedec.export.onnx.common import norm, scalar
from edgedec.export.onnx.layout import CACHE_TYPE, CallInputs, Shape
from edgedec.spec import Attention, ModelSpec


def emit(g: Graph, layout: Layout, b: int, x: str, step: CallInputs) -> str:
    """f of block b: normed hidden state -> what is added; keys and values go in and out as `past` and `present`."""
    spec, block, p = layout.spec, layout.spec.attention[b], f"blocks.{b}"
    if block.paired:
        embedding = g.input("embedding", FLOAT, [1, "rows", spec.hidden_size])
        embedded = norm(g, block.embedding_norm, embedding, f"{p}.embedding_norm", spec.norm_eps)
        x = g.node("Concat", [embedded, x], axis=-1)
    qkv = g.linear(x, f"{p}.qkv", f"{p}.qkv_bias" if block.qkv_bias else None)
    gate = ""
    if block.gate_dim:
        qkv, gate = g.split(qkv, [block.qkv_rows - block.gate_dim, block.gate_dim])
    if block.clip:
        qkv = g.node("Clip", [qkv, scalar(g, -block.clip), scalar(g, block.clip)])
    heads = _turned_heads(g, layout, block, qkv, p) if block.qk_norm_last else _split_heads(g, spec, block, qkv, p)
    past, present = _cache(g, spec, b, step)
    inputs = [
        *heads,
        *past,
        step.seqlens,
        step.total,
        *(["", ""] if block.qk_norm_last else _rope(g, layout, block)),
        *_tree_inputs(g, spec, block, step),
        g.vector(f"{p}.sink_logit") if block.sink_logit else "",
    ]
    inputs += kv_scales(g, layout, b, step.kv)
    while not inputs[-1]:
        inputs.pop()
    attrs = _attributes(block, step)
    mixed = g.nodes("GroupQueryAttention", inputs, [f"{p}.mixed", *present], domain=MICROSOFT, **attrs)[0]
    if gate:
        mixed = _gated(g, block, mixed, gate)
    mixed = norm(g, block.inner_norm, mixed, f"{p}.inner_norm", spec.norm_eps)
    return g.linear(mixed, f"{p}.o", f"{p}.o_bias" if block.o_bias else None)


def _gated(g: Graph, block: Attention, x: str, gate: str) -> str:
    """x [1, rows, q_dim] times the sigmoid of its gate, a head or a channel at a time."""
    gate = g.node("Sigmoid", [g.reshaped(gate, [0, 0, -1, 1])])
    heads = g.reshaped(x, [0, 0, block.gate_dim, -1])
    return g.reshaped(g.node("Mul", [heads, gate]), [0, 0, -1])


def query(g: Graph, b: int) -> str:
    """The value [1, rows, ...] whose first channels are the queries of block b, before they are turned."""
    return str(g.maker(f"blocks.{b}.mixed").input[0])


def _split_heads(g: Graph, spec: ModelSpec, block: Attention, qkv: str, p: str) -> tuple[str, str, str]:
    """q, k, v; packed in q when nothing has to be done to them before attention."""
    if block.qk_norm == "none":
        return qkv, "", ""
    q, k, v = g.split(qkv, [block.q_dim, block.kv_dim, block.kv_dim])
    return _normed(g, spec, block, q, f"{p}.q_norm"), _normed(g, spec, block, k, f"{p}.k_norm"), v


def _normed(g: Graph, spec: ModelSpec, block: Attention, x: str, name: str) -> str:
    how = {"head": _head_norm, "heads": _heads_norm, "full": _full_norm}[block.qk_norm]
    return how(g, spec, block, x, name)


def _turned_heads(g: Graph, layout: Layout, block: Attention, qkv: str, p: str) -> tuple[str, str, str]:
    """q and k turned by the rows' positions, then normed; v."""
    q, k, v = g.split(qkv, [block.q_dim, block.kv_dim, block.kv_dim])
    if block.rope is not None:
        positions, tables = g.input("position_ids", INT64, [1, "rows"]), _rope(g, layout, block)
        pairs = 2 * len(layout.spec.ropes[block.rope].inv_freq)
        part = pairs if pairs < block.head_dim else 0
        q, k = (
            g.node("RotaryEmbedding", [x, positions, *tables], domain=MICROSOFT, num_heads=n, rotary_embedding_dim=part)
            for x, n in ((q, block.n_heads), (k, block.n_kv_heads))
        )
    return _normed(g, layout.spec, block, q, f"{p}.q_norm"), _normed(g, layout.spec, block, k, f"{p}.k_norm"), v


def _full_norm(g: Graph, spec: ModelSpec, block: Attention, x: str, name: str) -> str:
    return norm(g, block.qk_norm_kind, x, name, spec.norm_eps)


def _head_norm(g: Graph, spec: ModelSpec, block: Attention, x: str, name: str) -> str:
    heads = g.reshaped(x, [0, 0, -1, block.head_dim])
    return g.reshaped(norm(g, block.qk_norm_kind, heads, name, spec.norm_eps), [0, 0, -1])


def _heads_norm(g: Graph, spec: ModelSpec, block: Attention, x: str, name: str) -> str:
    """Each head normed by itself, then times the weights of all."""
    op = "LayerNormalization" if block.qk_norm_kind == "layer" else "SimplifiedLayerNormalization"
    ones = g.constant(np.ones(block.head_dim, np.float32))
    heads = g.node(op, [g.reshaped(x, [0, 0, -1, block.head_dim]), ones], axis=-1, epsilon=spec.norm_eps, stash_type=1)
    y = g.node("Mul", [g.reshaped(heads, [0, 0, -1]), g.vector(name)])
    return g.node("Add", [y, g.vector(f"{name}_bias")]) if block.qk_norm_kind == "layer" else y


def _attributes(block: Attention, step: CallInputs) -> dict[str, Any]:
    turns = block.rope is not None and not block.qk_norm_last
    attrs: dict[str, Any] = {"num_heads": block.n_heads, "kv_num_heads": block.n_kv_heads}
    attrs |= {"scale": block.scale, "softcap": block.softcap, "do_rotary": int(turns)}
    if step.kv in ("int8", "int4"):
        attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
        attrs |= {"kv_cache_bit_width": 8 if step.kv == "int8" else 4}
    if step.tree:
        attrs["causal"] = 0
    elif block.window is not None:
        attrs["local_window_size"] = block.window
    return attrs


def _cache(g: Graph, spec: ModelSpec, b: int, step: CallInputs) -> tuple[list[str], list[str]]:
    """Inputs and outputs of keys and values, numbered by attention blocks. A tree has one buffer for both."""
    block, number = spec.attention[b], list(spec.attention).index(b)
    dtype, width = CACHE_TYPE[step.kv], block.head_dim // 2 if step.kv == "int4" else block.head_dim
    sizes = ("capacity", "capacity") if step.tree else ("past", "total")
    shapes: list[Shape] = [[step.batch, block.n_kv_heads, size, width] for size in sizes]
    past = [g.input(f"past_key_values.{number}.{part}", dtype, shapes[0]) for part in ("key", "value")]
    present = [f"present.{number}.{part}" for part in ("key", "value")]
    for name in present:
        g.output(name, dtype, shapes[1])
    return past, present


def _tree_inputs(g: Graph, spec: ModelSpec, block: Attention, step: CallInputs) -> tuple[str, str]:
    """Positions, and the mask: `attention_bias.j` is for the j-th of `spec.windows`."""
    if not step.tree:
        return "", ""
    number = spec.windows.index((block.window, block.sinks))
    bias = g.input(f"attention_bias.{number}", FLOAT, [1, 1, "rows", "total"])
    if block.slopes:
        apart = g.input("key_distance", FLOAT, [1, 1, "rows", "total"])
        slopes = g.constant(np.array(block.slopes, np.float32).reshape(1, -1, 1, 1))
        bias = g.node("Add", [bias, g.node("Mul", [slopes, apart])])
    return g.input("position_ids", INT64, [1, "rows"]), bias


def _rope(g: Graph, layout: Layout, block: Attention) -> list[str]:
    """The cos and sin tables [positions, pairs] of a block."""
    if block.rope is None:
        return ["", ""]
    shape = (layout.spec.positions, len(layout.spec.ropes[block.rope].inv_freq))
    offsets = dict(zip(("cos", "sin"), layout.ropes[block.rope], strict=True))
    return [g.external(f"rope.{block.rope}.{part}", FLOAT, shape, offset) for part, offset in offsets.items()]


def kv_scales(g: Graph, layout: Layout, b: int, kv: str) -> list[str]:
    """Key and value scales [1, n_kv_heads, 1, head_dim] of block b; none for float caches."""
    offset = getattr(layout.kv_scales, kv, None)
    if offset is None:
        return []
    before = [block for number, block in layout.spec.attention.items() if number < b]
    offset += int(np.sum([4 * block.kv_parts * block.kv_dim for block in before], dtype=np.int64))
    block = layout.spec.attention[b]
    shape = (1, block.n_kv_heads, 1, block.head_dim)
    names = (f"blocks.{b}.k_scale", f"blocks.{b}.v_scale")
    return [g.external(name, FLOAT, shape, offset + 4 * block.kv_dim * i) for i, name in enumerate(names)]
