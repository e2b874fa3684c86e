"""Writes a GGUF file of real geometry with random weights, for measuring speed beside llama.cpp.

    python tests/bench/gguf_geometry.py lfm2-1.2b lfm2.gguf

Sizes are those of the published configs (Qwen3.5-0.8B's text model, LFM2-1.2B, gpt-oss-20b). Matrices are Q4_0,
experts of gpt-oss MXFP4; blocks are drawn as bytes, so that no more memory is needed than the file has. gpt-oss-cut
has 3 of 24 layers and an eighth of the vocabulary, so that the head has its share of a step. The text of such a model
is noise; its cost is real.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gguf_architectures as architectures
import ggufs
from ggufs import Array, Drawn, gguf

QWEN: dict[str, Any] = {
    "vocab_size": 248320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": True,
}
LFM: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}
OSS: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_local_experts": 32,
    "vocab_size": 201088 // 8,
}
# The config's class, its sizes, llama.cpp's name, and metadata that `facts` writes for other sizes.
GEOMETRIES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "qwen3.5-0.8b": (
        "Qwen3_5TextConfig",
        QWEN,
        "qwen35",
        {"block_count": 24, "nextn_predict_layers": 0, "rope.dimension_sections": [11, 11, 10, 0]},
    ),
    "lfm2-1.2b": ("Lfm2Config", LFM, "lfm2", {}),
    "gpt-oss-cut": ("GptOssConfig", OSS, "gpt-oss", {}),
}


def write(geometry: str, out: Path) -> None:
    kind, sizes, arch, changed = GEOMETRIES[geometry]
    config = getattr(transformers, kind)(**sizes)
    writer = gguf.GGUFWriter(out, arch)
    if arch == "lfm2":
        ggufs._metadata(writer, config, arch)
        tensors = ggufs.converted(shapes(config), arch)
    else:
        for key, value in (architectures.facts(config) | changed).items():
            ggufs.add_value(writer, f"{arch}.{key}", value)
        tensors = architectures.converted(shapes(config), arch)
    ggufs.add_value(writer, "tokenizer.ggml.model", "llama")  # llama.cpp opens no file without names of tokens
    ggufs.add_value(writer, "tokenizer.ggml.tokens", [f"<{i}>" for i in range(config.vocab_size)])
    for name, like in tensors.items():
        add_drawn(writer, name, like)
    ggufs.finish(writer)
    print(f"{out}: {out.stat().st_size / 1e9:.2f} GB", file=sys.stderr)


def shapes(config: Any) -> Drawn:
    """The model with tensors that take no memory."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return Drawn(config, {name: torch.zeros(()).expand(t.shape) for name, t in model.state_dict().items()})  # type: ignore[misc]


def add_drawn(writer: Any, name: str, like: Array) -> None:
    """A random tensor of a shape: norms about one, decays negative, matrices of about 1 / sqrt(width)."""
    rng = np.random.default_rng(crc32(name.encode()))
    if like.ndim == 1 or like.shape[-1] % 32 or name.endswith(".bias") or "ffn_gate_inp" in name:
        values = rng.standard_normal(like.shape, np.float32) * np.float32(0.02)
        if name.endswith("ssm_a"):
            values = -rng.uniform(1, 16, like.shape).astype(np.float32)
        writer.add_tensor(name, values + np.float32("norm" in name))
        return
    kind = "MXFP4" if name.endswith("_exps.weight") else "Q4_0"
    number = gguf.GGMLQuantizationType[kind]
    per, size = gguf.GGML_QUANT_SIZES[number]
    blocks = rng.integers(0, 256, (like.size // per, size), np.uint8)
    if kind == "MXFP4":  # a byte of exponent: 2 ** (e - 128) / sqrt(width), of values up to 12
        blocks[:, 0] = 128 - 2 - round(np.log2(like.shape[-1]) / 2) - rng.integers(0, 2, len(blocks))
    else:
        step = rng.uniform(0.5, 1.0, (len(blocks), 1)) / (4.6 * like.shape[-1] ** 0.5)
        blocks[:, :2] = step.astype(np.float16).view(np.uint8)
    writer.add_tensor(name, blocks.reshape(*like.shape[:-1], -1), raw_dtype=number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("geometry", choices=sorted(GEOMETRIES))
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    write(arguments.geometry, arguments.out)
