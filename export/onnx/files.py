"""The graph files: embedding and head, one a block, the whole stack; and the whole model for plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from edgedec.export.graph import FLOAT, INT32, INT64, Graph
from edgedec.export.layout import Layout
from edgedec.export.onnx import attention, conv, delta, mlp, moe, ssm
from edgedec.export.onnx.common import capped, ints, norm, scalar
from edgedec.export.onnx.layout import CallInputs
from edgedec.spec import Attention
from edgedec.spec.branches import first_beside

MODEL = "model"
EMIT: dict[str, Callable[[Graph, Layout, int, str, CallInputs], str]] = {
    "attention": attention.emit,
    "conv": conv.emit,
    "delta": delta.emit,
    "mlp": mlp.emit,
    "moe": moe.emit,
    "ssm": ssm.emit,
}


def write_ends(folder: Path, layout: Layout) -> tuple[str, str]:
    """Write the graphs of the embedding and the head; returns their names, empty for an encoder, which has neither."""
    if layout.spec.output is not None:
        return "", ""
    return _embed_graph(layout).save(folder), _head_graph(layout).save(folder)


def write_blocks(
    folder: Path, layout: Layout, kv_formats: Iterable[str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Write a graph for each block and one of the whole stack for each cache format; returns their names by format."""
    every = range(layout.spec.n_blocks)
    plain = {b: _stack(layout, f"block_{b:03d}", [b], "") for b in every if b not in layout.spec.attention}
    names = {b: graph.save(folder) for b, graph in plain.items()}
    blocks, stack = dict[str, tuple[str, ...]](), dict[str, str]()
    for kv in kv_formats:
        own = {b: _stack(layout, f"block_{b:03d}.{kv}", [b], kv).save(folder) for b in layout.spec.attention}
        blocks[kv] = tuple((names | own)[b] for b in every)
        stack[kv] = _stack(layout, f"stack.{kv}", every, kv).save(folder)
    return blocks, stack


def write_whole_model(folder: Path, layout: Layout, kv: str, name: str = MODEL, no_halves: bool = False) -> str:
    """Write the graph of the whole model with the inputs that onnxruntime-genai expects; returns its name.

    no_halves: for devices without float16.
    """
    g = layout.graph(name)
    g.no_halves = no_halves
    return _model_graph(g, layout, kv).save(folder)


def block(g: Graph, layout: Layout, b: int, x: str, step: CallInputs, read: str = "") -> str:
    """Block b: hidden -> after(hidden + post_norm(f(norm(read)))), and again(hidden + that) of a block with `again`.
    read: the state that it reads, if not hidden."""
    facts, p, eps = layout.spec.blocks[b], f"blocks.{b}", layout.spec.norm_eps
    y = EMIT[facts.kind](g, layout, b, norm(g, facts.norm, read or x, f"{p}.norm", eps), step)
    summed = g.node("Add", [x, norm(g, facts.post_norm, y, f"{p}.post_norm", eps)], out=f"{p}.out")
    made = norm(g, facts.after, summed, f"{p}.after_norm", eps)
    if not isinstance(facts, Attention) or facts.again == "none":
        return made
    return norm(g, facts.again, g.node("Add", [x, made]), f"{p}.again_norm", eps)


def blocks_of(g: Graph, layout: Layout, blocks: Iterable[int], x: str, step: CallInputs) -> str:
    """Blocks one after another; of one alone, what it reads besides the state is an input."""
    chosen, read = list(blocks), x
    for b in chosen:
        first = first_beside(layout.spec, b)
        if first == b:
            read = x
        elif first not in chosen:
            read = g.input("beside", FLOAT, [1, "rows", layout.spec.hidden_size])
        x = block(g, layout, b, x, step, read)
    return x


