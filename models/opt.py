"""OPT: learned positions, the first two of whose table are of padding; LayerNorms, biases, a plain feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import ConfigReader, activation, heads
from edgedec.models._dense import absolute, layer_norm, plain
from edgedec.models._names import ATTENTION, Names, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts((r"lm_head\.weight", r"decoder\.version"), prefixes=("model.",))
PADDING = 2
WORDS = {"ffn_dim": "intermediate_size", "activation_function": "hidden_act"}
FIXED: dict[str, Any] = {
    **{"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True},
}
UNUSED = ("init_std", "layerdrop", "prefix", "activation_dropout", "word_embed_proj_dim")
NAMES: Names = {
    "attention": ATTENTION
    | {
        **layer_norm("norm", "self_attn_layer_norm"),
        **{"o": ("self_attn.out_proj.weight",), "o_bias": ("self_attn.out_proj.bias",)},
    },
    "mlp": {
        **layer_norm("norm", "final_layer_norm"),
        **{"up": ("fc1.weight",), "up_bias": ("fc1.bias",), "down": ("fc2.weight",), "down_bias": ("fc2.bias",)},
    },
}
OUTER = {
    **{"embed": "model.decoder.embed_tokens.weight", "head": "lm_head.weight"},
    "final_norm": "model.decoder.final_layer_norm.weight",
    "final_norm_bias": "model.decoder.final_layer_norm.bias",
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(plain({"layer_norm_eps": 1e-5, **config}, WORDS, FIXED, UNUSED))
    if config.get("word_embed_proj_dim", r.whole("hidden_size")) not in (None, r.whole("hidden_size")):
        raise r.fail("word_embed_proj_dim", "is not hidden_size: an embedding that is projected is not supported")
    bias = r.flag("enable_bias", True)
    attention = Attention(**heads(r), rope=None, qkv_bias=bias, o_bias=bias, norm="layer")
    act = activation(r, default="relu")
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=act, bias=bias, norm="layer")
    return absolute(r, (attention, mlp), context, tied=True, eps_key="layer_norm_eps")


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    places = OUTER | {"positions": "model.decoder.embed_positions.weight"}
    found = named(spec, NAMES, outer=places, layers="model.decoder.layers.")
    return found | {"positions": (Part(places["positions"], (PADDING, PADDING + spec.context_length)),)}
