"""Readers of quantized checkpoints and of GGUF files hold a few million weights at a time, whatever the layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.bundle import Bundle

pytestmark = pytest.mark.skipif(not hasattr(os, "wait4"), reason="the peak of a child's memory is measured by wait4")
HIDDEN, INNER, FEW, MANY = 512, 2048, 2, 12
LAYER = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER
SHAPES = {
    **{f"self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"},
    **{f"mlp.{part}_proj": (INNER, HIDDEN) for part in ("gate", "up")},
    "mlp.down_proj": (HIDDEN, INNER),
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}
ENDS = {"model.embed_tokens.weight": (256, HIDDEN), "lm_head.weight": (256, HIDDEN), "model.norm.weight": (HIDDEN,)}


def norms(layers: int) -> dict[str, tuple[int, ...]]:
    parts = ("input_layernorm", "post_attention_layernorm")
    return {f"model.layers.{i}.{part}.weight": (HIDDEN,) for i in range(layers) for part in parts} | ENDS


def gptq(path: Path, layers: int) -> Path:
    safetensors = pytest.importorskip("safetensors.numpy", reason="written with safetensors")
    rng, tensors = np.random.default_rng(0), dict[str, Any]()
    for module, (n, k) in SHAPES.items():
        for i in range(layers):
            of, groups = f"model.layers.{i}.{module}", k // 64
            tensors[f"{of}.qweight"] = rng.integers(0, 2**31, (k // 8, n), np.int32)
            tensors[f"{of}.qzeros"] = rng.integers(0, 2**31, (groups, n // 8), np.int32)
            tensors[f"{of}.scales"] = np.full((groups, n), 2.0**-8, np.float16)
    tensors |= {name: np.ones(shape, np.float16) for name, shape in norms(layers).items()}
    path.mkdir()
    safetensors.save_file(tensors, path / "model.safetensors")
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False}
    config = CONFIG | {"num_hidden_layers": layers, "quantization_config": settings}
    (path / "config.json").write_text(json.dumps(config))
    return path


def gguf_file(kind: str) -> Callable[[Path, int], Path]:
    def write(path: Path, layers: int) -> Path:
        pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")
        import ggufs

        rng, number = np.random.default_rng(0), ggufs.gguf.GGMLQuantizationType[kind]
        block, size = ggufs.gguf.GGML_QUANT_SIZES[number]
        writer = ggufs.gguf.GGUFWriter(path, "llama")
        ggufs._metadata(writer, SimpleNamespace(**CONFIG, num_hidden_layers=layers), "llama")
        tokens = [f"<0x{i:02X}>" for i in range(256)]
        writer.add_tokenizer_model("llama"), writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 256), writer.add_token_types([6] * 256)
        for module, (n, k) in SHAPES.items():
            data = rng.integers(0, 256, (n, k // block, size), np.uint8)
            data[:, :, :2] = np.frombuffer(np.float16(2.0**-8).tobytes(), np.uint8)  # its scale
            data[:, :, 2:4] = data[:, :, :2] if kind == "Q4_K" else data[:, :, 2:4]
            for i in range(layers):
                name = f"blk.{i}.{ggufs.NAMES[module]}.weight"
                writer.add_tensor(name, data.reshape(n, -1), raw_dtype=number)
        for name, shape in norms(layers).items():
            where, _, part = name.removeprefix("model.layers.").partition(".")
            own = {"input_layernorm.weight": "attn_norm", "post_attention_layernorm.weight": "ffn_norm"}.get(part)
            full = f"blk.{where}.{own}.weight" if own else ggufs.OUTER[name]
            writer.add_tensor(full, np.ones(shape, np.float32))
        ggufs.finish(writer)
        return path

    return write


def peak(source: Path, out: Path) -> int:
    """The most bytes that the command held at a time while it exported the source."""
    command = [sys.executable, "-m", "edgedec", "export", str(source), "-o", str(out), "--no-check", "--for", "native"]
    # One thread: pools of threads keep memory of their own.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize(
    ("write", "suffix"),
    [(gptq, ""), (gguf_file("Q4_0"), ".gguf"), (gguf_file("Q4_K"), ".gguf")],
    ids=["gptq", "Q4_0", "Q4_K"],
)
def test_memory_does_not_grow_with_layers(write: Callable[[Path, int], Path], suffix: str, tmp_path: Path) -> None:
    found = {}
    for layers in (FEW, MANY):
        source, out = write(tmp_path / f"{layers}{suffix}", layers), tmp_path / f"bundle-{layers}"
        found[layers] = peak(source, out)
        bundle = Bundle.open(out)
        assert len(bundle.spec.blocks) == 2 * layers
        assert bundle.manifest.tensors["blocks.0.qkv"].format == "int4"
    more = (MANY - FEW) * LAYER * 4  # bytes of what is new, as floats: 168 MB
    assert found[MANY] - found[FEW] < more / 4  # what is mapped of the new file, an eighth, is counted too
