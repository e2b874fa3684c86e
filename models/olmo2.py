"""OLMo 2: norms only after each block, and on the whole of q and of k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._names import ATTENTION, MLP, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
OLMO: Names = {
    "attention": ATTENTION | {"post_norm": ("post_attention_layernorm.weight",)},
    "mlp": MLP | {"post_norm": ("post_feedforward_layernorm.weight",)},
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r), qk_norm="full", qkv_bias=bias, o_bias=bias, norm="none", post_norm="rms")
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r), norm="none", post_norm="rms")
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=((attention, mlp),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, OLMO)
