"""BLOOM and BLOOMZ: ALiBi instead of positions, a LayerNorm after the embedding, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import ConfigReader, heads
from edgedec.models._dense import alibi, plain, unrotated
from edgedec.models._names import Names, named
from edgedec.models.gpt_neox import attention_names, feed_forward
from edgedec.spec import Attention, EncoderEntry, Mlp, ModelSpec

FACTS = ArchitectureFacts((r"lm_head\.weight",), prefixes=("transformer.",))
# Texts in training; ALiBi has no limit of its own.
LENGTH = 2048
WORDS = {"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
FIXED: dict[str, Any] = {"apply_residual_connection_post_layernorm": False, "n_inner": None}
UNUSED = (
    *("slow_but_exact", "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi"),
    *("skip_bias_add", "skip_bias_add_qkv", "seq_length", "hidden_size_divisor", "unk_token_id"),
)
OUTER = {
    **{"embed": "transformer.word_embeddings.weight", "head": "lm_head.weight"},
    **{"final_norm": "transformer.ln_f.weight", "final_norm_bias": "transformer.ln_f.bias"},
    "entry_norm": "transformer.word_embeddings_layernorm.weight",
    "entry_norm_bias": "transformer.word_embeddings_layernorm.bias",
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(plain(config, WORDS, FIXED, UNUSED))
    common = heads(r)
    slopes = alibi(common["n_heads"])
    attention = Attention(**common, rope=None, qkv_bias=True, o_bias=True, norm="layer", slopes=slopes)
    mlp = Mlp(4 * r.whole("hidden_size"), gated=False, activation="gelu_tanh", bias=True, norm="layer")
    length, entry = context or LENGTH, EncoderEntry(norm="layer")
    layer = (attention, mlp)
    return unrotated(r, layer, tied=True, eps_key="layer_norm_epsilon", context=length, entry=entry)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    block = next(iter(spec.attention.values()))
    names: Names = {
        "attention": attention_names(block, "self_attention"),
        "mlp": feed_forward("post_attention_layernorm"),
    }
    return named(spec, names, outer=OUTER, layers="transformer.h.")
