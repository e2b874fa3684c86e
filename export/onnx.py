"""The graphs of a bundle: embed, the stack of layers whole, by layer and by block, head, and the whole model.

All of them hold nodes only and point into one weights file. The graphs of the stack take trees
(an attention bias for each distinct window, `position_ids`) and update their cache in place when
past and present are bound to one buffer; the whole-model graph has the inputs that
onnxruntime-genai expects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgedec.bundle.manifest import Graphs, KVScales, Tensor
from edgedec.export.graph import FLOAT, FLOAT16, INT8, INT32, INT64, MICROSOFT, UINT8, Graph
from edgedec.spec import ModelSpec

Shape = list[int | str]
_CACHE_TYPE = {"f32": FLOAT, "f16": FLOAT16, "int8": INT8, "int4": UINT8}


@dataclass(frozen=True)
class Layout:
    """Where everything lies: what the manifest will say, as far as graphs need it."""

    spec: ModelSpec
    weights: str
    tensors: dict[str, Tensor]
    ropes: tuple[tuple[int, ...], ...]
    kv_scales: KVScales

    def graph(self, name: str) -> Graph:
        return Graph(name, self.weights, self.tensors)


@dataclass(frozen=True)
class Step:
    """The values that every attention block of a call shares. `biases`: an input by window; without
    them attention is causal."""

    seqlens: str
    total: str
    positions: str = ""
    biases: dict[int | None, str] = field(default_factory=dict)


def write_graphs(folder: Path, layout: Layout, kv_formats: tuple[str, ...]) -> Graphs:
    """All graphs of the bundle; the first KV format is the whole-model graph's."""
    n = layout.spec.n_layers
    return Graphs(
        embed=_embed_graph(layout).save(folder),
        head=_head_graph(layout).save(folder),
        mlp=tuple(_mlp_graph(layout, i).save(folder) for i in range(n)),
        attention={kv: tuple(_attention_graph(layout, i, kv).save(folder) for i in range(n)) for kv in kv_formats},
        layers={kv: tuple(_layer_graph(layout, i, kv).save(folder) for i in range(n)) for kv in kv_formats},
        stack={kv: _stack_graph(layout, kv).save(folder) for kv in kv_formats},
        model=_model_graph(layout, kv_formats[0]).save(folder),
    )


# ---- the arithmetic ----------------------------------------------------------------------------


def embed(g: Graph, spec: ModelSpec, ids: str) -> str:
    """ids [1, rows] -> hidden [1, rows, hidden]."""
    x = g.lookup(ids, "embed")
    if spec.embed_scale == 1.0:
        return x
    return g.node("Mul", [x, g.constant(np.array(spec.embed_scale, np.float32))])


def attention(
    g: Graph, layout: Layout, i: int, x: str, past: tuple[str, str], step: Step, kv: str
) -> tuple[str, str, str]:
    """Block 2i: hidden, past keys and values -> hidden, present keys and values."""
    spec, p = layout.spec, f"layers.{i}"
    normed = norm(g, spec, x, f"{p}.attn_norm") if spec.norm_before else x
    qkv = g.linear(normed, f"{p}.qkv", f"{p}.qkv_bias" if spec.qkv_bias else None)
    q, k, v = _split_heads(g, spec, qkv, p)
    window = spec.layers[i].window
    bias = step.biases.get(window, "")
    inputs = [q, k, v, *past, step.seqlens, step.total, *_rope(g, layout, i), step.positions, bias, ""]
    attrs: dict[str, int | float | str] = {"num_heads": spec.n_heads, "kv_num_heads": spec.n_kv_heads}
    attrs |= {"scale": spec.attn_scale, "softcap": spec.attn_softcap}
    attrs |= {"do_rotary": int(spec.layers[i].rope is not None)}
    if kv in ("int8", "int4"):
        inputs += _kv_scales(g, layout, i, kv)
        attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
        attrs |= {"kv_cache_bit_width": 8 if kv == "int8" else 4}
    if not bias and window is not None:
        attrs["local_window_size"] = window
    while not inputs[-1]:
        inputs.pop()
    present = [name.replace("past_key_values", "present") for name in past]
    mixed = g.nodes("GroupQueryAttention", inputs, [f"{p}.mixed", *present], domain=MICROSOFT, **attrs)[0]
    y = g.linear(mixed, f"{p}.o", f"{p}.o_bias" if spec.o_bias else None)
    if spec.norm_after:
        y = norm(g, spec, y, f"{p}.attn_post_norm")
    return g.node("Add", [x, y], out=f"{p}.attention"), present[0], present[1]


