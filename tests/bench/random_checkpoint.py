"""Writes a Hugging Face checkpoint of real geometry with random weights, for measuring speed and memory.

    python tests/bench/random_checkpoint.py llama-1b OUT

bf16, one file, streamed: the 2.5 GB of llama-1b need no more memory than one of its matrices.
The text of such a model is noise; its cost is real.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checkpoints import llama_shapes

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEOMETRIES = {
    # Llama 3.2 1B: 1.24 G parameters
    "llama-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    # SmolLM2 135M
    "smollm-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
}


def values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """bf16 as uint16: norms are ones, matrices normal with the usual spread of 0.02."""
    if len(shape) == 1:
        return np.full(shape, 0x3F80, np.uint16)
    floats = rng.standard_normal(shape, np.float32) * np.float32(0.02)
    return (floats.view(np.uint32) >> 16).astype(np.uint16)


def write(geometry: str, out: Path, seed: int = 0) -> None:
    config = LLAMA | GEOMETRIES[geometry]
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2))
    header, at = {}, 0
    for name, shape in llama_shapes(config).items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    rng = np.random.default_rng(seed)
    with (out / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for entry in header.values():
            rows = entry["shape"][0]
            step = max(1, (16 << 20) // int(np.prod(entry["shape"][1:], initial=1)))
            for start in range(0, rows, step):
                file.write(values(rng, (min(step, rows - start), *entry["shape"][1:])).tobytes())
    print(f"{out}: {at / 1e9:.2f} GB", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("geometry", choices=sorted(GEOMETRIES))
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    write(arguments.geometry, arguments.out)
