"""Youtu-LLM: the latent attention of DeepSeek-V3 without experts."""

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


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    r.flag("rope_interleave", True)  # `weights` needs it
    if r.flag("mlp_bias", False):
        raise r.fail("mlp_bias", "is true, but transformers ignores it: what is meant is not clear")
    table = rope_table(r)
    length = context_length(r, table, context)
    attention = latent_heads(r, table, q_rank=1536, sizes=(512, 128, 64, 128))
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r))
    found = ModelSpec(
        **sizes(r, tied=True),
        context_length=length,
        layers=((attention, mlp),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, attention.rope_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, {"latent": latent_names(spec, config.get("rope_interleave", True)), "mlp": MLP})
