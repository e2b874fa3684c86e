"""gpt-oss's experts as they are published: 4-bit floats in blocks, read as the floats that they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo_golden

from edgedec.errors import BadTensor
from edgedec.export.checkpoint import Checkpoint

save_file = pytest.importorskip("safetensors.numpy", reason="checkpoints are written with safetensors").save_file

E, HIDDEN, INNER = 3, 64, 32
SIGNED = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
SIGNED += [-value for value in SIGNED]


def packed(seed: int, out: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks, scales, and the values [experts, in, out] that they mean, one value at a time."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (E, out, width // 32, 16), np.uint8)
    scales = rng.integers(120, 128, (E, out, width // 32), np.uint8)
    values = np.zeros((E, width, out), np.float32)
    for e, row, group, byte in np.ndindex(blocks.shape):
        for half, code in enumerate((blocks[e, row, group, byte] & 15, blocks[e, row, group, byte] >> 4)):
            scale = 2.0 ** (int(scales[e, row, group]) - 127)
            values[e, 32 * group + 2 * byte + half, row] = SIGNED[code] * scale
    return blocks, scales, values


def tensors() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A config, and its tensors as published and as floats."""
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
        floats[name] = rng.standard_normal(sizes).astype(np.float32)
        published[name] = floats[name]
    for part, out, width in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
        name = f"model.layers.0.mlp.experts.{part}"
        blocks, scales, values = packed(len(part), out, width)
        del published[name]
        published |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        floats[name] = values
    return config, published, floats


def written(folder: Path, config: dict[str, Any], found: dict[str, Any]) -> Checkpoint:
    folder.mkdir()
    save_file(found, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint.open(folder)


def test_blocks_are_the_floats_that_they_mean(tmp_path: Path) -> None:
    config, published, floats = tensors()
    plain = written(tmp_path / "floats", config, floats)
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    quantized = written(tmp_path / "mxfp4", config | {"quantization_config": settings}, published)
    spec = quantized.spec()
    sources = quantized.weights(spec)
    for name in ("blocks.1.gate_up", "blocks.1.down"):
        rows = spec.tensors()[name][0]
        expected = plain.read(plain.weights(spec)[name], 0, rows)
        assert expected.std() > 0.1
        np.testing.assert_array_equal(quantized.read(sources[name], 0, rows), expected)
        cut = rows // 2 + 5  # of one expert, and across two
        np.testing.assert_array_equal(quantized.read(sources[name], 7, cut), expected[7:cut])
    gate = plain.read(plain.weights(spec)["blocks.1.gate_up"], 0, INNER)
    np.testing.assert_array_equal(gate, floats["model.layers.0.mlp.experts.gate_up_proj"][0].T[::2])
    assert quantized.suggested([sources["blocks.1.down"]]) == "int4"


def test_damaged_blocks_are_refused(tmp_path: Path) -> None:
    config, published, _ = tensors()
    config |= {"quantization_config": {"quant_method": "mxfp4"}}
    name = "model.layers.0.mlp.experts.down_proj"
    short = published | {f"{name}_scales": published[f"{name}_scales"][:, :-1].copy()}
    with pytest.raises(BadTensor, match=r"down_proj_scales: has shape \[3, 63, 1\], expected \[3, 64, 1\]"):
        written(tmp_path / "short", config, short)
    with pytest.raises(BadTensor, match="down_proj_scales: missing"):
        written(tmp_path / "none", config, {k: v for k, v in published.items() if k != f"{name}_scales"})
    nan = published[f"{name}_scales"].copy()
    nan[0, 3, 0] = 255
    checkpoint = written(tmp_path / "nan", config, published | {f"{name}_scales": nan})
    with pytest.raises(BadTensor, match="down_proj_scales: holds values that are not numbers"):
        checkpoint.read(checkpoint.weights(checkpoint.spec())["blocks.1.down"], 0, 1)


def test_blocks_are_what_transformers_makes_of_them() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4", reason="needs transformers")
    blocks, scales, values = packed(5, 48, 64)
    made = mxfp4.convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32)
    np.testing.assert_array_equal(made.numpy(), values)
