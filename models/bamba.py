"""Bamba: Llama in which most layers are Mamba-2, and attention rotates half of a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._mamba import MAMBA, mamba
from edgedec.models._names import ATTENTION, OUTER, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
HALF = 0.5
BAMBA: Names = {
    "attention": ATTENTION,
    "ssm": MAMBA,
    "mlp": {
        "norm": ("pre_ff_layernorm.weight",),
        "gate_up": ("feed_forward.gate_proj.weight", "feed_forward.up_proj.weight"),
        "gate_up_bias": ("feed_forward.gate_proj.bias", "feed_forward.up_proj.bias"),
        "down": ("feed_forward.down_proj.weight",),
        "down_bias": ("feed_forward.down_proj.bias",),
    },
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({"partial_rotary_factor": HALF, **config})
    table = rope_table(r, partial=True)
    if table.number("partial_rotary_factor") != HALF:
        raise table.fail("partial_rotary_factor", f"is not supported; known: {HALF}")
    length = context_length(r, table, context)
    attention, ssm = _attention(r), mamba(r)
    mlp = Mlp(r.whole("intermediate_size"), bias=r.flag("mlp_bias", False), activation=activation(r))
    attends = r.items("attn_layer_indices", int) or []
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((attention if i in attends else ssm, mlp) for i in range(r.whole("num_hidden_layers"))),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def _attention(r: ConfigReader) -> Attention:
    bias = r.flag("attention_bias", False)
    found = Attention(**heads(r, kv_heads=8), qkv_bias=bias, o_bias=bias)
    rotated = int(found.head_dim * HALF)
    if r.maybe_whole("attn_rotary_emb", rotated) != rotated:
        raise r.fail("attn_rotary_emb", f"is not {rotated}, half of a head")
    return found


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, BAMBA, outer=OUTER | {"final_norm": "model.final_layernorm.weight"})
