"""The launches of a feed-forward block."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from edgedec.kernels.device import structs
from edgedec.kernels.device.structs import Product
from edgedec.runtimes._device.stack import Stack
from edgedec.spec import Mlp


def mlp(stack: Stack, step: int, rows: int, number: int, block: Mlp) -> None:
    """hidden += post_norm(down(inner_norm(activation(gate) * up))) or, not gated, of activation(up)."""
    model, prefix, inner = stack.model, f"blocks.{number}.", block.inner_size
    w, act = model.weights(prefix + block.up), stack.floats("act", inner)
    norm, bias = model.norm(block.norm, prefix + "norm"), model.vector(f"{prefix}{block.up}_bias")
    whole = not block.gated or not w.quantized or inner % structs.LANES == 0
    whole = whole and not stack.adapts(prefix + block.up) and block.activation != "xielu"
    p = Product(w, act, inner, bias=bias, activation=block.activation)
    if whole:
        epilogue = "glu" if block.gated else "activate"
        stack.product(step, rows, replace(p, epilogue=epilogue), norm, stack.input)
    else:
        both = stack.floats("gate and up", w.n)
        stack.adapted(step, rows, prefix + block.up, replace(p, out=both, stride=w.n), norm, stack.input)
        bent = _xielu(stack, prefix) if block.activation == "xielu" else (0.0, 0.0, 0.0, 0.0)
        arguments = structs.gated(step, both, act, inner, block.gated, block.activation, xielu=bent)
        stack.launch("gated", (rows, 1), 128, 0, arguments)
    stack.norm_whole(step, rows, block.inner_norm, prefix + "inner_norm", act, inner)
    bias = model.vector(prefix + "down_bias")
    down = Product(model.weights(prefix + "down"), 0, stack.spec.hidden_size, bias=bias)
    stack.residual(step, rows, number, block, down, act, "down")


def _xielu(stack: Stack, prefix: str) -> tuple[float, float, float, float]:
    """The factors above and below 0, of x, and the largest exponent, as the CPU engine computes them."""
    above, below, linear, most = stack.model.floats(prefix + "xielu")
    softened = [np.float32(math.log1p(math.exp(x))) for x in (above, below)]
    return float(softened[0]), float(linear + softened[1]), float(linear), float(most)
