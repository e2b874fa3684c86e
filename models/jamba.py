"""Jamba: Mamba with normed time steps, B and C, in some layers attention without positions instead; experts in some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes, unrotated_length
from edgedec.models._mamba import S6_PATHS, dt_rank
from edgedec.models._names import ATTENTION, OUTER, Names, named
from edgedec.spec import S6, Attention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
JAMBA: Names = {
    "attention": ATTENTION,
    "s6": S6_PATHS,
    "mlp": {
        "norm": ("pre_ff_layernorm.weight",),
        "gate_up": ("feed_forward.gate_proj.weight", "feed_forward.up_proj.weight"),
        "down": ("feed_forward.down_proj.weight",),
    },
    "moe": {
        "norm": ("pre_ff_layernorm.weight",),
        "router": ("feed_forward.router.weight",),
        "gate_up": ("feed_forward.experts.*.gate_proj.weight", "feed_forward.experts.*.up_proj.weight"),
        "down": ("feed_forward.experts.*.down_proj.weight",),
    },
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    length, n = unrotated_length(r, context, 262144), r.whole("num_hidden_layers")
    attends, routes = _every(r, "attn_layer", 8, 4, n), _every(r, "expert_layer", 2, 1, n)
    attention, mamba = Attention(**heads(r, kv_heads=8), rope=None), _mamba(r)
    mlp, experts = Mlp(r.whole("intermediate_size"), activation=activation(r)), _experts(r)
    layers = (
        (attention if attends[i] else mamba, experts if routes[i] and experts is not None else mlp) for i in range(n)
    )
    return finish(r, ModelSpec(**sizes(r, tied=False), context_length=length, layers=tuple(layers)))


def _every(r: ConfigReader, what: str, period: int, offset: int, n: int) -> list[bool]:
    """Which layers are of a kind: one of every `period`."""
    period, offset = r.whole(f"{what}_period", period), r.whole(f"{what}_offset", offset, least=0)
    if offset >= period:
        raise r.fail(f"{what}_offset", f"is {offset}, not below {what}_period {period}")
    return [i % period == offset for i in range(n)]


def _mamba(r: ConfigReader) -> S6:
    for key in ("use_mamba_kernels", "use_mambapy", "use_associative_scan", "calc_logits_for_entire_prompt"):
        r.value(key, None)  # how it is computed, not what
    if activation(r) != "silu":
        raise r.fail("hidden_act", f"{r.values['hidden_act']!r} is not supported by Mamba blocks; known: silu")
    for key in ("mamba_conv_bias", "mamba_inner_layernorms"):
        if not r.flag(key, True):
            raise r.fail(key, "is false, which is not supported")
    return S6(
        inner_size=r.whole("mamba_expand", 2) * r.whole("hidden_size"),
        state_size=r.whole("mamba_d_state", 16),
        dt_rank=dt_rank(r, "mamba_dt_rank"),
        conv_size=r.whole("mamba_d_conv", 4),
        proj_bias=r.flag("mamba_proj_bias", False),
        part_norm="rms",
        part_eps=r.number("rms_norm_eps", 1e-6),
    )


def _experts(r: ConfigReader) -> Moe | None:
    """None: there is one, which is an MLP. The softmax is over all experts, and the chosen ones' weights stay."""
    n, top_k = r.whole("num_experts", 16), r.whole("num_experts_per_tok", 2)
    if n == 1:
        return None
    inner = r.whole("intermediate_size")
    return Moe(n, top_k, inner, router="softmax", normalize=False, activation=activation(r))


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, JAMBA, outer=OUTER | {"final_norm": "model.final_layernorm.weight"})
