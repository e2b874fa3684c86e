"""ERNIE 4.5 with experts: chosen by their weights and a bias, weighed without it; neighbouring channels turn together.

The layers that guess further tokens are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, either, finish, heads, sizes
from edgedec.models._experts import SHARED
from edgedec.models._names import ATTENTION, EXPERTS, MLP, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts((*IGNORED, r"model\.mtp_.*"))
# Of other models of the family, or of training.
UNUSED = (
    *("moe_capacity", "moe_gate", "moe_use_aux_free", "moe_aux_loss_lambda", "moe_orthogonal_loss_lambda"),
    *("moe_z_loss_lambda", "use_rmsnorm", "fuse_rope", "rope_reorder", "compression_ratio"),
)


def sparse(r: ConfigReader) -> list[bool]:
    """Which layers have experts: every so many, from one to another."""
    n, every = r.whole("num_hidden_layers"), r.whole("moe_layer_interval", 1)
    first, last = r.whole("moe_layer_start_index", 1, least=0), r.whole("moe_layer_end_index", -1, least=-1)
    return [(i + 1) % every == 0 and first <= i <= (n - 1 if last == -1 else last) for i in range(n)]


def experts(r: ConfigReader) -> Moe:
    """The block of experts. What their weights are divided by has a limit below, which no softmax reaches."""
    if r.number("moe_norm_min", 1e-12) > 1e-6:
        raise r.fail("moe_norm_min", f"is {r.values['moe_norm_min']!r}; supported are values up to 1e-6")
    inner = r.whole("moe_intermediate_size", 1536)
    return Moe(
        n_experts=r.whole(either(r, "moe_num_experts", "num_experts"), 64),
        top_k=r.whole(either(r, "moe_k", "num_experts_per_tok"), 6),
        inner_size=inner,
        router_bias=True,
        shared_size=inner * r.whole("moe_num_shared_experts", 2, least=0),
        activation=activation(r),
    )


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    for key in UNUSED:
        r.value(key, None)
    table = rope_table(r, 5e5)
    length = context_length(r, table, context)
    if r.flag("use_bias", False):
        raise r.fail("use_bias", "is true: a head and shared experts with biases are not supported")
    attention, moe = Attention(**heads(r, kv_heads=4)), experts(r)
    mlp = Mlp(r.whole("intermediate_size"), activation=moe.activation)
    found = ModelSpec(
        **sizes(r, tied=True, eps=1e-5),
        context_length=length,
        layers=tuple((attention, moe if has else mlp) for has in sparse(r)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    dim = next(iter(spec.attention.values())).head_dim

    turned = (Part(f"self_attn.{name}_proj.weight", halves=(dim, 0, dim)) for name in "qk")
    bias = Part("mlp.moe_statics.e_score_correction_bias", vector=True)
    names: Names = {
        "attention": ATTENTION | {"qkv": (*turned, "self_attn.v_proj.weight")},
        "mlp": MLP,
        "moe": EXPERTS | SHARED | {"router_bias": (bias,)},
    }
    return named(spec, names)
