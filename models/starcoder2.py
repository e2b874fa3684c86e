"""StarCoder 2: LayerNorms, biases everywhere, a plain feed-forward, a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads, windows
from edgedec.models._dense import LAYER_OUTER, layer_norm, rotary
from edgedec.models._names import ATTENTION, Names, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
NAMES: Names = {
    "attention": ATTENTION | layer_norm("norm", "input_layernorm"),
    "mlp": {
        **layer_norm("norm", "post_attention_layernorm"),
        **{"up": ("mlp.c_fc.weight",), "up_bias": ("mlp.c_fc.bias",)},
        **{"down": ("mlp.c_proj.weight",), "down_bias": ("mlp.c_proj.bias",)},
    },
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    for fixed, usual in (("norm_type", "layer_norm"), ("mlp_type", "default")):  # as earlier configs say it
        if r.value(fixed, usual) != usual:
            raise r.fail(fixed, f"{r.values[fixed]!r} is not supported; known: {usual}")
    bias, window, n = r.flag("use_bias", True), r.maybe_whole("sliding_window"), r.whole("num_hidden_layers")
    attention = Attention(**heads(r, kv_heads=2), qkv_bias=bias, o_bias=bias, norm="layer")
    act = activation(r, default="gelu_pytorch_tanh")
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=act, bias=bias, norm="layer")

    def layers(length: int) -> list[tuple[Attention, Mlp]]:
        spans = windows(r, [window is not None] * n, window, length)
        return [(replace(attention, window=w), mlp) for w in spans]

    dim = attention.head_dim
    return rotary(r, context, layers, dim, tied=True, eps=1e-5, eps_key="norm_epsilon", final_norm="layer")


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=LAYER_OUTER)
