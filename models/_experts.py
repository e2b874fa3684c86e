"""What the files of mixtures of experts share: DeepSeek's choice of experts, and the names of shared experts."""

from __future__ import annotations

from edgedec.models._common import ConfigReader, activation, either
from edgedec.models._names import ATTENTION, EXPERTS, MLP, Names, Paths
from edgedec.spec import Moe

# Experts that all rows pass, side by side as one.
SHARED: Paths = {
    "shared_gate_up": ("mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"),
    "shared_down": ("mlp.shared_experts.down_proj.weight",),
}
DEEPSEEK_EXPERTS: Paths = EXPERTS | SHARED | {"router_bias": ("mlp.gate.e_score_correction_bias",)}
DEEPSEEK: Names = {"attention": ATTENTION, "mlp": MLP, "moe": DEEPSEEK_EXPERTS}


def deepseek_experts(
    r: ConfigReader,
    *,
    groups: int = 1,
    top_groups: int = 1,
    scale: float = 1.0,
    normalize: bool = True,
    shared: int = 1,
) -> Moe:
    """The experts of DeepSeek-V3 and its relatives: each weighed by a sigmoid, chosen by that and a bias from the best
    groups. The arguments are what a config leaves out."""
    inner = r.whole("moe_intermediate_size")
    return Moe(
        n_experts=r.whole(either(r, "n_routed_experts", "num_local_experts")),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=inner,
        router="sigmoid",
        normalize=r.flag("norm_topk_prob", normalize),
        scale=r.number("routed_scaling_factor", scale),
        router_bias=True,
        groups=r.whole("n_group", groups),
        top_groups=r.whole("topk_group", top_groups),
        shared_size=inner * r.whole("n_shared_experts", shared),
        activation=activation(r),
    )


def dense_first(r: ConfigReader, usual: int) -> list[bool]:
    """Which layers have experts: all but the first few."""
    dense = r.whole("first_k_dense_replace", usual, least=0)
    return [i >= dense for i in range(r.whole("num_hidden_layers"))]
