"""Small checkpoints of the diffusion model families: configs and tensor names as their authors publish them.

Values are drawn by numpy, norms around one and biases around zero. `golden/diffusion_families.npz` has what the nearest
class of transformers predicts for the masks of a few states of a text (`families_golden.py` makes it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from checkpoints import write_safetensors
from numpy.typing import NDArray

from edgedec.bundle.manifest import DiffusionFacts

GOLDEN = Path(__file__).parents[1] / "golden" / "diffusion_families.npz"
MASK, VOCAB = 97, 101
Shapes = dict[str, tuple[int, ...]]
QWEN = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 256,
    "max_window_layers": 28,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-4,
    "rope_scaling": None,
    "rope_theta": 5000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.52.4",
    "use_cache": False,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
}
NARROW = QWEN | {"hidden_size": 48}
HEADED = QWEN | {"hidden_size": 80, "head_dim": 16, "attention_bias": False}
SDAR = {
    **{"debug": False, "ep_size": 1, "fuse_cross_entropy": True, "micro_forward": False, "skip_checkpoint": False},
    **{"use_deepep": False, "attn_implementation": "flex_attention", "block_size": 4, "mask_token_id": MASK},
}
EXPERTS = {
    **{"decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 16, "num_experts": 6},
    **{"num_experts_per_tok": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001},
}
# The config of LLaDA-8B-Instruct but for sizes.
LLADA = {
    **{"activation_type": "silu", "alibi": False, "alibi_bias_max": 8.0, "architectures": ["LLaDAModelLM"]},
    **{"attention_dropout": 0.0, "attention_layer_norm": False, "attention_layer_norm_with_affine": True},
    **{"bias_for_layer_norm": False, "block_group_size": 1, "block_type": "llama", "d_model": 48},
    **{"embedding_dropout": 0.0, "embedding_size": 104, "eos_token_id": 2, "flash_attention": False},
    **{"include_bias": False, "include_qkv_bias": False, "init_cutoff_factor": None, "init_device": "meta"},
    **{"init_fn": "mitchell", "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms"},
    **{"layer_norm_with_affine": True, "mask_token_id": MASK, "max_sequence_length": 256, "mlp_hidden_size": 72},
    **{"mlp_ratio": 4, "model_type": "llada", "multi_query_attention": None, "n_heads": 3, "n_kv_heads": 1},
    **{"n_layers": 3, "pad_token_id": 2, "precision": "amp_bf16", "residual_dropout": 0.0, "rms_norm_eps": 1e-4},
    **{"rope": True, "rope_full_precision": True, "rope_theta": 500000.0, "scale_logits": False},
    **{"torch_dtype": "bfloat16", "transformers_version": "4.51.2", "use_cache": False, "vocab_size": VOCAB},
    "weight_tying": False,
}
LLADA_MOE = {
    **{"architectures": ["LLaDAMoEModelLM"], "attention_bias": True, "attention_dropout": 0.0, "clip_qkv": None},
    **{"dense_intermediate_size": 72, "eos_token_id": 2, "expert_intermediate_size": 16, "hidden_act": "silu"},
    **{"hidden_size": 48, "initializer_range": 0.02, "mask_token_id": MASK, "max_position_embeddings": 256},
    **{"model_type": "llada", "moe_layer_freq": [0, 1, 1], "moe_router_enable_expert_bias": False},
    **{"moe_router_score_function": "softmax", "norm_topk_prob": None, "num_attention_heads": 3, "num_experts": 6},
    **{"num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 1, "output_router_logits": False},
    **{"pad_token_id": 2, "partial_rotary_factor": 1.0, "qk_layernorm": True, "rms_norm_eps": 1e-4},
    **{"rope_scaling": None, "rope_theta": 5000.0, "routed_scaling_factor": 1, "router_aux_loss_coef": 0.01},
    **{"router_num_group": None, "router_topk_group": None, "shared_expert_intermediate_size": None},
    **{"tie_word_embeddings": False, "use_cache": False, "vocab_size": VOCAB},
}
LLADA2 = {
    **{"architectures": ["LLaDA2MoeModelLM"], "attention_dropout": 0.0, "first_k_dense_replace": 1, "head_dim": 16},
    **{"hidden_act": "silu", "hidden_size": 80, "initializer_range": 0.02, "intermediate_size": 72},
    **{"mask_token_id": MASK, "max_position_embeddings": 256, "model_type": "llada2_moe", "moe_intermediate_size": 16},
    **{"moe_router_enable_expert_bias": True, "n_group": 4, "norm_head": False, "norm_topk_prob": True},
    **{"num_attention_heads": 4, "num_experts": 12, "num_experts_per_tok": 3, "num_hidden_layers": 3},
    **{"num_key_value_heads": 2, "num_shared_experts": 2, "output_router_logits": False, "pad_token_id": 2},
    **{"partial_rotary_factor": 0.75, "rms_norm_eps": 1e-4, "rope_theta": 5000.0, "routed_scaling_factor": 1.5},
    **{"score_function": "sigmoid", "tie_word_embeddings": False, "topk_group": 2, "use_qk_norm": True},
    **{"use_qkv_bias": True, "use_bias": True, "vocab_size": VOCAB, "embedding_dropout": 0.0, "output_dropout": 0.0},
    **{"rope_scaling": None, "router_dtype": "fp32", "use_sliding_window": False},
}


@dataclass(frozen=True)
class Checkpoint:
    """facts: what the manifest must say; harmless: entries of the config that change nothing; usual: those that have
    the value which the authors' code assumes without them."""

    config: Mapping[str, Any]
    tensors: Shapes
    facts: DiffusionFacts
    harmless: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()


