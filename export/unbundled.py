"""A bundle back as a Hugging Face checkpoint, so that it can be trained: Llama, Qwen2 and Qwen3 with float weights.

A bundle has no config.json. One is written from its spec, and read again: if that is not the bundle's spec, the bundle
is refused. Rounded weights are refused, unless they stay as they are beside what is trained: training goes on from the
checkpoint that they were rounded from.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from edgedec.bundle import Bundle
from edgedec.errors import CheckpointError
from edgedec.export.text import COMPANIONS
from edgedec.models import architecture
from edgedec.spec import Attention, Mlp, ModelSpec

_FLOATS = "f32", "f16"


def unbundled(bundle: Bundle, folder: Path, frozen: bool = False) -> Path:
    """Write the checkpoint of a bundle into a folder. frozen: its weights are not trained."""
    name, spec = bundle.manifest.name, bundle.spec
    rounded = sorted({t.format for t in bundle.manifest.tensors.values()} - set(_FLOATS))
    if rounded and not frozen:
        raise CheckpointError(
            f"{name}: its weights are {', '.join(rounded)}, not floats; train the checkpoint that it was exported from"
        )
    config = _config(spec, bundle)
    try:
        model = architecture(config)
        same = model.spec(config, spec.context_length) == spec
    except CheckpointError:
        same = False
    if not same:
        raise CheckpointError(f"{name}: is no plain Llama, Qwen2 or Qwen3; train the checkpoint that it was made from")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict[str, torch.Tensor]()
    for part, source in model.weights(spec, config).items():
        rows, at = bundle.rows(part), 0
        for one, n in zip(source, _rows(spec, part, len(source)) or [len(rows)], strict=True):
            tensors[one.name] = torch.from_numpy(np.ascontiguousarray(rows[at : at + n]))
            at += n
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in ("tokenizer.json", *COMPANIONS):
        if (bundle.path / file).is_file():
            shutil.copyfile(bundle.path / file, folder / file)
    return folder


def _rows(spec: ModelSpec, part: str, n: int) -> list[int]:
    """The rows of each tensor that a weight of the bundle is stacked from; none if it is of one."""
    if n == 1:
        return []
    _, number, kind = part.split(".")
    block = spec.blocks[int(number)]
    if isinstance(block, Attention) and kind.startswith("qkv"):
        return [block.q_dim, block.kv_dim, block.kv_dim]
    assert isinstance(block, Mlp)
    return [block.inner_size] * n


def _config(spec: ModelSpec, bundle: Bundle) -> dict[str, Any]:
    """A config of which the spec may be read."""
    attention = next((b for b in spec.blocks if isinstance(b, Attention)), None)
    mlp = next((b for b in spec.blocks if isinstance(b, Mlp)), None)
    if attention is None or mlp is None or not spec.ropes:
        return {"model_type": spec.architecture}
    text = bundle.manifest.text
    found: dict[str, Any] = {
        "model_type": spec.architecture,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": mlp.inner_size,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": spec.context_length,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": _theta(spec.ropes[0].inv_freq),
        "hidden_act": "silu",
        "tie_word_embeddings": spec.tied,
        "torch_dtype": "float32",
        "bos_token_id": text.bos,
        "eos_token_id": list(text.eos) or None,
    }
    facts = bundle.manifest.diffusion
    if facts is not None:
        found["diffusion"] = {"mask": facts.mask, "shift": facts.shift, "context": facts.context, "block": facts.block}
    return found


def _theta(frequencies: tuple[float, ...]) -> float:
    """The base of rotary frequencies: the last of n is base ** -((n - 1) / n)."""
    n = len(frequencies)
    return float(round(frequencies[-1] ** (-n / (n - 1)))) if n > 1 else 10000.0
