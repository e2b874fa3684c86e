"""NVFP4 weights: values worked by hand, the integers that a bundle has of them, and tensors that are none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from raw_tensors import Raw, stored

from edgedec.errors import BadTensor
from edgedec.export.quantized._nvfp4 import Nvfp4Matrix, nvfp4
from edgedec.export.quantized._stack import OwnPart, own_format
from edgedec.export.quantized.compressed_tensors import matrices as of_compressor
from edgedec.export.quantized.modelopt import matrices as of_modelopt
from edgedec.export.safetensors import read_header
from edgedec.models import Part

EVERY = bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE])  # codes 0 to 15, the first in the low nibble
VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
# E4M3: 1, 1.5, 448, 2^-9, -2, not a number.
ONE, MORE, MOST, LEAST, NEGATIVE, NAN = 0x38, 0x3C, 0x7E, 0x01, 0xC0, 0x7F
HALF, DIVISOR = np.float32(0.5).tobytes(), np.float32(2).tobytes()


def raw(scales: bytes = bytes([ONE, MORE, LEAST, NEGATIVE]), whole: bytes = HALF) -> Raw:
    """Two outputs of 32 inputs."""
    return {
        "m.weight": ("U8", (2, 16), EVERY * 4),
        "m.weight_scale": ("F8_E4M3", (2, 2), scales),
        "m.weight_scale_2": ("F32", (), whole),
    }


def opened(folder: Path, found: Raw, divides: bool = False) -> Nvfp4Matrix:
    return nvfp4("m.weight", "m.weight_scale", "m.weight_scale_2", stored(folder, found), divides)


def test_values_worked_by_hand(tmp_path: Path) -> None:
    matrix = opened(tmp_path, raw())
    assert (matrix.shape, matrix.dtype, matrix.suggested) == ((2, 32), "NVFP4", "int8")
    wanted = [[0.5 * s * v for s in pair for v in VALUES] for pair in ((1, 1.5), (2.0**-9, -2))]
    np.testing.assert_array_equal(matrix.floats(0, 2), np.array(wanted, np.float32))
    np.testing.assert_array_equal(matrix.floats(1, 2), np.array(wanted[1:], np.float32))
    np.testing.assert_array_equal(opened(tmp_path, raw(whole=DIVISOR), divides=True).floats(0, 2), matrix.floats(0, 2))


def test_a_quotient_is_rounded_once(tmp_path: Path) -> None:
    """A number that divides is not the same as its inverse that multiplies."""
    whole, scale = np.float32(13), np.float32(1.5)
    assert scale / whole != scale * (np.float32(1) / whole)
    found = opened(tmp_path, raw(whole=whole.tobytes()), divides=True).floats(0, 2)
    np.testing.assert_array_equal(found[0, 16:], np.array(VALUES, np.float32) * (scale / whole))


def test_the_integers_of_a_bundle(tmp_path: Path) -> None:
    matrix = opened(tmp_path, raw())
    assert (matrix.own, matrix.block, matrix.offsets, matrix.exact) == ("int8", 16, False, True)
    assert matrix.holds(Part("m.weight"))
    assert not matrix.holds(Part("m.weight", transposed=True))
    data, scales, offsets = matrix.stored(Part("m.weight", rows=(1, 2), times=2.0), "int8", 0, 1)
    assert (data.dtype, data.shape) == (np.uint8, (1, 2, 16))
    assert data[0, 0].tolist() == [128 + round(2 * value) for value in VALUES]
    assert scales.tolist() == [[2.0**-10, -1.0]]  # half of 2^-9 * 0.5, and of -2 * 0.5, times 2
    assert offsets.tolist() == [[0, 0]]
    found = (data.astype(np.float32) - 128) * scales.astype(np.float32)[..., None]
    np.testing.assert_array_equal(found.reshape(1, 32), 2 * matrix.floats(1, 2))


def test_scales_that_float16_rounds_or_does_not_have(tmp_path: Path) -> None:
    tenth, large, larger = (np.float32(x).tobytes() for x in (0.1, 292, 293))
    assert not opened(tmp_path, raw(whole=tenth)).exact
    assert opened(tmp_path, raw(whole=tenth)).holds(Part("m.weight"))
    assert opened(tmp_path, raw(whole=large)).holds(Part("m.weight"))
    assert not opened(tmp_path, raw(whole=larger)).holds(Part("m.weight"))  # 448 * 293 / 2 > 65504
    # 2^-9 times 2^-15, halved, is 2^-25, which is rounded to zero.
    assert not opened(tmp_path, raw(whole=np.float32(2.0**-15).tobytes())).exact


def test_values_as_compressed_tensors_has_them(tmp_path: Path) -> None:
    """Rounded, packed and written by the package, and unpacked by it in float32."""
    torch = pytest.importorskip("torch", reason="needs torch")
    by_package = pytest.importorskip("nvfp4_models", reason="needs transformers").by_compressed_tensors()
    torch.manual_seed(0)
    parts, wanted = by_package(torch.randn(24, 64))
    pytest.importorskip("safetensors.torch").save_file({f"m{end}": part for end, part in parts.items()}, tmp_path / "m")
    matrix = of_compressor({"format": "nvfp4-pack-quantized"}, read_header(tmp_path / "m")).matrices["m.weight"]
    np.testing.assert_array_equal(matrix.floats(0, 24), wanted.numpy())
    np.testing.assert_array_equal(matrix.floats(5, 23), wanted[5:23].numpy())


DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"m.weight_scale": None}, r"m\.weight_scale: missing from the checkpoint"),
    ({"m.weight_scale_2": None}, r"m\.weight_scale_2: missing from the checkpoint"),
    ({"m.weight": ("I8", (2, 16), bytes(32))}, r"m\.weight: is I8 \[2, 16\], expected U8 of 2 axes"),
    ({"m.weight": ("U8", (32,), bytes(32))}, r"m\.weight: is U8 \[32\], expected U8 of 2 axes"),
    ({"m.weight": ("U8", (8, 4), bytes(32))}, r"has shape \[8, 4\]; rows of NVFP4 are whole 8 bytes"),
    ({"m.weight_scale": ("F8_E4M3", (4, 1), bytes(4))}, r"m\.weight_scale: has shape \[4, 1\], expected \[2, 2\]"),
    ({"m.weight_scale": ("U8", (2, 2), bytes(4))}, r"m\.weight_scale: is U8 \[2, 2\], expected F8_E4M3"),
    ({"m.weight_scale_2": ("F32", (2,), HALF * 2)}, r"m\.weight_scale_2: has shape \[2\], expected one number"),
    ({"m.weight_scale_2": ("F32", (), bytes(4))}, r"m\.weight_scale_2: 0\.0 is no scale"),
    ({"m.weight_scale_2": ("F32", (1,), b"\0\0\xc0\x7f")}, r"m\.weight_scale_2: nan is no scale"),
    ({"m.weight_scale_2": ("U8", (1,), b"\1")}, r"m\.weight_scale_2: U8 is not supported"),
]


@pytest.mark.parametrize(("change", "words"), DAMAGED, ids=[words for _, words in DAMAGED])
def test_tensors_that_are_no_nvfp4(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    found = {name: one for name, one in (raw() | change).items() if one is not None}
    with pytest.raises(BadTensor, match=words) as caught:
        opened(tmp_path, found)
    assert "\n" not in str(caught.value)


def test_a_scale_that_is_not_a_number(tmp_path: Path) -> None:
    found = opened(tmp_path, raw(bytes([ONE, NAN, ONE, ONE]))).floats(0, 2)
    assert np.isnan(found[0, 16:]).all()
    assert np.isfinite(found[1]).all()


def test_modules_of_both_programs(tmp_path: Path) -> None:
    """What is used, what is of no use, and FP8 beside NVFP4."""
    eight = {"f.weight": ("F8_E4M3", (1, 2), bytes([ONE, MOST])), "f.weight_scale": ("F32", (), HALF)}
    others = {"m.input_scale": ("F32", (), HALF), "a.k_scale": ("F32", (), HALF), "m.bias": ("F32", (1,), HALF)}
    settings = {"quantization": {"quant_algo": "mixed_precision", "quantized_layers": {"m": {"quant_algo": "NVFP4"}}}}
    found = of_modelopt(settings, stored(tmp_path, raw() | eight | others))
    assert set(found.matrices) == {"m.weight", "f.weight"}
    np.testing.assert_array_equal(found.matrices["f.weight"].floats(0, 1), [[0.5, 224]])
    assert found.used == {*raw(), *eight}
    assert found.spare == {"m.input_scale", "a.k_scale"}
    mine = {
        "m.weight_packed": raw()["m.weight"],
        "m.weight_scale": raw()["m.weight_scale"],
        "m.weight_global_scale": ("F32", (1,), DIVISOR),
    }
    spare = {"m.input_global_scale": ("F32", (1,), HALF)}
    tensors = stored(tmp_path, mine | spare)
    for form in ("nvfp4-pack-quantized", "mixed-precision"):
        by_other = of_compressor({"format": form}, tensors)
        same, other = (of.matrices["m.weight"].floats(0, 2) for of in (found, by_other))
        np.testing.assert_array_equal(other, same)
        assert (by_other.used, by_other.spare) == (mine.keys(), spare.keys())
    zero = {"m.weight_zero_point": ("F8_E4M3", (2, 2), bytes(4))}
    with pytest.raises(BadTensor, match=r"m\.weight_zero_point: NVFP4 has no zero points"):
        of_compressor({"format": "nvfp4-pack-quantized"}, stored(tmp_path, mine | zero))


@pytest.mark.parametrize(
    ("parts", "held"),
    [
        ([], None),
        ([None], None),
        ([("int4", 32)], ("int4", 32)),
        ([("int4", 32), ("int8", 32)], ("int8", 32)),
        ([("int4", 32), None], ("int4", 32)),
        ([("int8", 16), ("int8", 32)], None),
        ([("mx4", 32), ("mx4", 32)], ("mx4", 32)),
        ([("mx4", 32), None], None),
        ([("mx4", 32), ("int8", 32)], None),
    ],
)
def test_the_format_that_holds_stacked_parts(parts: list[tuple[str, int] | None], held: tuple[str, int] | None) -> None:
    """Int8 also holds what int4 does, both what is rounded; a format that is never rounded to holds only its own."""
    matrices: list[Any] = [None if part is None else SimpleNamespace(own=part[0], block=part[1]) for part in parts]
    of = [OwnPart(matrix, Part("w"), 1, lambda start, stop: np.zeros((0, 0), np.float32)) for matrix in matrices]
    assert own_format(of) == held
