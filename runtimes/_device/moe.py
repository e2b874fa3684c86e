"""The launches of a mixture-of-experts block: each row's experts one by one. The expert numbers stay on the device."""

from __future__ import annotations

from dataclasses import replace

from edgedec.kernels.device import structs
from edgedec.kernels.device.structs import DeviceWeights, Product
from edgedec.runtimes._device.stack import Stack, StepShape
from edgedec.spec import Moe


def moe(stack: Stack, step: int, shape: StepShape, number: int, block: Moe) -> None:
    """hidden += post_norm(the weighted sum of each row's experts)."""
    model, prefix, rows, width = stack.model, f"blocks.{number}.", shape.rows, stack.spec.hidden_size
    up = model.weights(prefix + block.up)
    normed, ready = stack.floats("expert rows", width), stack.prepared("expert", up)
    norm = model.norm(block.norm, prefix + "norm")
    stack.prepare(step, rows, stack.input, normed, _one(up, block.n_experts), norm, ready, False, 1)
    experts, weights = _route(stack, step, rows, number, block, normed)
    first = Product(up, 0, 0, a=ready, x=normed, bias=model.vector(f"{prefix}{block.up}_bias"))
    routed = _routed(stack, step, rows, number, block, experts, first)
    shared, gate = _shared(stack, step, rows, number, block, normed)
    out = stack.floats("post", width)
    arguments = structs.combine(step, routed, weights, shared, gate, out, block.top_k, width)
    stack.launch("combine", (rows, 1), 128, 0, arguments)
    stack.add_normed(step, rows, number, block, out)


def _one(w: DeviceWeights, experts: int) -> DeviceWeights:
    """One expert's share of stacked weights."""
    return replace(w, n=w.n // experts)


def _route(stack: Stack, step: int, rows: int, number: int, block: Moe, normed: int) -> tuple[int, int]:
    """Launch the router; the addresses of the experts [rows, top_k] and of their weights."""
    prefix, n = f"blocks.{number}.", block.n_experts
    logits, scratch = stack.floats("router", n), stack.floats("router scores", 3 * n)
    experts, weights = stack.floats("experts", block.top_k), stack.floats("expert weights", block.top_k)
    logit_bias = stack.model.vector(prefix + "router_logit_bias")
    stack.ready(step, rows, Product(stack.model.weights(prefix + "router"), logits, n, x=normed, bias=logit_bias))
    bias = stack.model.vector(prefix + "router_bias")
    choice = block.top_k, block.router, block.normalize, block.scale, block.groups, block.top_groups, block.jitter
    arguments = structs.route(step, logits, bias, experts, weights, scratch, n, *choice)
    stack.launch("route", (rows, 1), 32, 0, arguments)
    return experts, weights


def _routed(stack: Stack, step: int, rows: int, number: int, block: Moe, experts: int, first: Product) -> int:
    """The output of the chosen experts [rows, top_k, hidden]."""
    width, inner, k = stack.spec.hidden_size, block.inner_size, block.top_k
    act, out = stack.floats("act", inner * k), stack.floats("expert out", width * k)
    up = replace(first, w=_one(first.w, block.n_experts), experts=experts, copies=k, spread=k)
    _up(stack, step, rows, block, up, inner, act)
    down = _one(stack.model.weights(f"blocks.{number}.down"), block.n_experts)
    bias = stack.model.vector(f"blocks.{number}.down_bias")
    p = Product(down, out, width, bias=bias, experts=experts, copies=k)
    stack.product(step, rows, p, x=act, name="expert inner")
    return out


def _up(stack: Stack, step: int, rows: int, block: Moe, up: Product, inner: int, act: int) -> None:
    """The first matrix of one or more experts, and the activation."""
    activation: structs.Activation = "clamped_swiglu" if block.clamped else block.activation
    if not block.gated or not up.w.quantized or inner % structs.LANES == 0:
        epilogue = "glu" if block.gated else "activate"
        return stack.ready(step, rows, replace(up, out=act, stride=inner, epilogue=epilogue, activation=activation))
    both = stack.floats("expert gate and up", up.w.n * up.copies)
    stack.ready(step, rows, replace(up, out=both, stride=up.w.n))
    arguments = structs.gated(step, both, act, inner, True, activation, up.copies)
    stack.launch("gated", (rows * up.copies, 1), 128, 0, arguments)


def _shared(stack: Stack, step: int, rows: int, number: int, block: Moe, normed: int) -> tuple[int, int]:
    """The output of the shared expert [rows, hidden] and its gate's logits; 0 if there is none."""
    if not block.shared_size:
        return 0, 0
    prefix, width, inner = f"blocks.{number}.", stack.spec.hidden_size, block.shared_size
    w, act = stack.model.weights(prefix + block.shared_up), stack.floats("shared act", inner)
    out, gate = stack.floats("shared out", width), 0
    ready = stack.prepared("shared", w)
    if w.quantized:
        stack.prepare(step, rows, normed, 0, w, structs.Norm(), ready, False, 1)
    _up(stack, step, rows, block, Product(w, 0, 0, a=ready, x=normed), inner, act)
    down = stack.model.weights(prefix + "shared_down")
    stack.product(step, rows, Product(down, out, width), x=act, name="shared inner")
    if block.shared_gate:
        gate = stack.floats("shared gate", 1)
        stack.ready(step, rows, Product(stack.model.weights(prefix + "shared_gate"), gate, 1, x=normed))
    return out, gate