def mlp(g: Graph, spec: ModelSpec, i: int, x: str) -> str:
    """Block 2i+1: hidden -> hidden."""
    p = f"layers.{i}"
    normed = norm(g, spec, x, f"{p}.mlp_norm") if spec.norm_before else x
    both = g.linear(normed, f"{p}.gate_up", f"{p}.gate_up_bias" if spec.mlp_bias else None)
    gate, up = g.split(both, [spec.intermediate_size] * 2)
    y = g.node("Mul", [_activation(g, spec, gate), up])
    y = g.linear(y, f"{p}.down", f"{p}.down_bias" if spec.mlp_bias else None)
    if spec.norm_after:
        y = norm(g, spec, y, f"{p}.mlp_post_norm")
    return g.node("Add", [x, y], out=f"{p}.mlp")


def head(g: Graph, spec: ModelSpec, x: str) -> str:
    """hidden -> logits."""
    y = g.linear(norm(g, spec, x, "final_norm"), "embed" if spec.tied else "head")
    if spec.final_softcap:
        cap = g.constant(np.array(spec.final_softcap, np.float32))
        y = g.node("Mul", [g.node("Tanh", [g.node("Div", [y, cap])]), cap])
    return y


def norm(g: Graph, spec: ModelSpec, x: str, name: str) -> str:
    return g.node("SimplifiedLayerNormalization", [x, g.vector(name)], axis=-1, epsilon=spec.norm_eps, stash_type=1)


def _activation(g: Graph, spec: ModelSpec, x: str) -> str:
    if spec.activation == "silu":
        return g.node("QuickGelu", [x], domain=MICROSOFT, alpha=1.0)
    return g.node("Gelu", [x], approximate="tanh")


def _split_heads(g: Graph, spec: ModelSpec, qkv: str, p: str) -> tuple[str, str, str]:
    """q, k, v; packed in q when nothing has to be done to them before attention."""
    if spec.qk_norm == "none":
        return qkv, "", ""
    q, k, v = g.split(qkv, [spec.q_dim, spec.kv_dim, spec.kv_dim])
    if spec.qk_norm == "full":
        return norm(g, spec, q, f"{p}.q_norm"), norm(g, spec, k, f"{p}.k_norm"), v
    return _head_norm(g, spec, q, f"{p}.q_norm"), _head_norm(g, spec, k, f"{p}.k_norm"), v


def _head_norm(g: Graph, spec: ModelSpec, x: str, name: str) -> str:
    heads = g.node("Reshape", [x, g.constant(np.array([0, 0, -1, spec.head_dim], np.int64))])
    return g.node("Reshape", [norm(g, spec, heads, name), g.constant(np.array([0, 0, -1], np.int64))])


def _rope(g: Graph, layout: Layout, i: int) -> list[str]:
    """The cos and sin tables [context_length, pairs] of layer i."""
    rope = layout.spec.layers[i].rope
    if rope is None:
        return ["", ""]
    shape = (layout.spec.context_length, len(layout.spec.ropes[rope].inv_freq))
    offsets = dict(zip(("cos", "sin"), layout.ropes[rope], strict=True))
    return [g.external(f"rope.{rope}.{part}", FLOAT, shape, offset) for part, offset in offsets.items()]


def _kv_scales(g: Graph, layout: Layout, i: int, kv: str) -> list[str]:
    """Key and value scales [1, n_kv_heads, 1, head_dim] of layer i."""
    spec = layout.spec
    base = getattr(layout.kv_scales, kv)
    shape = (1, spec.n_kv_heads, 1, spec.head_dim)
    names = (f"layers.{i}.k_scale", f"layers.{i}.v_scale")
    return [g.external(name, FLOAT, shape, base + 4 * spec.kv_dim * (2 * i + j)) for j, name in enumerate(names)]


# ---- the files ---------------------------------------------------------------------------------


def _embed_graph(layout: Layout) -> Graph:
    g = layout.graph("embed")
    y = embed(g, layout.spec, g.input("input_ids", INT64, [1, "rows"]))
    g.node("Identity", [y], out="hidden_out")
    g.output("hidden_out", FLOAT, [1, "rows", layout.spec.hidden_size])
    return g


def _head_graph(layout: Layout) -> Graph:
    g = layout.graph("head")
    y = head(g, layout.spec, g.input("hidden", FLOAT, [1, "rows", layout.spec.hidden_size]))
    g.node("Identity", [y], out="logits")
    g.output("logits", FLOAT, [1, "rows", layout.spec.vocab_size])
    return g


