"""From an empty cache folder to the first token of a 135 M GGUF file: seconds, on two cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import ggufs
import numpy as np
import pytest
from ggufs import add_value, gguf

pytestmark = pytest.mark.skipif(
    not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="a model of 135 M: EDGEDEC_SLOW_TESTS=1"
)
HIDDEN, INNER, LAYERS, HEADS, KV = 576, 1536, 30, 9, 3  # SmolLM2-135M
FACTS: dict[str, Any] = {
    "block_count": LAYERS, "context_length": 2048, "embedding_length": HIDDEN, "feed_forward_length": INNER,
    "attention.head_count": HEADS, "attention.head_count_kv": KV, "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": 64, "rope.freq_base": 10000.0,
}  # fmt: skip


def matrix(rng: np.random.Generator, rows: int, width: int, kind: str) -> Any:
    """Random integers with scales that keep the sums near one, uint8 [rows, bytes of a row]."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (rows, width // block, size), np.uint8)
    raw[:, :, :2] = np.array([2.0**-9 if kind == "Q4_0" else 2.0**-12], np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def write(path: Path, kind: str, data: Path) -> Path:
    """A random Llama of SmolLM2-135M's sizes with GPT-2's vocabulary."""
    tokens = sorted((vocab := json.loads((data / "tokenizers/gpt2/vocab.json").read_text())), key=vocab.get)
    merges = [line for line in (data / "tokenizers/gpt2/merges.txt").read_text().splitlines()[1:] if line]
    writer, rng, number = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0), gguf.GGMLQuantizationType[kind]
    for key, value in FACTS.items():
        add_value(writer, f"llama.{key}", value)
    text = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": merges, "eos_token_id": len(tokens) - 1}
    for key, value in text.items():
        add_value(writer, f"tokenizer.ggml.{key}", value)
    shapes = {
        "attn_q": (HIDDEN, HIDDEN), "attn_k": (64 * KV, HIDDEN), "attn_v": (64 * KV, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    for i in range(LAYERS):
        for name, (n, k) in shapes.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", matrix(rng, n, k, kind), raw_dtype=number)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("token_embd.weight", matrix(rng, len(tokens), HIDDEN, kind), raw_dtype=number)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    ggufs.finish(writer)
    return path


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="two cores of this machine are chosen")
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_the_first_token(kind: str, tmp_path: Path, data: Path) -> None:
    path = write(tmp_path / "m.gguf", kind, data)
    command = [sys.executable, "-m", "edgedec", "run", "-m", str(path), "-p", "Once upon a time", "-n", "1"]
    environment, cores = os.environ | {"EDGEDEC_CACHE": str(tmp_path / "cache")}, sorted(os.sched_getaffinity(0))[:2]

    def seconds() -> float:
        began = monotonic()
        subprocess.run(
            command,
            env=environment,
            check=True,
            capture_output=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        return monotonic() - began

    first, later = seconds(), min(seconds() for _ in range(5))
    print(f"{kind}, {path.stat().st_size / 1e6:.0f} MB: {first:.1f} s, then {later:.2f} s")
    assert later < first
    assert list((tmp_path / "cache" / "gguf").glob("m-*/edgedec.json"))
