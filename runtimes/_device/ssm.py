"""The launches of a state-space block."""

from __future__ import annotations

from edgedec.kernels.device import state_structs, structs
from edgedec.kernels.device.structs import Norm, Product
from edgedec.runtimes._device.recurrent import scan_grid
from edgedec.runtimes._device.stack import Stack, StepShape
from edgedec.spec import Ssm


def ssm(stack: Stack, step: int, shape: StepShape, number: int, block: Ssm) -> None:
    """hidden += post_norm(out_proj(norm(scan(conv(in_proj(norm(input)))))))."""
    model, prefix, rows = stack.model, f"blocks.{number}.", shape.rows
    projected, y = stack.floats("projected", block.in_rows), stack.floats("scanned", block.inner_size)
    p = Product(model.weights(prefix + "in_proj"), projected, block.in_rows, bias=model.vector(prefix + "in_proj_bias"))
    stack.adapted(step, rows, prefix + "in_proj", p, model.norm(block.norm, prefix + "norm"), stack.input)
    slot = stack.slot(shape, number)
    vectors = [model.vector(prefix + name) for name in ("conv", "conv_bias", "dt_bias", "a", "d")]
    arguments = state_structs.ssm(
        step, projected, vectors, y, block.n_heads, block.head_dim, block.state_size, block.n_groups,
        block.conv_size, slot, block.in_rows, block.dt_min, block.dt_max,
    )  # fmt: skip
    stack.launch("ssm_inputs", (rows, 1), 128, 0, arguments)
    x, sequences, _ = scan_grid(block, shape.sequences)
    stack.launch("ssm_scan", (x, sequences), 32, 0, arguments)
    if block.norm_groups:
        norm = Norm(model.vector(prefix + "gate_norm"), 0, structs.NORMS["rms"], stack.spec.norm_eps)
        part = block.inner_size // block.norm_groups
        arguments = structs.norm_rows(step, y, y, norm, block.inner_size, part, block.inner_size, False)
        stack.launch("norm_rows", (rows, 1), 32 * min(8, block.norm_groups), 0, arguments)
    out = Product(
        model.weights(prefix + "out_proj"), 0, stack.spec.hidden_size, bias=model.vector(prefix + "out_proj_bias")
    )
    stack.residual(step, rows, number, block, out, y, "out_proj")
