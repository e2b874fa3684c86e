"""What `gguf_architectures` writes of Gemma 3n; as `gguf_mixtures`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import zoo
from gguf_mixtures import Array, Tensors

MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "gemma3n": ("gemma3n", lambda: zoo._gemma3n(zoo.GEMMA3N, 1)),
    "gemma3n_active": (
        "gemma3n",
        lambda: zoo._gemma3n(
            zoo.GEMMA3N
            | {"altup_num_inputs": 3, "altup_active_idx": 2, "rms_norm_eps": 1e-3}
            | {"rope_parameters": zoo.GEMMA3_ROPES},
            2,
        ),
    ),
}


def own(c: Any) -> dict[str, Any]:
    """The metadata of such a model, but for what all have."""
    if c.model_type != "gemma3n_text":
        return {}
    import torch

    ropes, normal = c.rope_parameters, torch.distributions.normal.Normal(0, 1)
    full = ropes["full_attention"]
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": float(full["factor"])} if "factor" in full else {}
    shares = torch.tensor(c.activation_sparsity_pattern, dtype=torch.float32)
    return scaling | {
        "feed_forward_length": list(c.intermediate_size),
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in c.layer_types],
        "attention.shared_kv_layers": c.num_kv_shared_layers,
        "embedding_length_per_layer_input": c.hidden_size_per_layer_input,
        "activation_sparsity_scale": [float(scale) for scale in normal.icdf(shares)],
        "altup.active_idx": c.altup_active_idx,
        "altup.num_inputs": c.altup_num_inputs,
        "final_logit_softcapping": float(c.final_logit_softcapping),
        "rope.freq_base": float(full["rope_theta"]),
        "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
    }


def together(model: Any) -> dict[str, Array]:
    """The projections of all streams but the first as one tensor of each kind, in order."""
    if model.config.model_type != "gemma3n_text":
        return {}
    found, state = {}, model.state_dict()
    for ours, theirs in (("altup_projections", "altup_proj"), ("altup_unembed_projections", "altup_unembd_proj")):
        each = [state[f"model.{ours}.{i}.weight"] for i in range(model.config.altup_num_inputs - 1)]
        found[f"{theirs}.weight"] = np.stack([values.float().numpy() for values in each])
    return found


def changed(name: str, values: Array, names: gguf.TensorNameMap, c: Any) -> Tensors | None:
    """A tensor by ggml's name as the converter writes it; None: as it writes all."""
    if c.model_type != "gemma3n_text":
        return None
    if re.search(r"altup_(unembed_)?projections", name):
        return []
    stem, _, end = name.rpartition(".")
    whole = name.endswith("_scale")
    return [(f"{names.get_name(name if whole else stem)}.{'weight' if whole else end}", values)]
