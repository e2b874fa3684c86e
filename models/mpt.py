"""MPT: ALiBi instead of positions, LayerNorms without biases, q, k and v that may be clipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import ConfigReader, heads
from edgedec.models._dense import layer_norm, plain, unrotated
from edgedec.models._names import Names, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts((r"lm_head\.weight",))
WORDS = {"d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
FIXED: dict[str, Any] = {"no_bias": True, "logit_scale": None, "embedding_fraction": 1.0}
UNUSED = (
    "init_config",
    "init_device",
    "learned_pos_emb",
    "norm_type",
    "verbose",
    "fc_type",
    "resid_pdrop",
    "emb_pdrop",
)
OF_ATTENTION: dict[str, Any] = {
    **{"attn_type": "multihead_attention", "alibi": True, "qk_ln": False, "prefix_lm": False},
    "attn_uses_sequence_id": False,
}
LEFT_OUT = ("attn_impl", "attn_pdrop", "model_type", "base_config_key")
NAMES: Names = {
    "attention": layer_norm("norm", "norm_1", bias=False)
    | {"qkv": ("attn.Wqkv.weight",), "o": ("attn.out_proj.weight",)},
    "mlp": layer_norm("norm", "norm_2", bias=False)
    | {"up": ("ffn.up_proj.weight",), "down": ("ffn.down_proj.weight",)},
}
OUTER = {"embed": "transformer.wte.weight", "final_norm": "transformer.norm_f.weight", "head": "lm_head.weight"}


def slopes(heads: int, most: float) -> tuple[float, ...]:
    """ALiBi's, of heads that are no power of 2 those of the next one: every other, then the rest."""
    power = 1 << (heads - 1).bit_length()
    every = [2.0 ** (-most * (i + 1) / power) for i in range(power)]
    return tuple(every if power == heads else (every[1::2] + every[::2])[:heads])


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(plain(config, WORDS, FIXED, UNUSED))
    own = ConfigReader(plain(r.table("attn_config"), {}, OF_ATTENTION, LEFT_OUT), f"{r.where} attn_config")
    common = heads(r)
    common["scale"] = own.maybe_number("softmax_scale") or common["scale"]
    clip, most = own.maybe_number("clip_qkv") or 0.0, own.number("alibi_bias_max", 8)
    own.done()
    attention = Attention(**common, rope=None, norm="layer", clip=clip, slopes=slopes(common["n_heads"], most))
    inner = r.whole("expansion_ratio", 4) * r.whole("hidden_size")
    mlp, length = Mlp(inner, gated=False, activation="gelu", norm="layer"), r.whole("max_seq_len")
    layer = (attention, mlp)
    return unrotated(r, layer, tied=True, eps_key="layer_norm_epsilon", context=context or length)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    found = named(spec, NAMES, outer=OUTER, layers="transformer.blocks.")
    return found | {"final_norm_bias": (Part(OUTER["final_norm"], times=0.0),)}
