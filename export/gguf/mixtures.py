"""The configs of mixtures of experts in GGUF files that are like dense decoders but for that."""

from __future__ import annotations

from collections.abc import Callable

from edgedec.export.gguf.common import (
    Config,
    biased,
    common,
    expert_count,
    nextn_layers,
    of_experts,
    pattern,
    rows,
    shared_width,
    some,
    turned_share,
    without,
)
from edgedec.export.gguf.metadata import GgufFacts

SOFTMAX, SIGMOID = 1, 2


def scored(f: GgufFacts, usual: int) -> int:
    """How a router scores experts, by llama.cpp's number."""
    return f.whole("expert_gating_func", 0) or usual


def _require_sigmoid(f: GgufFacts) -> None:
    if scored(f, SIGMOID) != SIGMOID:
        raise f.fail(f.name("expert_gating_func"), "is not 2, a sigmoid")


def _qwen2_moe(f: GgufFacts) -> Config:
    shared = f.whole("expert_shared_feed_forward_length", least=1)
    own = {"shared_expert_intermediate_size": shared, "norm_topk_prob": False, "qkv_bias": biased(f, "attn_q")}
    return common(f, "qwen2_moe") | of_experts(f) | own


def deepseek(f: GgufFacts) -> Config:
    """The experts of DeepSeek and its kin: some layers without, some that all rows pass, groups, a factor."""
    experts = of_experts(f)
    return {
        "first_k_dense_replace": f.whole("leading_dense_block_count", 0),
        "n_routed_experts": experts.pop("num_experts"),
        "n_shared_experts": f.whole("expert_shared_count", 1, least=1),
        "routed_scaling_factor": f.number("expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": f.flag("expert_weights_norm", False),
        "n_group": f.whole("expert_group_count", 0) or 1,
        "topk_group": f.whole("expert_group_used_count", 0) or 1,
    } | experts


def _glm4_moe(f: GgufFacts) -> Config:
    """The file counts the layers that only draft among the others, as the last ones."""
    found = common(f, "glm4_moe") | deepseek(f)
    _require_sigmoid(f)
    return found | {
        "num_hidden_layers": found["num_hidden_layers"] - nextn_layers(f),
        "partial_rotary_factor": turned_share(f),
        "attention_bias": biased(f, "attn_q"),
        "use_qk_norm": some(f, "attn_q_norm.weight"),
        "first_k_dense_replace": f.whole("leading_dense_block_count", 1),
        "norm_topk_prob": f.flag("expert_weights_norm", True),
    }


def _dots1(f: GgufFacts) -> Config:
    """Files say nothing of windows: those of the published models see all."""
    _require_sigmoid(f)
    return common(f, "dots1") | deepseek(f) | {"sliding_window": None, "attention_bias": biased(f, "attn_q")}


def _minimax_m2(f: GgufFacts) -> Config:
    _require_sigmoid(f)
    experts = of_experts(f)
    return common(f, "minimax_m2") | {
        "num_local_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "intermediate_size": experts["moe_intermediate_size"],
    }


def _ernie4_5_moe(f: GgufFacts) -> Config:
    """The shared experts are as wide as their tensor, whatever the file says of them."""
    experts = of_experts(f)
    inner = experts["moe_intermediate_size"]
    wide = shared_width(f)
    if wide % inner:
        raise f.fail(f.name("expert_feed_forward_length"), f"is {inner}; shared experts have {wide} rows")
    return common(f, "ernie4_5_moe") | {
        "moe_num_experts": experts["num_experts"],
        "moe_k": experts["num_experts_per_tok"],
        "moe_intermediate_size": inner,
        "moe_num_shared_experts": wide // inner,
        "moe_layer_start_index": f.whole("leading_dense_block_count", 0),
        "moe_layer_interval": f.whole("interleave_moe_layer_step", 1, least=1),
    }


def _hunyuan_moe(f: GgufFacts) -> Config:
    experts = of_experts(f)
    return common(f, "hunyuan_v1_moe") | {
        "num_experts": experts["num_experts"],
        "moe_topk": experts["num_experts_per_tok"],
        "moe_intermediate_size": experts["moe_intermediate_size"],
        "num_shared_expert": f.whole("expert_shared_count", 1),
        "intermediate_size": rows(f, "blk.0.ffn_up_shexp.weight"),
        "attention_bias": biased(f, "attn_q"),
    }


def _gpt_oss(f: GgufFacts) -> Config:
    """Every other layer has the window. The rope's pairs are told apart as in the checkpoint, not at whole numbers."""
    found, experts = common(f, "gpt_oss"), of_experts(f)
    scaling = found.pop("rope_scaling", None)
    return found | {
        "rope_scaling": {**scaling, "truncate": False} if scaling else {"rope_type": "default"},
        "num_local_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "intermediate_size": experts["moe_intermediate_size"],
        "sliding_window": f.whole("attention.sliding_window", least=1),
        "attention_bias": biased(f, "attn_q"),
    }


def _afmoe(f: GgufFacts) -> Config:
    """llama.cpp scales embeddings whatever the file says, and turns heads in three of four layers, which have the
    window."""
    _require_sigmoid(f)
    found, experts = common(f, "afmoe"), of_experts(f)
    slides = pattern(f, found["num_hidden_layers"], 4)
    if slides != [(i + 1) % 4 > 0 for i in range(len(slides))]:
        raise f.fail(f.name("attention.sliding_window_pattern"), "must be three layers of four: these are turned")
    return (
        found
        | experts
        | {
            "num_shared_experts": f.whole("expert_shared_count", 0),
            "num_dense_layers": f.whole("leading_dense_block_count", 0),
            "route_norm": f.flag("expert_weights_norm", False),
            "route_scale": f.number("expert_weights_scale", 0.0) or 1.0,
            "n_group": f.whole("expert_group_count", 0) or 1,
            "sliding_window": f.whole("attention.sliding_window", least=1),
            "global_attn_every_n_layers": 4,
            "mup_enabled": True,
        }
    )


def _smallthinker(f: GgufFacts) -> Config:
    """With a window every fourth layer, from the first on, sees all and does not turn. llama.cpp takes 4096 for any,
    that of the published models; here it is the file's. It ranks experts by their sigmoids, here they are ranked by
    their logits as in the authors' code: another choice only where several sigmoids are 1."""
    found, experts, window = common(f, "smallthinker"), of_experts(f), f.whole("attention.sliding_window", 0)
    if f.whole("attention.sliding_window_pattern", 4) != 4:
        raise f.fail(f.name("attention.sliding_window_pattern"), "is not 4: every fourth layer has no positions")
    score = scored(f, SIGMOID)
    if score not in (SOFTMAX, SIGMOID):
        raise f.fail(f.name("expert_gating_func"), "is neither 1, a softmax, nor 2, a sigmoid")
    slides = [int(window > 0 and i % 4 > 0) for i in range(found["num_hidden_layers"])]
    return without(found, "intermediate_size") | {
        "moe_num_primary_experts": experts["num_experts"],
        "moe_num_active_primary_experts": experts["num_experts_per_tok"],
        "moe_ffn_hidden_size": experts["moe_intermediate_size"],
        "moe_primary_router_apply_softmax": score == SOFTMAX,
        "sliding_window_layout": slides,
        "rope_layout": slides if window else [1] * len(slides),
        **({"sliding_window_size": window} if window else {}),
    }


def _phimoe(f: GgufFacts) -> Config:
    """The scale of sines and cosines is the file's, which the converter computes from the lengths."""
    found = common(f, "phimoe")
    scaling = found.pop("rope_scaling", None)
    if scaling:
        attention = scaling.pop("attention_factor", 1.0)
        found["rope_scaling"] = scaling | {"short_mscale": attention, "long_mscale": attention}
    return found | {
        "num_local_experts": expert_count(f),
        "num_experts_per_tok": f.whole("expert_used_count", least=1),
        "sliding_window": f.whole("attention.sliding_window", 0) or None,
        "attention_bias": biased(f, "attn_q"),
        "lm_head_bias": "output.bias" in f.file.tensors,
    }


MIXTURES: dict[str, Callable[[GgufFacts], Config]] = {
    "qwen2moe": _qwen2_moe,
    "glm4moe": _glm4_moe,
    "dots1": _dots1,
    "minimax-m2": _minimax_m2,
    "ernie4_5-moe": _ernie4_5_moe,
    "hunyuan-moe": _hunyuan_moe,
    "gpt-oss": _gpt_oss,
    "afmoe": _afmoe,
    "smallthinker": _smallthinker,
    "phimoe": _phimoe,
}
