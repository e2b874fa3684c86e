"""gpt-oss's experts as they are published: 4-bit floats in blocks, read as the floats that they mean, and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mxfp4_models import HIDDEN, INNER, SETTINGS, E, meant, packed, tensors, written

from edgedec.bundle import Bundle
from edgedec.bundle.integers import MX4_VALUES
from edgedec.cli.inspect import integers_kept
from edgedec.errors import BadTensor
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.quantize import quantize
from edgedec.export.quantized.mxfp4 import VALUES, in_halves

GATE_UP, DOWN = (f"model.layers.0.mlp.experts.{part}_proj" for part in ("gate_up", "down"))
OPTIONS = ExportOptions(check=False, runtimes=("native",))


def test_blocks_are_the_floats_that_they_mean(tmp_path: Path) -> None:
    config, published, floats = tensors()
    plain = written(tmp_path / "floats", config, floats)
    quantized = written(tmp_path / "mxfp4", config | {"quantization_config": SETTINGS}, published)
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
    np.testing.assert_array_equal(gate, floats[GATE_UP][0].T[::2])
    assert quantized.suggested([sources["blocks.1.down"]]) == "int4"


def test_damaged_blocks_are_refused(tmp_path: Path) -> None:
    config, published, _ = tensors()
    config |= {"quantization_config": {"quant_method": "mxfp4"}}
    short = published | {f"{DOWN}_scales": published[f"{DOWN}_scales"][:, :-1].copy()}
    with pytest.raises(BadTensor, match=r"down_proj_scales: has shape \[3, 63, 1\], expected \[3, 64, 1\]"):
        written(tmp_path / "short", config, short)
    with pytest.raises(BadTensor, match="down_proj_scales: missing"):
        written(tmp_path / "none", config, {k: v for k, v in published.items() if k != f"{DOWN}_scales"})
    nan = published[f"{DOWN}_scales"].copy()
    nan[0, 3, 0] = 255
    checkpoint = written(tmp_path / "nan", config, published | {f"{DOWN}_scales": nan})
    with pytest.raises(BadTensor, match="down_proj_scales: holds values that are not numbers"):
        checkpoint.read(checkpoint.weights(checkpoint.spec())["blocks.1.down"], 0, 1)
    with pytest.raises(BadTensor, match="down_proj_scales: holds values that are not numbers"):
        export(str(tmp_path / "nan"), tmp_path / "b", OPTIONS)


def test_blocks_are_what_transformers_makes_of_them() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4", reason="needs transformers")
    blocks, scales, values = packed(5, 48, 64)
    made = mxfp4.convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32)
    np.testing.assert_array_equal(made.numpy(), values)


@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_a_bundle_has_the_checkpoints_experts_to_the_bit(target: str, tmp_path: Path) -> None:
    config, published, floats = tensors()
    published[f"{GATE_UP}_scales"][0, 0] = 0  # of a block of zeros, as it is written
    published[f"{GATE_UP}_blocks"][0, 0] = 0x80
    floats[GATE_UP] = meant(published[f"{GATE_UP}_blocks"], published[f"{GATE_UP}_scales"])
    plain = written(tmp_path / "floats", config, floats)
    written(tmp_path / "mxfp4", config | {"quantization_config": SETTINGS}, published)
    bundle = export(
        str(tmp_path / "mxfp4"), tmp_path / "b", ExportOptions(check=False, target=target, runtimes=("native",))
    )
    for name, rows in (("blocks.1.gate_up", E * 2 * INNER), ("blocks.1.down", E * HIDDEN)):
        tensor = bundle.manifest.tensors[name]
        assert (tensor.format, tensor.block, tensor.stored_bytes * 8) == ("mx4", 32, rows * tensor.shape[1] * 4.5)
        expected = plain.read(plain.weights(bundle.spec)[name], 0, rows)
        assert expected.std() > 0.1
        np.testing.assert_array_equal(bundle.rows(name, 0, rows), expected)
        np.testing.assert_array_equal(bundle.gather(name, np.array([rows - 1, 37])), expected[[rows - 1, 37]])
    assert bundle.manifest.version == 9
    assert bundle.manifest.tensors["blocks.0.qkv"].format == "int4"  # of floats
    said = "mxfp4: the integers of 2 matrices kept (2 mx4 in blocks of 32), their scales as they were"
    assert integers_kept(bundle.manifest.source) == said


def test_another_format_is_quantized_anew(tmp_path: Path) -> None:
    config, published, _ = tensors()
    written(tmp_path / "mxfp4", config | {"quantization_config": SETTINGS}, published)
    for fmt in ("int4", "int8"):
        options = ExportOptions(check=False, weights=fmt, runtimes=("native",))
        assert export(str(tmp_path / "mxfp4"), tmp_path / fmt, options).manifest.tensors["blocks.1.down"].format == fmt


# ---- scales that float16 does not have ------------------------------------------------------------------

EVERY = np.arange(32, dtype=np.uint8)[None] % 16


@pytest.mark.parametrize("exponent", [104, 105, 127, 143])
def test_scales_of_float16_stay(exponent: int) -> None:
    codes, scales, exact = in_halves(EVERY, np.array([exponent], np.uint8), "w")
    assert exact
    np.testing.assert_array_equal(codes, EVERY)
    assert scales.astype(np.float16).astype(np.float64) == [2.0 ** (exponent - 128)]


# Codes of 0 0.5 1 1.5 2 3 4 6 that another power of two has as well.
MOVED = [(103, [0, 2, 4, 5, 6, 7]), (102, [0, 4, 6, 7]), (101, [0, 6]), (144, [0, 1, 2, 3, 4, 5]), (145, [0, 1, 2, 3])]


@pytest.mark.parametrize(("exponent", "codes"), [*MOVED, (146, [0, 1]), (0, [0]), (254, [0])])
def test_values_take_the_rest_of_the_power(exponent: int, codes: list[int]) -> None:
    both = [code | sign for sign in (0, 8) for code in codes]
    block = np.resize(np.array(both, np.uint8), (1, 32))
    found, scales, exact = in_halves(block, np.array([exponent], np.uint8), "w")
    assert exact
    halves = scales.astype(np.float16)
    assert np.isfinite(halves).all()
    stored = MX4_VALUES[found] * halves.astype(np.float64)
    np.testing.assert_array_equal(stored[0], VALUES[block[0]] * 2.0 ** (exponent - 127))
    assert (codes == [0]) == (not stored.any())


@pytest.mark.parametrize("exponent", [103, 102, 100, 90])
def test_what_float16_cannot_scale_is_rounded_nearer_than_by_any_format(exponent: int) -> None:
    wanted = VALUES[EVERY].astype(np.float64) * 2.0 ** (exponent - 127)
    codes, scales, exact = in_halves(EVERY, np.array([exponent], np.uint8), "w")
    assert not exact
    error = np.abs(MX4_VALUES[codes] * scales.astype(np.float16).astype(np.float64) - wanted).max()
    assert 0 < error <= 2.0**-25
    for fmt, zero in (("int8", 128), ("int4", 8)):
        data, halves = quantize(wanted.astype(np.float32), fmt, 32)  # type: ignore[arg-type]
        found = data[0] if fmt == "int8" else np.stack([data[0] & 15, data[0] >> 4], axis=-1).reshape(1, -1)
        assert np.abs((found.astype(np.float64) - zero) * halves[0, 0] - wanted).max() >= error


def test_only_blocks_beyond_float16_are_rounded_and_it_is_said(tmp_path: Path) -> None:
    config, published, _ = tensors()
    small = published[f"{DOWN}_scales"].copy()
    small[1, 3, 0] = 103
    published[f"{DOWN}_blocks"][1, 3, 0] = 0x31  # of 0.5 and 1.5
    checkpoint = written(
        tmp_path / "m", config | {"quantization_config": SETTINGS}, published | {f"{DOWN}_scales": small}
    )
    bundle = export(str(tmp_path / "m"), tmp_path / "b", OPTIONS)
    name, row = "blocks.1.down", HIDDEN + 3
    wanted = checkpoint.read(checkpoint.weights(bundle.spec)[name], 0, E * HIDDEN)
    found = bundle.rows(name, 0, E * HIDDEN)
    assert (found != wanted).any(axis=1).nonzero()[0].tolist() == [row]
    assert np.abs(found[row] - wanted[row]).max() == 2.0**-25
    assert integers_kept(bundle.manifest.source).endswith("(2 mx4 in blocks of 32), their scales rounded to float16")


def test_weights_beyond_float16_are_refused(tmp_path: Path) -> None:
    config, published, _ = tensors()
    large = published[f"{DOWN}_scales"].copy()
    large[0, 0, 0] = 150
    written(tmp_path / "m", config | {"quantization_config": SETTINGS}, published | {f"{DOWN}_scales": large})
    with pytest.raises(BadTensor, match=r"down_proj_blocks: a weight beyond 393216, .* export with --weights f32"):
        export(str(tmp_path / "m"), tmp_path / "b", OPTIONS)
    assert not (tmp_path / "b").exists()
    whole = export(str(tmp_path / "m"), tmp_path / "b", ExportOptions(check=False, weights="f32", runtimes=("native",)))
    assert isinstance(whole, Bundle)
