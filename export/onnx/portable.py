"""Graphs for devices: parts of the stack, one of each block, the head.

`rows`, `past` and `total` (their sum) are the only free sizes. For devices with static shapes they are fixed when a
graph is opened, so that one file serves all buckets. Operators are those that GPUs and NPUs support: no attention
operator, no rotary operator, no `If`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from edgedec.bundle.integers import is_integer
from edgedec.export.graph import FLOAT, Graph
from edgedec.export.layout import Layout
from edgedec.export.onnx import portable_attention
from edgedec.export.onnx.common import capped, norm
from edgedec.spec import Activation, Mlp, ModelSpec
from edgedec.spec.newer import newer

KINDS = ("attention", "mlp")


class PortableGraph(Graph):
    """A graph without ONNX Runtime's own operators, but for the products with quantized weights."""

    def linear(self, x: str, name: str, bias: str | None = None) -> str:
        """x [1, rows, in] times the matrix `name` (out, in), in whatever format it is stored."""
        if is_integer(self.tensors[name].format):
            return self._plus(super().linear(x, name), bias)
        matrix = f"{name}.turned"
        if not any(matrix in node.output for node in self._nodes):
            self.node("Transpose", [self._plain(name)], out=matrix, perm=[1, 0])
        return self._plus(self.node("MatMul", [x, matrix]), bias)

    def _plus(self, y: str, bias: str | None) -> str:
        return self.node("Add", [y, self.vector(bias)]) if bias else y


def unsupported_on_devices(spec: ModelSpec) -> str | None:
    """Why there are no graphs of a model for devices, in one line; None if there are."""
    if spec.output is not None:
        return "it encodes texts"
    if newer(spec):
        return f"it has {', '.join(newer(spec))}"
    others = [kind for kind in spec.kinds if kind not in KINDS]
    return f"it has {', '.join(others)} blocks" if others else None


def write_portable(
    folder: Path, layout: Layout, kv_formats: Iterable[str], prefix: str, most: int
) -> tuple[str, dict[str, tuple[str, ...]], dict[str, tuple[str, ...]], tuple[int, ...]]:
    """Write the head, a graph for each block, and the stack in parts of at most `most` bytes of weights, for each cache
    format; returns the head's name, those of blocks and of parts by format, and the first block of each part."""
    spec, every = layout.spec, range(layout.spec.n_blocks)
    starts = part_starts(layout, most)
    plain = {b: _stack(layout, f"{prefix}block_{b:03d}", [b], "") for b in every if b not in spec.attention}
    names = {b: graph.save(folder) for b, graph in plain.items()}
    blocks, parts = dict[str, tuple[str, ...]](), dict[str, tuple[str, ...]]()
    for kv in kv_formats:
        own = {b: _stack(layout, f"{prefix}block_{b:03d}.{kv}", [b], kv).save(folder) for b in spec.attention}
        blocks[kv] = tuple((names | own)[b] for b in every)
        ranges = [range(a, z) for a, z in itertools.pairwise((*starts, spec.n_blocks))]
        parts[kv] = tuple(
            _stack(layout, f"{prefix}part_{i:02d}.{kv}", part, kv).save(folder) for i, part in enumerate(ranges)
        )
    return _head(layout, f"{prefix}head").save(folder), blocks, parts, starts


def part_starts(layout: Layout, most: int) -> tuple[int, ...]:
    """The first block of each part, none of which has more than `most` bytes of weights unless one block has."""
    starts, size = [0], 0
    for b in range(layout.spec.n_blocks):
        own = sum(layout.tensors[name].stored_bytes for name in layout.spec.block_tensors(b))
        if size and size + own > most:
            starts.append(b)
            size = 0
        size += own
    return tuple(starts)


def _stack(layout: Layout, name: str, blocks: Iterable[int], kv: str) -> Graph:
    """Some blocks one after another."""
    g = PortableGraph(layout.prefix + name, layout.weights, layout.tensors)
    x = g.input("hidden", FLOAT, [1, "rows", layout.spec.hidden_size])
    g.output("hidden_out", FLOAT, [1, "rows", layout.spec.hidden_size])
    for b in blocks:
        x = _block(g, layout, b, x, kv)
    g.node("Identity", [x], out="hidden_out")
    return g


def _head(layout: Layout, name: str) -> Graph:
    """hidden -> logits."""
    spec, g = layout.spec, PortableGraph(layout.prefix + name, layout.weights, layout.tensors)
    x = norm(g, spec.final_norm, g.input("hidden", FLOAT, [1, "rows", spec.hidden_size]), "final_norm", spec.norm_eps)
    y = capped(g, g.linear(x, "embed" if spec.tied else "head"), spec.final_softcap)
    g.node("Identity", [y], out="logits")
    g.output("logits", FLOAT, [1, "rows", spec.vocab_size])
    return g


def _block(g: Graph, layout: Layout, b: int, x: str, kv: str) -> str:
    """Block b: hidden -> hidden + post_norm(f(norm(hidden)))."""
    facts, p, eps = layout.spec.blocks[b], f"blocks.{b}", layout.spec.norm_eps
    inner = norm(g, facts.norm, x, f"{p}.norm", eps)
    if isinstance(facts, Mlp):
        y = _mlp(g, facts, inner, p)
    else:
        y = portable_attention.emit(g, layout, b, inner, kv)
    return g.node("Add", [x, norm(g, facts.post_norm, y, f"{p}.post_norm", eps)], out=f"{p}.out")


def _mlp(g: Graph, block: Mlp, x: str, p: str) -> str:
    y = g.linear(x, f"{p}.{block.up}", f"{p}.{block.up}_bias" if block.bias else None)
    if block.gated:
        gate, up = g.split(y, [block.inner_size, block.inner_size])
        y = g.node("Mul", [_activation(g, block.activation, gate), up])
    else:
        y = _activation(g, block.activation, y)
    return g.linear(y, f"{p}.down", f"{p}.down_bias" if block.bias else None)


def _activation(g: Graph, kind: Activation, x: str) -> str:
    match kind:
        case "silu":
            return g.node("Mul", [x, g.node("Sigmoid", [x])])
        case "relu":
            return g.node("Relu", [x])
        case _:
            return g.node("Gelu", [x], approximate="tanh" if kind == "gelu_tanh" else "none")
