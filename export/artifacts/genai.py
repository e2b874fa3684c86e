"""genai_config.json and the graph of the whole model: the files that onnxruntime-genai needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgedec.bundle.manifest import Artifact, Text
from edgedec.export.artifacts import ArtifactFacts, Request
from edgedec.export.onnx import whole_model_reason, write_whole_model
from edgedec.spec import ModelSpec

FACTS = ArtifactFacts(low_bits=True)
CONFIG = "genai_config.json"
_GREEDY = {
    "do_sample": False,
    "max_length": 0,
    "min_length": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "past_present_share_buffer": True,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 1,
    "top_p": 1.0,
}


def reason(spec: ModelSpec) -> str | None:
    """Why onnxruntime-genai cannot run the model; None if it can."""
    return whole_model_reason(spec)


def write(folder: Path, request: Request) -> Artifact:
    """Write the graph and the config into `folder`."""
    model = write_whole_model(folder, request.layout, request.model_kv)
    config = _config(request.layout.spec, request.text, model)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return Artifact((CONFIG, model), {"model": model})


def _config(spec: ModelSpec, text: Text, model: str) -> dict[str, Any]:
    eos: int | list[int] = list(text.eos) if len(text.eos) > 1 else text.eos[0] if text.eos else 0
    first = eos if isinstance(eos, int) else eos[0]
    return {
        "model": {
            # The pipeline to use, not the architecture: a decoder with a KV cache.
            "type": "llama",
            "bos_token_id": first if text.bos is None else text.bos,
            "eos_token_id": eos,
            "pad_token_id": first,
            "context_length": spec.context_length,
            "vocab_size": spec.vocab_size,
            "decoder": _decoder(spec, model),
        },
        "search": _GREEDY | {"max_length": spec.context_length},
    }


def _decoder(spec: ModelSpec, model: str) -> dict[str, Any]:
    attention = next(iter(spec.attention.values()))
    return {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": model,
        "head_size": attention.head_dim,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": attention.n_heads,
        "num_hidden_layers": len(spec.attention),
        "num_key_value_heads": attention.n_kv_heads,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
