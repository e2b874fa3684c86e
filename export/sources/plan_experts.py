"""The launches of a block of experts: each row's experts one by one, selected on the device by the router's output."""

from __future__ import annotations

from edgedec.export.sources import experts
from edgedec.export.sources.epilogue import KernelEnd, Stacked
from edgedec.export.sources.launches import LaunchWriter
from edgedec.spec import Moe


def write_experts(writer: LaunchWriter, b: int, block: Moe) -> None:
    """hidden += post_norm(the weighted sum of each row's experts)."""
    x = writer.normed(f"blocks.{b}", block.norm)
    _route(writer, b, block, x)
    k, hidden = block.top_k, writer.spec.hidden_size
    act = writer.working("expert_act", k * block.inner_size)
    out = writer.working("expert_out", k * hidden)
    up = KernelEnd(glu=True, activation=block.activation)
    writer.product(f"blocks.{b}.gate_up", x, act, up, stacked=Stacked(block.n_experts, k))
    writer.product(f"blocks.{b}.down", act, out, KernelEnd(), stacked=Stacked(block.n_experts, k, by_pair=True))
    shared = _shared(writer, b, block, x) if block.shared_size else ()
    plain = block.post_norm == "none"
    to = "hidden" if plain else writer.working("post", hidden)
    writer.run(experts.combine(writer.kernels, block, hidden, plain), ("expert_weights", out, *shared, to))
    if not plain:
        writer.add_normed(b, block.post_norm)


def _route(writer: LaunchWriter, b: int, block: Moe, x: str) -> None:
    """Fill the arrays of experts and their weights."""
    logits = writer.working("router", block.n_experts)
    writer.product(f"blocks.{b}.router", x, logits, KernelEnd())
    bias = (f"blocks.{b}.router_bias",) if block.router_bias else ()
    chosen = writer.working("experts", block.top_k, "int32"), writer.working("expert_weights", block.top_k)
    writer.run(experts.route(writer.kernels, block), (logits, *bias, *chosen))


def _shared(writer: LaunchWriter, b: int, block: Moe, x: str) -> tuple[str, ...]:
    """What the expert that every row passes gives, and its gate's logit if it has one."""
    act, out = writer.working("shared_act", block.shared_size), writer.working("shared_out", writer.spec.hidden_size)
    up = KernelEnd(glu=True, activation=block.activation)
    writer.product(f"blocks.{b}.shared_gate_up", x, act, up)
    writer.product(f"blocks.{b}.shared_down", act, out, KernelEnd())
    if not block.shared_gate:
        return (out,)
    gate = writer.working("shared_gate", 1)
    writer.product(f"blocks.{b}.shared_gate", x, gate, KernelEnd())
    return out, gate
