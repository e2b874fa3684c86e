"""A random gpt-oss whose experts are stored as they are published, with the floats that they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo_golden
from numpy.typing import NDArray

from edgedec.export.checkpoint import Checkpoint

save_file = pytest.importorskip("safetensors.numpy", reason="checkpoints are written with safetensors").save_file

E, HIDDEN, INNER = 3, 64, 32
SIGNED = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
SIGNED += [-value for value in SIGNED]
SETTINGS = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
# Of scales of about 1, and of weights of about 1 / sqrt(HIDDEN).
USUAL, SMALL = (120, 128), (121, 124)
Bytes, Floats = NDArray[np.uint8], NDArray[np.float32]


def packed(seed: int, out: int, width: int, exponents: tuple[int, int] = USUAL) -> tuple[Bytes, Bytes, Floats]:
    """Blocks, scales, and the values [experts, in, out] that they mean."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (E, out, width // 32, 16), np.uint8)
    scales = rng.integers(*exponents, (E, out, width // 32), np.uint8)
    return blocks, scales, meant(blocks, scales)


def meant(blocks: Bytes, scales: Bytes) -> Floats:
    """The values [experts, in, out], one at a time."""
    experts, out, groups, _ = blocks.shape
    values = np.zeros((experts, groups * 32, out), np.float32)
    for e, row, group, byte in np.ndindex(blocks.shape):
        for half, code in enumerate((blocks[e, row, group, byte] & 15, blocks[e, row, group, byte] >> 4)):
            scale = 2.0 ** (int(scales[e, row, group]) - 127)
            values[e, 32 * group + 2 * byte + half, row] = SIGNED[code] * scale
    return values


def tensors(exponents: tuple[int, int] = USUAL, size: float = 1.0) -> tuple[dict[str, Any], ...]:
    """A config, and its tensors as published and as floats; size: of matrices that are no experts."""
    golden = zoo_golden.golden("gpt_oss")
    config = golden.config | {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_local_experts": E}
    config |= {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    rng, floats, published = np.random.default_rng(0), dict[str, Any](), dict[str, Any]()
    for name, shape in golden.tensors.items():
        if ".layers." in name and ".layers.0." not in name:
            continue
        sizes = list(shape)
        if "experts" in name or "router" in name:
            sizes[0] = E
        if name.endswith("gate_up_proj_bias"):
            sizes[1] = 2 * INNER
        times = size if len(sizes) > 1 else 1.0
        floats[name] = (times * rng.standard_normal(sizes)).astype(np.float32)
        published[name] = floats[name]
    for part, out, width in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
        name = f"model.layers.0.mlp.experts.{part}"
        blocks, scales, values = packed(len(part), out, width, exponents)
        del published[name]
        published |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        floats[name] = values
    return config, published, floats


def written(folder: Path, config: dict[str, Any], found: dict[str, Any]) -> Checkpoint:
    """A checkpoint's folder."""
    folder.mkdir()
    save_file(found, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint.open(folder)
