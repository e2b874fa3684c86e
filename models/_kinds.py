"""The kind of model that a config describes, for errors about unsupported architectures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "ffn_config")
_ENCODERS = (
    *("bert", "roberta", "distilbert", "electra", "modernbert", "deberta", "xlm-roberta", "albert", "mpnet"),
    *("nomic-bert", "nomic_bert", "jina-bert", "neo-bert", "t5encoder"),
)
_MIXTURES = (
    "Mixtral, gpt-oss, DeepSeek-V2-Lite and V3, Qwen2-MoE, Qwen3-MoE, ERNIE 4.5, OLMoE, FlexOlmo, GraniteMoE, "
    "GraniteMoeShared, GLM-4 MoE, dots1, MiniMax-M2, Phi-3.5-MoE, HunYuan, AFMoE, SmallThinker, Nemotron 3, BlockFFN, "
    "LLaDA-MoE, LLaDA2 and SDAR"
)
_RECURRENT = ("mamba", "rwkv", "recurrent_gemma", "xlstm", "zamba", "jamba", "retnet")


def kind(config: Mapping[str, Any]) -> str:
    """In a few words; "a decoder" if nothing else is known.

    >>> kind({"model_type": "t5", "is_encoder_decoder": True})
    'an encoder-decoder, which is not a decoder alone'
    """
    name = str(config.get("model_type", "")).lower()
    if config.get("is_encoder_decoder"):
        return "an encoder-decoder, which is not a decoder alone"
    if name.startswith(_ENCODERS):
        return "an encoder, which generates no text"
    if "vision_config" in config or "audio_config" in config:
        return "a model of text and images or sound; models here read text only"
    if any(part in name for part in _RECURRENT) or any(key.startswith(("ssm_", "mamba_")) for key in config):
        return (
            "a recurrent or state-space model; of these Mamba, Mamba-2, FalconMamba, RWKV-7 and the hybrids "
            "Bamba, GraniteMoeHybrid, Jamba, Phi-4-mini-flash and Zamba2 are here"
        )
    if any(config.get(key) for key in _EXPERTS):
        return f"a mixture of experts; of these {_MIXTURES} are here"
    return "a decoder"


def decoder(config: Mapping[str, Any]) -> bool:
    """Whether it is a decoder with an attention cache, which optimum exports as one graph."""
    return kind(config).startswith(("a decoder", "a mixture"))
