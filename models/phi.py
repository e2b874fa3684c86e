"""Phi 1, 1.5 and 2: attention and feed-forward side by side after one LayerNorm, biases everywhere, the head's too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import LAYER_OUTER, layer_norm, rotary
from edgedec.models._names import ATTENTION, Names, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {
    "attention": ATTENTION
    | {
        **layer_norm("norm", "input_layernorm"),
        **layer_norm("q_norm", "self_attn.q_layernorm"),
        **layer_norm("k_norm", "self_attn.k_layernorm"),
        **{"o": ("self_attn.dense.weight",), "o_bias": ("self_attn.dense.bias",)},
    },
    "mlp": {
        **layer_norm("norm", "input_layernorm"),
        **{"up": ("mlp.fc1.weight",), "up_bias": ("mlp.fc1.bias",)},
        **{"down": ("mlp.fc2.weight",), "down_bias": ("mlp.fc2.bias",)},
    },
}
OUTER = LAYER_OUTER | {"final_norm": "model.final_layernorm.weight", "final_norm_bias": "model.final_layernorm.bias"}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    normed = r.flag("qk_layernorm", False)
    attention = Attention(
        **heads(r),
        qkv_bias=True,
        o_bias=True,
        norm="layer",
        qk_norm="head" if normed else "none",
        qk_norm_kind="layer" if normed else "rms",
        branch=True,
    )
    act = activation(r, default="gelu_new")
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=act, bias=True, norm="layer")
    facts: dict[str, Any] = {"eps": 1e-5, "eps_key": "layer_norm_eps", "share": 0.5, "final_norm": "layer"}
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, head_bias=True, **facts)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=OUTER)
