"""What the configs of transformers call the same numbers."""

from __future__ import annotations

from typing import Any

# The epsilon of norms; OLMo's and OPT's code has 1e-5.
_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")


def norm_eps(config: Any) -> float:
    return float(next((getattr(config, name) for name in _EPS if hasattr(config, name)), 1e-5))


def kv_heads(config: Any) -> int:
    """As many as heads where there is no name for them."""
    if hasattr(config, "multi_query") and not getattr(config, "new_decoder_architecture", False):
        return 1 if config.multi_query else int(config.num_attention_heads)
    found = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None)
    return int(found or config.num_attention_heads)


def delta_sizes(config: Any) -> tuple[int, int]:
    """Heads of values and the width of a key of the delta rule."""
    if hasattr(config, "linear_num_heads"):
        return int(config.linear_num_heads), int(config.linear_head_dim)
    return int(config.linear_num_value_heads), int(config.linear_key_head_dim)
