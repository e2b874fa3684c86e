"""What `gguf_architectures` writes of Gemma 4; as `gguf_mixtures`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import zoo
from gguf_mixtures import Array, Tensors, experts, layer


def _model(seed: int, **config: Any) -> Any:
    """Transformers asks for leave to read sizes of heads that differ between layers."""
    found = zoo._gemma4(config, seed)
    found.config.allow_global_per_layer_attribute_access = True
    return found


EXPERTS = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 16}
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "gemma4": ("gemma4", lambda: _model(1, **zoo.GEMMA4)),
    "gemma4_wide": ("gemma4", lambda: _model(2, **zoo.GEMMA4 | {"use_double_wide_mlp": True})),
    "gemma4_large": ("gemma4", lambda: _model(3, **zoo.GEMMA4_LARGE)),
    "gemma4_experts": ("gemma4", lambda: _model(4, **zoo.GEMMA4_LARGE | EXPERTS)),
}


def own(c: Any) -> dict[str, Any]:
    """The metadata of such a model, but for what all have."""
    if c.model_type != "gemma4_text":
        return {}
    slides = [kind == "sliding_attention" for kind in c.layer_types]
    n, said = len(slides), c.to_dict()["per_layer_config"]
    full = said[str(slides.index(False))]
    shared, inner, kv = c.num_kv_shared_layers, c.intermediate_size, c.num_key_value_heads
    ropes = c.rope_parameters
    found = {
        "attention.key_length": full["head_dim"],
        "attention.value_length": full["head_dim"],
        "attention.key_length_swa": c.head_dim,
        "attention.value_length_swa": c.head_dim,
        "attention.head_count_kv": [kv if on else full.get("num_key_value_heads", kv) for on in slides],
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": c.hidden_size_per_layer_input,
        "final_logit_softcapping": float(c.final_logit_softcapping),
        "rope.dimension_count": full["head_dim"],
        "rope.dimension_count_swa": c.head_dim,
        "rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
    }
    if c.use_double_wide_mlp:
        found["feed_forward_length"] = [inner] * (n - shared) + [2 * inner] * shared
    if c.enable_moe_block:
        found |= experts(c.num_experts, c.top_k_experts, c.moe_intermediate_size)
    return found


def divisors(c: Any) -> dict[str, Array]:
    """Of the pairs of a full layer's head, those that do not turn are divided by a number without end."""
    if c.model_type != "gemma4_text":
        return {}
    kinds, said = list(c.layer_types), c.to_dict()["per_layer_config"]
    half = said[str(kinds.index("full_attention"))]["head_dim"] // 2
    turned = int(half * c.rope_parameters["full_attention"]["partial_rotary_factor"])
    return {"rope_freqs.weight": np.array([1.0] * turned + [1e30] * (half - turned), np.float32)}


def changed(name: str, values: Array, names: gguf.TensorNameMap, c: Any) -> Tensors | None:
    """A tensor by ggml's name as the converter writes it; None: as it writes all."""
    if c.model_type != "gemma4_text":
        return None
    for ours, theirs in (("router.scale", "ffn_gate_inp.scale"), ("per_expert_scale", "ffn_down_exps.scale")):
        if name.endswith(ours):
            return [(f"{layer(name)}.{theirs}", values)]
    stem = name.removesuffix(".weight")
    return [(f"{names.get_name(stem)}.weight", values)]
