"""OLMo (2024): Llama with LayerNorms that have no weights, and queries, keys and values that are clipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import rotary
from edgedec.models._names import ATTENTION, MLP, OUTER, Names, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({**config, "eps": 1e-5})
    bias, clip = r.flag("attention_bias", False), r.maybe_number("clip_qkv") or 0.0
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias, norm="layer", clip=clip)
    mlp, dim = Mlp(r.whole("intermediate_size"), activation=activation(r), norm="layer"), attention.head_dim
    return rotary(r, context, (attention, mlp), dim, tied=False, eps_key="eps", final_norm="layer")


def no_weights(tensor: str, like: str) -> dict[str, tuple[str | Part, ...]]:
    """A LayerNorm that only centres and scales, as wide as the rows of the matrix `like`."""
    return {tensor: (Part(like, ones=True),), f"{tensor}_bias": (Part(like, ones=True, times=0.0),)}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    names: Names = {
        "attention": ATTENTION | no_weights("norm", "self_attn.q_proj.weight"),
        "mlp": MLP | no_weights("norm", "mlp.gate_proj.weight"),
    }
    found = named(spec, names, outer={key: OUTER[key] for key in ("embed", "head")})
    embed = OUTER["embed"]
    return found | {"final_norm": (Part(embed, ones=True),), "final_norm_bias": (Part(embed, ones=True, times=0.0),)}
