"""Falcon 7B, 40B, 180B and Falcon 2: attention and feed-forward side by side after one LayerNorm or two, one key and
value for some heads or all. Falcon-RW's ALiBi is rounded to bfloat16 by distance, and refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import ConfigReader, activation, heads
from edgedec.models._dense import layer_norm, plain, rotary
from edgedec.models._names import Names, named
from edgedec.models.gpt_neox import attention_names, feed_forward
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts((r"lm_head\.weight", r".*rotary_emb\.inv_freq"))
WORDS = {
    **{"num_kv_heads": "num_key_value_heads", "n_head_kv": "num_key_value_heads", "n_head": "num_attention_heads"},
    **{"n_layer": "num_hidden_layers", "ffn_hidden_size": "intermediate_size", "activation": "hidden_act"},
}
FIXED: dict[str, Any] = {"apply_residual_connection_post_layernorm": False}
OUTER = {
    **{"embed": "transformer.word_embeddings.weight", "head": "lm_head.weight"},
    **{"final_norm": "transformer.ln_f.weight", "final_norm_bias": "transformer.ln_f.bias"},
}


def _norms(r: ConfigReader, grouped: bool, beside: bool) -> bool:
    """Whether the blocks have a norm each."""
    found = r.maybe_whole("num_ln_in_parallel_attn") or (2 if grouped else 1)
    return not beside or (grouped and found == 2)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({"max_position_embeddings": 2048, **plain(config, WORDS, FIXED, ())})
    if r.flag("alibi", False):
        raise r.fail("alibi", "is not supported: these models round it to bfloat16 by distance")
    grouped, shared, bias = (
        r.flag("new_decoder_architecture", False),
        r.flag("multi_query", True),
        r.flag("bias", False),
    )
    beside = r.flag("parallel_attn", True) or grouped
    _norms(r, grouped, beside)  # `weights` needs it
    common = heads(r)
    if not grouped:
        common["n_kv_heads"] = 1 if shared else common["n_heads"]
    attention = Attention(**common, qkv_bias=bias, o_bias=bias, norm="layer", branch=beside)
    inner = r.maybe_whole("intermediate_size") or 4 * r.whole("hidden_size")
    mlp = Mlp(inner, gated=False, activation=activation(r, default="gelu"), bias=bias, norm="layer")
    facts: dict[str, Any] = {"eps": 1e-5, "eps_key": "layer_norm_epsilon", "final_norm": "layer"}
    return rotary(r, context, (attention, mlp), attention.head_dim, tied=True, **facts)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    block, r = next(iter(spec.attention.values())), ConfigReader(config)
    apart = _norms(r, r.flag("new_decoder_architecture", False), block.branch)
    one, two = "input_layernorm", "input_layernorm"
    if apart:
        one, two = ("ln_attn", "ln_mlp") if block.branch else ("input_layernorm", "post_attention_layernorm")
    attention = attention_names(block, "self_attention") | layer_norm("norm", one)
    names: Names = {"attention": attention, "mlp": feed_forward(two)}
    return named(spec, names, outer=OUTER, layers="transformer.h.")
