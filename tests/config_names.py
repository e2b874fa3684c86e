"""What the configs of transformers call the same numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

# The epsilon of norms; OLMo's and OPT's code has 1e-5.
_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
# Of older families, by what the others call them.
_OLDER = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_experts_per_tok": ("moe_k", "moe_topk", "num_experts_per_token"),
}


def named(config: dict[str, Any]) -> Any:
    """A config file's text model under the names that transformers gives its numbers."""
    text = config.get("text_config", config)
    known = {name: text[old] for name, others in _OLDER.items() for old in others if old in text}
    if "layers_block_type" in text:
        known["num_hidden_layers"] = len(text["layers_block_type"])
    if "per_layer_config" in text:
        layers = (text["per_layer_config"].get(str(i), {}) for i in range(text["num_hidden_layers"]))
        known["per_layer_config"] = [SimpleNamespace(**text | layer) for layer in layers]
    return SimpleNamespace(**text | known)


def norm_eps(config: Any) -> float:
    return float(next((getattr(config, name) for name in _EPS if hasattr(config, name)), 1e-5))


def kv_heads(config: Any) -> int:
    """As many as heads where there is no name for them. Of pairs of heads one is meant."""
    if hasattr(config, "mb_per_layer") or hasattr(config, "lambda_std_dev"):
        return int(config.num_key_value_heads) // 2
    if hasattr(config, "multi_query") and not getattr(config, "new_decoder_architecture", False):
        return 1 if config.multi_query else int(config.num_attention_heads)
    found = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None)
    return int(found or config.num_attention_heads)


def delta_sizes(config: Any) -> tuple[int, int]:
    """Heads of values and the width of a key of the delta rule."""
    if hasattr(config, "linear_num_heads"):
        return int(config.linear_num_heads), int(config.linear_head_dim)
    return int(config.linear_num_value_heads), int(config.linear_key_head_dim)
