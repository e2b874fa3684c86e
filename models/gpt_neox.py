"""GPT-NeoX and Pythia: attention and feed-forward side by side, a LayerNorm each; q, k and v fused head by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import fused, layer_norm, plain, rotary
from edgedec.models._names import Names, Paths, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts((*IGNORED, r".*\.attention\.(masked_)?bias", r".*rotary_emb\..*", r"embed_out\.weight"))
OUTER = {
    "embed": "gpt_neox.embed_in.weight",
    "final_norm": "gpt_neox.final_layer_norm.weight",
    "final_norm_bias": "gpt_neox.final_layer_norm.bias",
    "head": "embed_out.weight",
}
NAMES = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(plain(config, NAMES, {"is_decoder": False}, ("classifier_dropout",)))
    bias, beside = r.flag("attention_bias", True), r.flag("use_parallel_residual", True)
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias, norm="layer", branch=beside)
    act = activation(r, default="gelu")
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=act, bias=True, norm="layer")
    facts: dict[str, Any] = {"eps": 1e-5, "eps_key": "layer_norm_eps", "share": 0.25, "final_norm": "layer"}
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=False, **facts)


def feed_forward(norm: str, prefix: str = "mlp.") -> Paths:
    """Megatron's names of a plain feed-forward."""
    up, down = f"{prefix}dense_h_to_4h", f"{prefix}dense_4h_to_h"
    found: Paths = {"up": (f"{up}.weight",), "up_bias": (f"{up}.bias",)}
    return found | {"down": (f"{down}.weight",), "down_bias": (f"{down}.bias",)} | layer_norm("norm", norm)


def attention_names(block: Attention, inside: str) -> Paths:
    """Megatron's names of attention, its parts fused by heads."""
    return {
        **layer_norm("norm", "input_layernorm"),
        **{"qkv": fused(f"{inside}.query_key_value.weight", block), "o": (f"{inside}.dense.weight",)},
        **{"qkv_bias": fused(f"{inside}.query_key_value.bias", block), "o_bias": (f"{inside}.dense.bias",)},
    }


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    block = next(iter(spec.attention.values()))
    names: Names = {
        "attention": attention_names(block, "attention"),
        "mlp": feed_forward("post_attention_layernorm"),
    }
    return named(spec, names, outer=OUTER, layers="gpt_neox.layers.")
