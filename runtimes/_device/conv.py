"""The launches of a short convolution."""

from __future__ import annotations

from edgedec.kernels.device import state_structs
from edgedec.kernels.device.structs import Product
from edgedec.runtimes._device.stack import Stack, StepShape
from edgedec.spec import Conv


def conv(stack: Stack, step: int, shape: StepShape, number: int, block: Conv) -> None:
    """hidden += post_norm(out_proj(C * conv(B * x))) of B, C, x = in_proj(norm(input))."""
    model, prefix, rows, inner = stack.model, f"blocks.{number}.", shape.rows, block.inner_size
    projected, y = stack.floats("projected", 3 * inner), stack.floats("scanned", inner)
    p = Product(model.weights(prefix + "in_proj"), projected, 3 * inner, bias=model.vector(prefix + "in_proj_bias"))
    stack.adapted(step, rows, prefix + "in_proj", p, model.norm(block.norm, prefix + "norm"), stack.input)
    vectors = model.vector(prefix + "conv"), model.vector(prefix + "conv_bias")
    arguments = state_structs.conv(step, projected, *vectors, y, inner, block.conv_size, stack.slot(shape, number))
    stack.launch("conv_rows", (rows, 1), 128, 0, arguments)
    bias = model.vector(prefix + "out_proj_bias")
    out = Product(model.weights(prefix + "out_proj"), 0, stack.spec.hidden_size, bias=bias)
    stack.residual(step, rows, number, block, out, y, "out_proj")
