"""What `gguf_architectures` writes of RWKV-7; as `gguf_mixtures`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import zoo
from gguf_mixtures import Array, Tensors, layer

# llama.cpp's norm of heads is that of 64 channels.
SIZES = {"head_dim": 64, "hidden_size": 128, "value_dim": [128] * 3, "norm_eps": 1e-5}
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "rwkv7": ("rwkv7", lambda: zoo._random("Rwkv7", "Rwkv7ForCausalLM", zoo.RWKV | SIZES, 1)),
}
LERPS = "rwkvag"


def own(c: Any) -> dict[str, Any]:
    return {
        "feed_forward_length": c.intermediate_size,
        "wkv.head_size": c.head_dim,
        "attention.head_count": 0,
        "attention.decay_lora_rank": c.decay_low_rank_dim,
        "attention.iclr_lora_rank": c.a_low_rank_dim,
        "attention.value_residual_mix_lora_rank": c.v_low_rank_dim,
        "attention.gate_lora_rank": c.gate_low_rank_dim,
    }


def together(model: Any) -> dict[str, Array]:
    """The shares of the row before, in one tensor for each layer."""
    if model.config.model_type != "rwkv7":
        return {}
    shares = {name: values.numpy() for name, values in model.state_dict().items() if ".attn.x_" in name}
    return {
        f"blk.{i}.time_mix_lerp_fused.weight": np.stack([shares[f"model.layers.{i}.attn.x_{one}"] for one in LERPS])
        for i in range(model.config.num_hidden_layers)
    }


def changed(name: str, values: Array, names: gguf.TensorNameMap, c: Any) -> Tensors | None:
    """A tensor by ggml's name as the converter writes it; None: as it writes all."""
    if c.model_type != "rwkv7":
        return None
    if ".attn.x_" in name:
        return []
    for theirs, ours in (
        ("ffn_norm", "ln2"), ("ffn", "feed_forward"), ("attn", "attention"), ("g_norm", "ln_x"),
        ("_lora.lora.0.weight", "1.weight"), ("_lora.lora.2.weight", "2.weight"), ("_lora.lora.2.bias", "0.weight"),
    ):  # fmt: skip
        name = name.replace(theirs, ours)
    stem = re.sub(r"\.(weight|bias)$", "", name)
    theirs = f"{names.get_name(stem)}.{'bias' if name.endswith('.bias') else 'weight'}"
    found = [(theirs, values.reshape(-1) if stem.endswith("r_k") else values)]
    if name.startswith("model.layers.0.") and "time_mix_a" in theirs:
        found.append((theirs.replace("time_mix_a", "time_mix_v"), values))
    assert layer(name) in theirs if ".layers." in name and "pre_norm" not in name else True
    return found