def _stack(layout: Layout, name: str, blocks: Iterable[int], kv: str) -> Graph:
    """Some blocks one after another, on rows of a tree. Of a single attention block the queries go out too."""
    spec, g, chosen = layout.spec, layout.graph(name), list(blocks)
    x = g.input("hidden", FLOAT, [1, "rows", spec.hidden_size])
    g.output("hidden_out", FLOAT, [1, "rows", spec.hidden_size])
    step = CallInputs("", "", kv)
    if any(b in spec.attention for b in chosen):
        step = CallInputs(g.input("seqlens_k", INT32, [1]), g.input("total_sequence_length", INT32, []), kv)
    x = blocks_of(g, layout, chosen, x, step)
    g.node("Identity", [x], out="hidden_out")
    if len(chosen) == 1 and chosen[0] in spec.attention:
        g.node("Identity", [attention.query(g, chosen[0])], out="query")
        g.output("query", FLOAT, [1, "rows", "query_dims"])
    return g


def _head(g: Graph, layout: Layout, x: str) -> str:
    """hidden -> logits."""
    spec = layout.spec
    bias = "head_bias" if spec.head_bias else None
    y = g.linear(norm(g, spec.final_norm, x, "final_norm", spec.norm_eps), "embed" if spec.tied else "head", bias)
    return capped(g, y, spec.final_softcap)


def _head_graph(layout: Layout) -> Graph:
    g = layout.graph("head")
    y = _head(g, layout, g.input("hidden", FLOAT, [1, "rows", layout.spec.hidden_size]))
    g.node("Identity", [y], out="logits")
    g.output("logits", FLOAT, [1, "rows", layout.spec.vocab_size])
    return g


def _embed_graph(layout: Layout) -> Graph:
    """The graph of the embedding, for programs that run the graphs directly; the ort runtime reads the rows from the
    weights file."""
    g = layout.graph("embed")
    g.node("Identity", [_embed(g, layout, g.input("input_ids", INT64, [1, "rows"]))], out="hidden_out")
    g.output("hidden_out", FLOAT, [1, "rows", layout.spec.hidden_size])
    return g


def _embed(g: Graph, layout: Layout, ids: str) -> str:
    """ids [batch, rows] -> hidden [batch, rows, hidden]."""
    spec, x, scale = layout.spec, g.lookup(ids, "embed"), layout.spec.embed_scale
    x = x if scale == 1.0 else g.node("Mul", [x, scalar(g, scale)])
    if spec.entry is None:
        return x
    if spec.entry.positions:
        x = g.node("Add", [x, g.lookup(g.input("position_ids", INT64, [1, "rows"]), "positions")])
    return norm(g, spec.entry.norm, x, "entry_norm", spec.norm_eps)


def _model_graph(g: Graph, layout: Layout, kv: str) -> Graph:
    """The whole model, as onnxruntime-genai names things; logits of the last row only."""
    spec = layout.spec
    x = _embed(g, layout, g.input("input_ids", INT64, ["batch", "rows"]))
    g.output("logits", FLOAT, ["batch", 1, spec.vocab_size])
    step = _chain_step(g, g.input("attention_mask", INT64, ["batch", "total"]), kv)
    x = blocks_of(g, layout, range(spec.n_blocks), x, step)
    last = g.node("Slice", [x, ints(g, -1), ints(g, np.iinfo(np.int64).max), ints(g, 1)])
    g.node("Identity", [_head(g, layout, last)], out="logits")
    return g


def _chain_step(g: Graph, mask: str, kv: str) -> CallInputs:
    """Sequence lengths from an attention mask [batch, total] of ones."""
    summed = g.node("ReduceSum", [mask, ints(g, 1)], keepdims=0)
    seqlens = g.node("Cast", [g.node("Sub", [summed, ints(g, 1)])], to=INT32)
    total = g.node("Gather", [g.node("Shape", [mask]), g.constant(np.array(1, np.int64))])
    return CallInputs(seqlens, g.node("Cast", [total], to=INT32), kv, tree=False, batch="batch")
