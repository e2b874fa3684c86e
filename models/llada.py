"""LLaDA (arXiv:2502.09992; LLaDA 1.5 too): Llama that sees everything, under OLMo's names. Unshifted.

Rests on the authors' code, which has many options of OLMo that no published LLaDA uses; these are refused. Blocks of 32
are those of the authors' examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Fills, Source, llama, qwen2
from edgedec.models._common import ConfigReader
from edgedec.models._diffusion import only
from edgedec.models._names import ATTENTION, Names, named
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(diffusion=Fills(shift=False, context="full", block=32, mask=126336))
OUTER = {
    "embed": "model.transformer.wte.weight",
    "final_norm": "model.transformer.ln_f.weight",
    "head": "model.transformer.ff_out.weight",
}
NAMES: Names = {
    "attention": {
        "norm": ("attn_norm.weight",),
        **{name: tuple(str(p).removeprefix("self_attn.") for p in ATTENTION[name]) for name in ("qkv", "qkv_bias")},
        "o": ("attn_out.weight",),
    },
    "mlp": {
        "norm": ("ff_norm.weight",),
        "gate_up": ("ff_proj.weight", "up_proj.weight"),
        "down": ("ff_out.weight",),
    },
}
# What the code can do besides, with its defaults: (supported, default).
FIXED: dict[str, tuple[Any, Any]] = {
    "block_type": ("llama", "sequential"),
    "layer_norm_type": ("rms", "default"),
    "layer_norm_with_affine": (True, True),
    "bias_for_layer_norm": (False, None),
    "include_bias": (False, True),
    "rope": (True, False),
    "alibi": (False, False),
    "attention_layer_norm": (False, False),
    "input_emb_norm": (False, False),
    "scale_logits": (False, False),
    "block_group_size": (1, 1),
}
# Of training, of precision, and of options that are off.
UNUSED = (
    *("alibi_bias_max", "attention_layer_norm_with_affine", "init_cutoff_factor", "init_device", "init_fn", "init_std"),
    *("precision", "flash_attention", "flash_attn_varlen", "rope_full_precision"),
)


def llama_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the Llama that the layers are; with biases on queries, keys and values that of a Qwen2."""
    r = ConfigReader(config)
    for key, (wanted, default) in FIXED.items():
        only(r, key, wanted, default)
    for key in UNUSED:
        r.value(key, None)
    hidden, n, vocab = r.whole("d_model"), r.whole("n_heads"), r.whole("vocab_size")
    if (r.maybe_whole("embedding_size") or vocab) < vocab:
        raise r.fail("embedding_size", f"is less than vocab_size {vocab}")
    single = 1 if r.value("multi_query_attention", None) else n
    times = r.whole("mlp_ratio", 4)
    found = {
        "model_type": r.text("model_type"),
        "vocab_size": r.values.get("embedding_size") or vocab,
        "hidden_size": hidden,
        "num_attention_heads": n,
        "num_key_value_heads": r.maybe_whole("n_kv_heads") or single,
        "num_hidden_layers": r.whole("n_layers"),
        "intermediate_size": r.maybe_whole("mlp_hidden_size") or times * hidden,
        "max_position_embeddings": r.whole("max_sequence_length"),
        "rms_norm_eps": r.number("rms_norm_eps", 1e-5),
        "rope_theta": r.number("rope_theta", 10000.0),
        "hidden_act": r.text("activation_type", "swiglu"),
        "tie_word_embeddings": r.flag("weight_tying", True),
    }
    r.done()
    return found


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    biased = ConfigReader(config).flag("include_qkv_bias", False)
    plain = {key: value for key, value in config.items() if key != "include_qkv_bias"}
    of = qwen2.spec if biased else llama.spec
    return of(llama_config(plain), context)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=OUTER, layers="model.transformer.blocks.")
