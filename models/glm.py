"""GLM-4 (June 2024): Llama with biases of q, k and v, and a rope that turns neighbours in half of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import in_pairs, rotary
from edgedec.models._names import ATTENTION, MLP, Names, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {"attention": ATTENTION, "mlp": MLP | {"gate_up": ("mlp.gate_up_proj.weight",)}}


def glm(config: Mapping[str, Any], context: int | None, post_norm: Literal["none", "rms"]) -> ModelSpec:
    """GLM 4's model; post_norm: of what its blocks add."""
    r = ConfigReader(config)
    common = heads(r, kv_heads=2, head_dim=128)
    attention = Attention(**common, qkv_bias=r.flag("attention_bias", True), post_norm=post_norm)
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r), post_norm=post_norm)
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, eps=1.5625e-7, share=0.5)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return glm(config, context, "none")


def paired(spec: ModelSpec, names: Names) -> dict[str, Source]:
    """The weights of a model whose rope turns neighbours."""
    dim, turned = next(iter(spec.attention.values())).head_dim, 2 * len(spec.ropes[0].inv_freq)
    return named(spec, {**names, "attention": in_pairs(names["attention"], dim, turned)})


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return paired(spec, NAMES)
