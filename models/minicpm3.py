"""MiniCPM3: latent attention, and multipliers of the embedding, of what a block adds and of the last state.

The first is in the spec, the others are in the weights: the last matrix of each block, and the final norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, sizes
from edgedec.models._latent import latent_heads, latent_names
from edgedec.models._names import MLP, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def multipliers(r: ConfigReader, depth: float = 1.4, base: int = 256) -> dict[str, float]:
    """Factors of tensors: what a block adds times scale_depth over the root of the layers, states over
    hidden_size / dim_model_base. depth, base: where the config says nothing."""
    layers, hidden = r.whole("num_hidden_layers"), r.whole("hidden_size")
    depth = r.maybe_number("scale_depth", depth) or layers**0.5
    added = dict.fromkeys(("o", "o_bias", "down", "down_bias"), depth / layers**0.5)
    return added | {"final_norm": (r.maybe_whole("dim_model_base", base) or hidden) / hidden}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({k: v for k, v in config.items() if k != "v_head_dim" or v is not None})
    table = rope_table(r)
    length = context_length(r, table, context)
    multipliers(r)  # `weights` needs them
    value = r.whole("hidden_size") // r.whole("num_attention_heads")
    attention = latent_heads(r, table, q_rank=768, sizes=(256, 64, 32, value))
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r), bias=r.flag("mlp_bias", False))
    found = ModelSpec(
        **sizes(r, tied=True, eps=1e-5),
        context_length=length,
        layers=((attention, mlp),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, attention.rope_dim, length),),
        embed_scale=r.number("scale_emb", 12.0),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    names = {"latent": latent_names(spec, pairs=False), "mlp": MLP}
    return named(spec, names, times=multipliers(ConfigReader(config)))
