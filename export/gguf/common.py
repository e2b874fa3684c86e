"""What the configs of all architectures in GGUF files have in common."""

from __future__ import annotations

from typing import Any

from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.ropes import rope_config

Config = dict[str, Any]
MAX_HEAD, MAX_CONTEXT = 1 << 13, 1 << 21


def common(
    f: GgufFacts, model_type: str, eps: str = "rms_norm_eps", alike: bool = False, inner: int | None = None
) -> Config:
    """The config entries of nearly all architectures. eps: the config's name for what norms add, LayerNorms under
    another name than the usual one; alike: YaRN's two scales are one, as in `rope_config`; inner: as of `headless`."""
    heads = f.whole("attention.head_count", least=1)
    found = headless(f, model_type, eps, inner) | {
        "num_attention_heads": heads,
        "num_key_value_heads": f.whole("attention.head_count_kv", heads, least=1),
        "head_dim": head_dim(f),
    }
    if f.whole("attention.value_length", found["head_dim"]) != found["head_dim"]:
        raise f.fail(f.name("attention.value_length"), f"is not {found['head_dim']}, the length of keys")
    return found | rope_config(f, found["head_dim"], found["max_position_embeddings"], alike)


def head_dim(f: GgufFacts) -> int:
    """The width of a head: given, or a share of the hidden size."""
    share = f.whole("embedding_length") // max(1, f.whole("attention.head_count"))
    return f.whole("attention.key_length", share, least=1, most=MAX_HEAD)


def headless(f: GgufFacts, model_type: str, eps: str = "rms_norm_eps", inner: int | None = None) -> Config:
    """The same but for heads and positions. inner: the width of feed-forwards where the file has one for each layer."""
    return {
        "model_type": model_type,
        "vocab_size": rows(f, "token_embd.weight"),
        "hidden_size": f.whole("embedding_length", least=1),
        "num_hidden_layers": f.whole("block_count", least=1, most=len(f.file.tensors)),
        "intermediate_size": f.whole("feed_forward_length", 0) if inner is None else inner,
        "max_position_embeddings": f.whole("context_length", least=1, most=MAX_CONTEXT),
        eps: f.number(f"attention.layer_norm_{'rms_' if eps == 'rms_norm_eps' else ''}epsilon"),
        "tie_word_embeddings": "output.weight" not in f.file.tensors,
    }


def turned_share(f: GgufFacts) -> float:
    """The share of a head that turns, said whatever the type's own is."""
    dim = head_dim(f)
    return f.whole("rope.dimension_count", dim, least=1) / dim


def rows(f: GgufFacts, tensor: str) -> int:
    """The rows of a tensor that must be there."""
    if tensor not in f.file.tensors:
        raise f.fail(tensor, "is missing: no such tensor")
    return f.file.tensors[tensor].shape[0]


def expert_count(f: GgufFacts) -> int:
    """How many experts there are, which the tensors that stack them must have; older files have a tensor for each."""
    n = f.whole("expert_count", 0)
    if n and "blk.0.ffn_gate.0.weight" in f.file.tensors:
        return n
    stacked = [t.shape[0] for name, t in f.file.tensors.items() if name.endswith("_exps.weight")]
    if n and set(stacked) != {n}:
        raise f.fail(f.name("expert_count"), f"is {n}; the tensors *_exps.weight stack {stacked[:1] or 'none'}")
    return n


def of_experts(f: GgufFacts) -> Config:
    """The sizes of experts that are as wide as the file says."""
    return {
        "num_experts": expert_count(f),
        "num_experts_per_tok": f.whole("expert_used_count", least=1),
        "moe_intermediate_size": f.whole("expert_feed_forward_length", least=1),
    }


def nextn_layers(f: GgufFacts) -> int:
    """The layers at the end that only draft further tokens (multi-token prediction)."""
    return f.whole("nextn_predict_layers", 0, most=max(0, f.whole("block_count", least=1) - 1))


def biased(f: GgufFacts, tensor: str) -> bool:
    """Has some layer this bias?"""
    return some(f, f"{tensor}.bias")


def shared_width(f: GgufFacts) -> int:
    """The rows of the experts that all rows pass, as their tensor has them; 0 if there are none."""
    return next((t.shape[0] for name, t in f.file.tensors.items() if name.endswith(".ffn_up_shexp.weight")), 0)


def state_heads(f: GgufFacts) -> tuple[int, int]:
    """The channels of a state-space block or one of the delta rule, and its heads."""
    inner, heads = f.whole("ssm.inner_size", least=1), f.whole("ssm.time_step_rank")
    if not heads or inner % heads:
        raise f.fail(f.name("ssm.inner_size"), f"{inner} is not whole times {heads} heads")
    return inner, heads


def without(found: Config, *keys: str) -> Config:
    return {key: value for key, value in found.items() if key not in keys}


def some(f: GgufFacts, tensor: str) -> bool:
    """Has some layer this tensor?"""
    return any(name.startswith("blk.") and name.split(".", 2)[-1] == tensor for name in f.file.tensors)


def pattern(f: GgufFacts, n: int, every: int) -> list[bool]:
    """Which layers have a window: all but every n-th, unless the file lists them."""
    if f.has("attention.sliding_window_pattern"):
        values = f.each("attention.sliding_window_pattern", n)
        if type(f.file.metadata[f.name("attention.sliding_window_pattern")]) is not int:
            return [bool(value) for value in values]
        every = values[0] or n + 1
    return [(i + 1) % every != 0 for i in range(n)]
