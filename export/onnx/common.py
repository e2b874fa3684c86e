"""The arithmetic that several kinds of blocks share, as ONNX nodes."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from edgedec.export.graph import MICROSOFT, Graph
from edgedec.spec import Activation, Norm
from edgedec.spec.moe import ALPHA, LIMIT


def norm(g: Graph, kind: Norm, x: str, name: str, eps: float) -> str:
    """x normed over its last axis by the stored tensors `name`."""
    if kind == "none":
        return x
    if kind == "scale":
        return g.node("Mul", [x, g.vector(name)])
    if kind == "layer":
        inputs = [x, g.vector(name), g.vector(f"{name}_bias")]
        return g.node("LayerNormalization", inputs, axis=-1, epsilon=eps, stash_type=1)
    return g.node("SimplifiedLayerNormalization", [x, g.vector(name)], axis=-1, epsilon=eps, stash_type=1)


def activation(g: Graph, kind: Activation, x: str) -> str:
    """The activation of each value."""
    match kind:
        case "silu":
            return g.node("QuickGelu", [x], domain=MICROSOFT, alpha=1.0)
        case "relu":
            return g.node("Relu", [x])
        case "relu2":
            positive = g.node("Relu", [x])
            return g.node("Mul", [positive, positive])
        case _:
            return g.node("Gelu", [x], approximate="tanh" if kind == "gelu_tanh" else "none")


def xielu(g: Graph, x: str, name: str) -> str:
    """xIELU by the four stored numbers `name` (`edgedec.runtimes.reference.numeric`)."""
    p, n, b, eps = g.split(g.vector(name), [1, 1, 1, 1])
    p, n = g.node("Softplus", [p]), g.node("Add", [b, g.node("Softplus", [n])])
    above = g.node("Mul", [p, g.node("Mul", [x, x])])
    power = g.node("Exp", [g.node("Min", [x, eps])])
    below = g.node("Mul", [n, g.node("Sub", [g.node("Sub", [power, scalar(g, 1.0)]), x])])
    bent = g.node("Where", [g.node("Greater", [x, scalar(g, 0.0)]), above, below])
    return g.node("Add", [bent, g.node("Mul", [b, x])])


def gated(g: Graph, kind: Activation, gate_up: str, inner: int) -> str:
    """gate_up [..., 2 * inner] -> activation(gate) * up [..., inner]."""
    gate, up = g.split(gate_up, [inner, inner])
    return g.node("Mul", [activation(g, kind, gate), up])


def clamped(g: Graph, gate_up: str, inner: int) -> str:
    """gate_up [..., 2 * inner] -> gate * sigmoid(ALPHA * gate) * (up + 1) [..., inner], both cut at LIMIT."""
    gate, up = g.split(gate_up, [inner, inner])
    gate = g.node("Clip", [gate, "", scalar(g, LIMIT)])
    up = g.node("Clip", [up, scalar(g, -LIMIT), scalar(g, LIMIT)])
    act = g.node("QuickGelu", [gate], domain=MICROSOFT, alpha=ALPHA)
    return g.node("Mul", [act, g.node("Add", [up, scalar(g, 1.0)])])


def capped(g: Graph, x: str, cap: float) -> str:
    """tanh(x / cap) * cap; x if there is no cap."""
    if not cap:
        return x
    limit = scalar(g, cap)
    return g.node("Mul", [g.node("Tanh", [g.node("Div", [x, limit])]), limit])


def scalar(g: Graph, value: float) -> str:
    """A float32 constant."""
    return g.constant(np.array(value, np.float32))


def ints(g: Graph, *values: int) -> str:
    """An int64 constant [n]."""
    return g.constant(np.array(values, np.int64))


def filled(g: Graph, like: str, value: float) -> str:
    """A float32 value everywhere, in the shape of `like`."""
    one = numpy_helper.from_array(np.array([value], np.float32))
    return g.node("ConstantOfShape", [g.node("Shape", [like])], value=one)
