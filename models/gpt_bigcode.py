"""SantaCoder and StarCoder 1: GPT-2 with one key and value for all heads, and matrices stored as usual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import ConfigReader, activation, heads
from edgedec.models._dense import absolute, fused, layer_norm, plain
from edgedec.models._names import Names, Paths, named
from edgedec.models.gpt2 import FIXED, OUTER, UNUSED, WORDS, inner_size
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts((r".*\.attn\.(masked_)?bias", r"lm_head\.weight"))
# Precision of a softmax, padding of caches, and settings of its first inference code.
MORE = (
    *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "validate_runner_input"),
    *("max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache", "attention_type"),
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(plain(config, WORDS, FIXED, (*UNUSED, *MORE)))
    shared = r.flag("multi_query", True)
    r.value("num_key_value_heads", None)  # multi_query decides
    common = heads(r)
    common["n_kv_heads"] = 1 if shared else common["n_heads"]
    attention = Attention(**common, rope=None, qkv_bias=True, o_bias=True, norm="layer")
    act = activation(r, default="gelu_pytorch_tanh")
    mlp = Mlp(inner_size(r), gated=False, activation=act, bias=True, norm="layer")
    return absolute(r, (attention, mlp), context, tied=True, eps_key="layer_norm_epsilon")


def _linear(tensor: str, name: str) -> Paths:
    return {tensor: (f"{name}.weight",), f"{tensor}_bias": (f"{name}.bias",)}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    block = next(iter(spec.attention.values()))
    qkv = {f"qkv{end}": fused(f"attn.c_attn.{kind}", block) for end, kind in (("", "weight"), ("_bias", "bias"))}
    names: Names = {
        "attention": layer_norm("norm", "ln_1") | qkv | _linear("o", "attn.c_proj"),
        "mlp": layer_norm("norm", "ln_2") | _linear("up", "mlp.c_fc") | _linear("down", "mlp.c_proj"),
    }
    found = named(spec, names, outer=OUTER, layers="transformer.h.")
    return found | {"positions": (Part(OUTER["positions"], (0, spec.context_length)),)}
