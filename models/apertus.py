"""Apertus: norms of heads of q and k, and a plain feed-forward whose xIELU is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import rotary
from edgedec.models._names import ATTENTION, Names, named
from edgedec.models.arcee import PLAIN
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
PLACES = ("alpha_p", "alpha_n", "beta", "eps")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    for key, usual in (("mlp_bias", False), ("qk_norm", True), ("post_norm", False)):
        if r.value(key, usual) not in (usual, None):
            raise r.fail(key, f"{r.values[key]!r:.40} is not supported; known: {usual}")
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias, qk_norm="head")
    act = activation(r, default="xielu")
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=act)
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, eps=1e-5, theta=12000000.0)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    names: Names = {
        "attention": ATTENTION | {"norm": ("attention_layernorm.weight",)},
        "mlp": PLAIN
        | {
            "norm": ("feedforward_layernorm.weight",),
            "xielu": tuple(Part(f"mlp.act_fn.{place}", vector=True) for place in PLACES),
        },
    }
    return named(spec, names)
