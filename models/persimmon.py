"""Persimmon 8B: LayerNorms, on heads of q and k too, squared ReLUs, biases, a rope in half of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import layer_norm, rotary
from edgedec.models._names import Names, named
from edgedec.models.gpt_neox import attention_names, feed_forward
from edgedec.models.phi import OUTER
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    normed = r.flag("qk_layernorm", True)
    attention = Attention(
        **heads(r),
        qkv_bias=True,
        o_bias=True,
        norm="layer",
        qk_norm="head" if normed else "none",
        qk_norm_kind="layer" if normed else "rms",
    )
    act = activation(r, default="relu2")
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=act, bias=True, norm="layer")
    facts: dict[str, Any] = {"eps": 1e-5, "eps_key": "layer_norm_eps", "share": 0.5, "final_norm": "layer"}
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, theta=25000.0, **facts)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    attention = attention_names(next(iter(spec.attention.values())), "self_attn")
    for tensor in ("q", "k"):
        attention |= layer_norm(f"{tensor}_norm", f"self_attn.{tensor}_layernorm")
    names: Names = {"attention": attention, "mlp": feed_forward("post_attention_layernorm")}
    return named(spec, names, outer=OUTER)