def _qwen(config: Mapping[str, Any], *, bias: bool = False, norms: bool = False, o_bias: bool = False) -> Shapes:
    hidden, heads, kv = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim", hidden // heads)
    found: Shapes = {"model.embed_tokens.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (VOCAB, hidden)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, rows in (("q", heads * dim), ("k", kv * dim), ("v", kv * dim)):
            found[f"{p}self_attn.{name}_proj.weight"] = (rows, hidden)
            if bias:
                found[f"{p}self_attn.{name}_proj.bias"] = (rows,)
            if norms and name != "v":
                found[f"{p}self_attn.{name}_norm.weight"] = (dim,)
        found[f"{p}self_attn.o_proj.weight"] = (hidden, heads * dim)
        if o_bias:
            found[f"{p}self_attn.o_proj.bias"] = (hidden,)
        found |= {f"{p}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        found |= _mlp(f"{p}mlp.", hidden, config.get("intermediate_size", 0))
    return found


def _mlp(prefix: str, hidden: int, inner: int) -> Shapes:
    found: Shapes = {f"{prefix}{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    return found | {f"{prefix}down_proj.weight": (hidden, inner)}


def _routed(tensors: Shapes, layers: tuple[int, ...], hidden: int, experts: int, inner: int) -> Shapes:
    """With experts in place of the MLP of some layers."""
    found = {n: s for n, s in tensors.items() if not any(f".{i}.mlp." in n for i in layers)}
    for i in layers:
        found[f"model.layers.{i}.mlp.gate.weight"] = (experts, hidden)
        for e in range(experts):
            found |= _mlp(f"model.layers.{i}.mlp.experts.{e}.", hidden, inner)
    return found


def _llada(config: Mapping[str, Any]) -> Shapes:
    hidden, kv, inner = config["d_model"], config["n_kv_heads"] * 16, config["mlp_hidden_size"]
    t = "model.transformer."
    found: Shapes = {f"{t}wte.weight": (104, hidden), f"{t}ln_f.weight": (hidden,), f"{t}ff_out.weight": (104, hidden)}
    for i in range(config["n_layers"]):
        p = f"{t}blocks.{i}."
        found |= {f"{p}{name}_norm.weight": (hidden,) for name in ("attn", "ff")}
        for name, rows in (("q", hidden), ("k", kv), ("v", kv)):
            found[f"{p}{name}_proj.weight"] = (rows, hidden)
            if config["include_qkv_bias"]:
                found[f"{p}{name}_proj.bias"] = (rows,)
        found |= {f"{p}attn_out.weight": (hidden, hidden), f"{p}ff_out.weight": (hidden, inner)}
        found |= {f"{p}{name}_proj.weight": (inner, hidden) for name in ("ff", "up")}
    return found


def _llada2(c: Mapping[str, Any]) -> Shapes:
    hidden, dim, n, kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    found: Shapes = {"model.word_embeddings.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
    found["lm_head.weight"] = (VOCAB, hidden)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        found |= {f"{p}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        found |= {f"{p}attention.{name}_layernorm.weight": (dim,) for name in ("query", "key")}
        for name, shape in (("query_key_value", ((n + 2 * kv) * dim, hidden)), ("dense", (hidden, n * dim))):
            found |= {f"{p}attention.{name}.weight": shape, f"{p}attention.{name}.bias": shape[:1]}
        found |= _mlp(f"{p}mlp.", hidden, c["intermediate_size"])
    routed = tuple(range(c["first_k_dense_replace"], c["num_hidden_layers"]))
    found = _routed(found, routed, hidden, c["num_experts"], c["moe_intermediate_size"])
    for i in routed:
        found[f"model.layers.{i}.mlp.gate.expert_bias"] = (c["num_experts"],)
        shared = c["moe_intermediate_size"] * c["num_shared_experts"]
        found |= _mlp(f"model.layers.{i}.mlp.shared_experts.", hidden, shared)
    return found


# What configs have of bookkeeping, training and sampling.
IDLE = (
    *("attention_dropout", "bos_token_id", "initializer_range", "torch_dtype", "transformers_version", "use_cache"),
    *("architectures", "pad_token_id", "output_router_logits", "router_aux_loss_coef", "max_window_layers"),
    *("sliding_window", "eos_token_id"),
)
facts = partial(DiffusionFacts, MASK)
DREAM = NARROW | {"model_type": "Dream", "mask_token_id": MASK, "architectures": ["DreamModel"], "use_mrope": False}
FAST = NARROW | {"model_type": "Fast_dLLM_Qwen", "bd_size": 8, "mask_token_id": MASK, "tie_word_embeddings": True}
SDAR_DENSE = HEADED | SDAR | {"model_type": "sdar", "architectures": ["SDARForCausalLM"]}
SDAR_MOE = HEADED | SDAR | EXPERTS | {"model_type": "sdar_moe", "norm_topk_prob": True}
WEDLM = HEADED | {"model_type": "wedlm", "qk_norm": True, "mask_token_id": MASK}
WEDLM_QWEN2 = NARROW | {"model_type": "wedlm", "qk_norm": False, "attention_bias": True, "mask_token_id": MASK}
A2D = HEADED | {"model_type": "a2d-qwen3", "attention_bias": True, "mask_token_id": MASK}
NO_HEADS = ("hidden_act", "rope_scaling", "sliding_window", "use_sliding_window", "attention_bias", "mlp_only_layers")
TRAINED = ("debug", "ep_size", "fuse_cross_entropy", "micro_forward", "skip_checkpoint", "use_deepep")
OLMO_IDLE = (
    *("alibi_bias_max", "attention_layer_norm_with_affine", "embedding_dropout", "residual_dropout"),
    *("init_cutoff_factor", "init_device", "init_fn", "init_std", "precision", "flash_attention"),
    *("rope_full_precision", "mlp_ratio", "multi_query_attention", "vocab_size"),
)
OLMO_USUAL = (
    *("alibi", "attention_layer_norm", "block_group_size", "include_qkv_bias", "input_emb_norm"),
    *("layer_norm_with_affine", "scale_logits"),
)
_USUAL = (*NO_HEADS, "tie_word_embeddings", "use_mrope")

FAMILIES: dict[str, Checkpoint] = {
    "llada": Checkpoint(LLADA, _llada(LLADA), facts(False, "full", 32), OLMO_IDLE, OLMO_USUAL),
    "llada_biased": Checkpoint(
        LLADA | {"include_qkv_bias": True, "embedding_size": None, "vocab_size": 104},
        _llada(LLADA | {"include_qkv_bias": True}),
        facts(False, "full", 32),
        (*OLMO_IDLE, "embedding_size"),
        OLMO_USUAL,
    ),
    "dream": Checkpoint(DREAM, _qwen(DREAM, bias=True), facts(True, "full", 32), usual=_USUAL),
    "fast_dllm": Checkpoint(FAST, _qwen(FAST, bias=True), facts(True, "block", 8), usual=_USUAL[:-2]),
    "sdar": Checkpoint(
        SDAR_DENSE, _qwen(SDAR_DENSE, norms=True), facts(False, "block", 4), (*TRAINED, "attn_implementation"),
        (*_USUAL, "block_size"),
    ),
    "sdar_moe": Checkpoint(
        SDAR_MOE, _routed(_qwen(SDAR_MOE, norms=True), (0, 1, 2), 80, 6, 16), facts(False, "block", 4),
        (*TRAINED, "attn_implementation", "intermediate_size"), (*_USUAL, "block_size", "decoder_sparse_step"),
    ),
    "wedlm": Checkpoint(
        WEDLM, _qwen(WEDLM, norms=True), facts(False, "causal", 16), usual=(*_USUAL[:4], "tie_word_embeddings")
    ),
    "wedlm_qwen2": Checkpoint(
        WEDLM_QWEN2, _qwen(WEDLM_QWEN2, bias=True), facts(False, "causal", 16), usual=(*_USUAL, "qk_norm")
    ),
    "llada_moe": Checkpoint(
        LLADA_MOE,
        _routed(_qwen(LLADA_MOE | {"intermediate_size": 72}, bias=True, norms=True, o_bias=True), (1, 2), 48, 6, 16),
        facts(False, "full", 32),
        usual=(
            *(*NO_HEADS[:2], "tie_word_embeddings", "clip_qkv", "moe_router_enable_expert_bias", "norm_topk_prob"),
            *("moe_router_score_function", "qk_layernorm", "partial_rotary_factor", "routed_scaling_factor"),
            *("router_num_group", "router_topk_group", "shared_expert_intermediate_size"),
        ),
    ),
    "llada2_moe": Checkpoint(
        LLADA2, _llada2(LLADA2), facts(False, "block", 32),
        ("embedding_dropout", "output_dropout", "router_dtype"),
        (
            *("hidden_act", "moe_router_enable_expert_bias", "norm_head", "norm_topk_prob", "rope_scaling"),
            *("score_function", "tie_word_embeddings", "use_bias", "use_qk_norm", "use_sliding_window"),
        ),
    ),
    "a2d": Checkpoint(
        A2D, _qwen(A2D, bias=True, norms=True, o_bias=True), facts(False, "block", 32),
        usual=(*_USUAL[:4], "tie_word_embeddings"),
    ),
}  # fmt: skip


def drawn(tensors: Shapes) -> dict[str, NDArray[np.float32]]:
    """Every tensor's values, by its name."""
    found = {}
    for name, shape in tensors.items():
        rng = np.random.default_rng(crc32(name.encode()))
        spread = 0.3 if len(shape) == 1 else 2.0 / shape[-1] ** 0.5
        spread *= 0.5 if "embed" in name or "wte" in name else 1.0
        middle = 1.0 if name.endswith(("norm.weight", "ln_f.weight")) else 0.0
        found[name] = (middle + spread * rng.standard_normal(shape)).astype(np.float32)
    return found


def write(folder: Path, name: str, tensors: Mapping[str, NDArray[np.float32]] | None = None, **config: Any) -> Path:
    """The checkpoint of a family; with other tensors, or other entries of the config."""
    folder.mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", dict(drawn(FAMILIES[name].tensors) if tensors is None else tensors))
    (folder / "config.json").write_text(json.dumps({**FAMILIES[name].config, **config}))
    return folder


def wider(name: str, vocab: int) -> dict[str, NDArray[np.float32]]:
    """The tensors of a family with another vocabulary."""
    shapes = FAMILIES[name].tensors
    return drawn({n: (vocab, *s[1:]) if s[0] in (VOCAB, 104) else s for n, s in shapes.items()})


@dataclass(frozen=True)
class State:
    """A text of which a block is being filled: `start` to `end`, `step`: the passes that it has had."""

    tokens: tuple[int, ...]
    start: int
    end: int
    step: int

    @property
    def masked(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.start, self.end) if self.tokens[i] == MASK)


def states(facts: DiffusionFacts) -> list[State]:
    """The first pass of a block (after the prompt is read), one in its middle, and both of the second block."""
    size = facts.block
    n = 2 * size + size // 2 if facts.context == "block" else 11
    start = n // size * size if facts.context == "block" else n
    whole = np.random.default_rng(3).integers(3, MASK, n + 3 * size).tolist()
    found = []
    for first, end in ((n, start + size), (start + size, start + 2 * size)):
        rest = [MASK] * ((start + 2 * size if facts.context == "full" else end) - first)
        fresh = [*whole[:first], *rest]
        some = [t if not first <= i < end or (i - first) % 3 else whole[i] for i, t in enumerate(fresh)]
        begin = start if first == n else first
        found += [State(tuple(tokens), begin, end, step) for step, tokens in enumerate((fresh, some))]
    return found
