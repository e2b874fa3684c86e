"""The launches of a delta-rule block."""

from __future__ import annotations

import numpy as np

from edgedec.kernels.device import state_structs, structs
from edgedec.kernels.device.state_structs import DeltaPlaces
from edgedec.kernels.device.structs import Product
from edgedec.runtimes._device.recurrent import scan_grid
from edgedec.runtimes._device.stack import NO_NORM, Stack, StepShape
from edgedec.spec import Delta

_NEAR_ZERO = np.float32(1e-6)  # under the root of a length


def delta(stack: Stack, step: int, shape: StepShape, number: int, block: Delta) -> None:
    """hidden += post_norm(out_proj(norm(y) * gate(z))), y of the state after each row (`spec.delta`)."""
    model, prefix, rows = stack.model, f"blocks.{number}.", shape.rows
    width, y = sum(block.sections), stack.floats("scanned", block.inner_size)
    projected = stack.floats("projected", width)
    p = Product(model.weights(prefix + "in_proj"), projected, width)
    stack.adapted(step, rows, prefix + "in_proj", p, model.norm(block.norm, prefix + "norm"), stack.input)
    at = _places(stack, step, rows, prefix, block, projected, width)
    vectors = [model.vector(prefix + name) for name in ("conv", "dt_bias", "a", "gate_norm")]
    sizes = block.n_heads, block.head_dim, block.key_dim, block.n_groups, block.conv_size, stack.slot(shape, number)
    whole, sigmoid = (*sizes, block.decays // block.n_heads), block.gate == "sigmoid"
    arguments = state_structs.delta(step, at, vectors, y, whole, sigmoid, _factors(stack, block))
    stack.launch("delta_inputs", (rows, 1), 128, 0, arguments)
    x, sequences, _ = scan_grid(block, shape.sequences)
    stack.launch("delta_scan", (x, sequences), 32, 0, arguments)
    stack.launch("delta_gate", (rows, 1), 32 * min(8, block.n_heads), 0, arguments)
    out = Product(model.weights(prefix + "out_proj"), 0, stack.spec.hidden_size)
    stack.residual(step, rows, number, block, out, y, "out_proj")


def _places(stack: Stack, step: int, rows: int, prefix: str, block: Delta, projected: int, width: int) -> DeltaPlaces:
    """Where z and g are; of a block with a rank, products of two matrices each."""
    conv_dim, z, heads, _ = block.sections
    beta, g = conv_dim + z, conv_dim + z + heads
    if not block.rank:
        return DeltaPlaces(projected, width, beta, projected + 4 * conv_dim, width, projected + 4 * g, width)
    low, found = stack.floats("low rows", block.rank), list[int]()
    for name, begin, size in (("gate_up", conv_dim, block.inner_size), ("decay_up", g, block.decays)):
        arguments = structs.copy_rows(step, projected + 4 * begin, low, block.rank, width)
        stack.launch("copy_rows", (rows, 1), 128, 0, arguments)
        found.append(stack.floats(name, size))
        p = Product(stack.model.weights(prefix + name), found[-1], size)
        stack.adapted(step, rows, prefix + name, p, NO_NORM, low)
    return DeltaPlaces(projected, width, beta, found[0], block.inner_size, found[1], block.decays)


def _factors(stack: Stack, block: Delta) -> tuple[float, ...]:
    """beta_scale, eps, what is under the root of a mean square, and factors of keys and queries, rounded as the CPU
    engine rounds them."""
    size = np.float32(block.key_dim)
    scales = np.float32(1) / np.sqrt(size), np.float32(1) / size
    return block.beta_scale, block.eps or stack.spec.norm_eps, float(_NEAR_ZERO / size), *map(float, scales)