def _attention_graph(layout: Layout, i: int, kv: str) -> Graph:
    return _stack(layout, f"attention_{i:02d}.{kv}", layout.spec.blocks(i, i + 1)[:1], kv)


def _mlp_graph(layout: Layout, i: int) -> Graph:
    return _stack(layout, f"mlp_{i:02d}", layout.spec.blocks(i, i + 1)[1:], "")


def _layer_graph(layout: Layout, i: int, kv: str) -> Graph:
    return _stack(layout, f"layer_{i:02d}.{kv}", layout.spec.blocks(i, i + 1), kv)


def _stack_graph(layout: Layout, kv: str) -> Graph:
    return _stack(layout, f"stack.{kv}", layout.spec.blocks(), kv)


def _stack(layout: Layout, name: str, blocks: tuple[int, ...], kv: str) -> Graph:
    """Some blocks one after another, on rows of a tree."""
    spec, g = layout.spec, layout.graph(name)
    x = g.input("hidden", FLOAT, [1, "rows", spec.hidden_size])
    g.output("hidden_out", FLOAT, [1, "rows", spec.hidden_size])
    step = _tree_step(g, spec, [block // 2 for block in blocks if block % 2 == 0])
    for block in blocks:
        i, is_mlp = divmod(block, 2)
        if is_mlp:
            x = mlp(g, spec, i, x)
        else:
            x = _cached(g, layout, i, x, step, kv, _cache_shape(spec, kv, 1, "capacity", "capacity"))
    g.node("Identity", [x], out="hidden_out")
    return g


def _tree_step(g: Graph, spec: ModelSpec, layers: list[int]) -> Step:
    """The inputs of attention on a tree: `attention_bias.j` is for the j-th of `spec.windows`."""
    if not layers:
        return Step("", "")
    windows = dict.fromkeys(spec.layers[i].window for i in layers)
    names = {window: f"attention_bias.{spec.windows.index(window)}" for window in windows}
    return Step(
        seqlens=g.input("seqlens_k", INT32, [1]),
        total=g.input("total_sequence_length", INT32, []),
        positions=g.input("position_ids", INT64, [1, "rows"]),
        biases={window: g.input(name, FLOAT, [1, 1, "rows", "total"]) for window, name in names.items()},
    )


def _cached(g: Graph, layout: Layout, i: int, x: str, step: Step, kv: str, shapes: tuple[Shape, Shape]) -> str:
    """The attention of layer i with its cache as inputs and outputs."""
    dtype, names = _CACHE_TYPE[kv], [f"{i}.{part}" for part in ("key", "value")]
    past = [g.input(f"past_key_values.{name}", dtype, shapes[0]) for name in names]
    x, *present = attention(g, layout, i, x, (past[0], past[1]), step, kv)
    for name in present:
        g.output(name, dtype, shapes[1])
    return x


def _cache_shape(spec: ModelSpec, kv: str, batch: int | str, past: str, present: str) -> tuple[Shape, Shape]:
    width = spec.head_dim // 2 if kv == "int4" else spec.head_dim
    return [batch, spec.n_kv_heads, past, width], [batch, spec.n_kv_heads, present, width]


def _model_graph(layout: Layout, kv: str) -> Graph:
    """The whole model, as onnxruntime-genai names things; logits of the last row only."""
    spec, g = layout.spec, layout.graph("model")
    x = embed(g, spec, g.input("input_ids", INT64, ["batch", "rows"]))
    g.output("logits", FLOAT, ["batch", 1, spec.vocab_size])
    step = _genai_step(g, g.input("attention_mask", INT64, ["batch", "total"]))
    for i in range(spec.n_layers):
        x = _cached(g, layout, i, x, step, kv, _cache_shape(spec, kv, "batch", "past", "total"))
        x = mlp(g, spec, i, x)
    starts, ends, axes = (g.constant(np.array([v], np.int64)) for v in (-1, np.iinfo(np.int64).max, 1))
    g.node("Identity", [head(g, spec, g.node("Slice", [x, starts, ends, axes]))], out="logits")
    return g


def _genai_step(g: Graph, mask: str) -> Step:
    """Sequence lengths from an attention mask [batch, total] of ones."""
    one = g.constant(np.array([1], np.int64))
    summed = g.node("ReduceSum", [mask, one], keepdims=0)
    seqlens = g.node("Cast", [g.node("Sub", [summed, one])], to=INT32)
    total = g.node("Gather", [g.node("Shape", [mask]), g.constant(np.array(1, np.int64))])
    return Step(seqlens=seqlens, total=g.node("Cast", [total], to=INT32))
