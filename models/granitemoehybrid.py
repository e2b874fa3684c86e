"""Granite 4.0: GraniteMoE in which most layers are Mamba-2, and blocks of experts have a shared MLP for all rows.

Models without experts have this MLP only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, either, finish, sizes
from edgedec.models._mamba import MAMBA, mamba
from edgedec.models._names import MLP, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.granitemoe import GRANITE, granite_heads, multipliers
from edgedec.spec import Attention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
SHARED_UP, SHARED_DOWN = ("shared_mlp.input_linear.weight",), ("shared_mlp.output_linear.weight",)
HYBRID: Names = {
    "attention": GRANITE["attention"],
    "ssm": MAMBA,
    "mlp": MLP | {"gate_up": SHARED_UP, "down": SHARED_DOWN},
    "moe": GRANITE["moe"] | {"shared_gate_up": SHARED_UP, "shared_down": SHARED_DOWN},
}
# As configs name the types of layers, and as older ones do.
ATTENDS = {"full_attention": True, "attention": True, "linear_attention": False, "mamba": False}


def attends(r: ConfigReader) -> list[bool]:
    """Which layers attend; the others are Mamba-2."""
    n, key = r.whole("num_hidden_layers"), either(r, "layer_types", "layers_block_type")
    types = r.items(key, str) or ["linear_attention"] * n
    if len(types) != n:
        raise r.fail(key, f"names {len(types)} layers of {n}")
    unknown = sorted(set(types) - ATTENDS.keys())
    if unknown:
        raise r.fail(key, f"{unknown[0]!r} is not supported; known: {', '.join(ATTENDS)}")
    return [ATTENDS[kind] for kind in types]


def roped(r: ConfigReader) -> bool:
    """Do attention layers rotate?"""
    found = r.value("position_embedding_type", None)
    if found not in (None, "nope", "rope"):
        raise r.fail("position_embedding_type", f"{found!r} is not supported; known: rope, nope, null")
    return bool(found == "rope")


def feed_forward(r: ConfigReader) -> Mlp | Moe:
    """The experts with the shared MLP, or the MLP alone."""
    n, shared, act = r.whole("num_local_experts", least=0), r.whole("shared_intermediate_size", 1024), activation(r)
    top_k, inner = r.whole("num_experts_per_tok", 2, least=0), r.whole("intermediate_size")
    if n == 0:
        return Mlp(shared, activation=act)
    return Moe(n, top_k, inner, router="softmax_topk", normalize=False, shared_size=shared, activation=act)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table, turns, kinds = rope_table(r), roped(r), attends(r)
    length = context_length(r, table, context)
    multipliers(r)  # `weights` needs them
    norm = r.text("normalization_function", "rmsnorm")
    if norm != "rmsnorm":
        raise r.fail("normalization_function", f"{norm!r} is not supported; known: rmsnorm")
    bias = r.flag("attention_bias", False)
    attention = Attention(**granite_heads(r), rope=0 if turns else None, qkv_bias=bias, o_bias=bias)
    ssm, last = mamba(r), feed_forward(r)
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=tuple((attention if on else ssm, last) for on in kinds),
        ropes=(rope(r, table, attention.head_dim, length),) if turns else (),
        embed_scale=r.number("embedding_multiplier", 1.0),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, HYBRID, times=multipliers(ConfigReader(config)))
