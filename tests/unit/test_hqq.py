"""HQQ weights: codes packed by hand, values as the package hqq has them, what a bundle keeps, and damaged modules."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_tensors import Raw, stored

from edgedec.bundle.integers import unpacked, values
from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.quantized.hqq import HqqMatrix, matrices
from edgedec.models import Part

KINDS = {8: "8bit_u8", 6: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1: "1bit_u8"}


def number(value: int) -> tuple[str, tuple[int, ...], bytes]:
    return "I32", (), np.int32(value).tobytes()


def halves(*shape: int, of: list[float]) -> tuple[str, tuple[int, ...], bytes]:
    return "F16", shape, np.array(of, np.float16).tobytes()


def raw(
    bits: int, group: int, axis: int, shape: tuple[int, int], data: Any, scale: list[float], zero: list[float]
) -> Raw:
    """A module whose packed rows are `data`."""
    data = np.asarray(data, np.int32 if bits == 3 else np.uint8)
    of = (len(scale), 1) if axis else (1, len(scale))
    name = KINDS[bits].encode()
    return {
        "m.W_q": ("I32" if bits == 3 else "U8", data.shape, data.tobytes()),
        "m.scale": halves(*of, of=scale),
        "m.zero": halves(*of, of=zero),
        "m.shape": ("I64", (2,), np.array(shape, np.int64).tobytes()),
        "m.nbits": number(bits),
        "m.group_size": number(group),
        "m.axis": number(axis),
        "m.packing": ("U8", (len(name),), name),
    }


FOUR = raw(4, 4, 1, (2, 4), [[0x1A, 0x2B, 0x3C, 0x4D]], [0.5, 2], [1.5, -1])


def opened(folder: Path, found: Raw, settings: dict[str, Any] | None = None) -> HqqMatrix:
    matrix = matrices(settings or {}, stored(folder, found)).matrices["m.weight"]
    assert isinstance(matrix, HqqMatrix)
    return matrix


# ---- values worked by hand ------------------------------------------------------------------------------

# (what is stored, codes [rows, columns] as grouped, scale and zero of each)
THREE = [[5 << 27 | 6 << 24, 1 << 27 | 7 << 24]]  # the highest two fields of ten; the rest fill up
BY_HAND: list[tuple[Raw, list[list[int]]]] = [
    (FOUR, [[1, 2, 3, 4], [10, 11, 12, 13]]),
    (raw(8, 2, 1, (1, 4), [[7, 255], [0, 128]], [1, 3], [100, 0.5]), [[7, 255], [0, 128]]),
    (
        raw(2, 2, 1, (2, 4), [[0b00_01_10_11, 0b11_00_01_10]], [1, 2, 3, 4], [0, 1, 0.25, 3]),
        [[0, 3], [1, 0], [2, 1], [3, 2]],
    ),
    (
        raw(1, 1, 1, (2, 4), [[0b1011_0001]], [1, 2, 3, 4, 5, 6, 7, 8], [0.5] * 8),
        [[1], [0], [1], [1], [0], [0], [0], [1]],
    ),
    (raw(3, 2, 1, (1, 4), THREE, [2, 1], [1, 3]), [[5, 1], [6, 7]]),
    # By axis 0 a group is a column.
    (raw(4, 2, 0, (2, 3), [[0x1A, 0x2B, 0x3C]], [0.5, 2, 1], [1.5, -1, 0]), [[1, 2, 3], [10, 11, 12]]),
    (raw(3, 2, 0, (1, 4), THREE, [2, 1], [1, 3]), [[5, 1], [6, 7]]),
]


@pytest.mark.parametrize(("found", "codes"), BY_HAND, ids=[str(i) for i in range(len(BY_HAND))])
def test_values_worked_by_hand(found: Raw, codes: list[list[int]], tmp_path: Path) -> None:
    matrix = opened(tmp_path, found)
    scale, zero = (np.frombuffer(found[f"m.{of}"][2], np.float16).astype(np.float32) for of in ("scale", "zero"))
    by = (slice(None), None) if matrix.axis else (None, slice(None))
    wanted = ((np.array(codes, np.float32) - zero[by]) * scale[by]).reshape(matrix.shape)
    rows = matrix.shape[0]
    for start, stop in itertools.combinations(range(rows + 1), 2):
        np.testing.assert_array_equal(matrix.floats(start, stop), wanted[start:stop])


def test_groups_that_run_on_over_the_ends_of_rows(tmp_path: Path) -> None:
    found = raw(8, 4, 1, (2, 6), [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], [1, 10, 100], [0, 1, 2])
    matrix = opened(tmp_path, found)
    wanted = [[1, 2, 3, 4, 40, 50], [60, 70, 700, 800, 900, 1000]]
    assert matrix.floats(0, 2).tolist() == wanted
    assert matrix.floats(1, 2).tolist() == wanted[1:]
    assert not matrix.holds(Part("m.weight"))


# ---- as the package unpacks them ------------------------------------------------------------------------

CASES = [*itertools.product((8, 6, 5, 4, 3, 2, 1.58, 1), (0, 1), (8, 64)), (4, 1, None), (3, 0, None)]


@pytest.mark.parametrize(("bits", "axis", "group"), CASES)
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float16, called floats"])
def test_values_as_hqq_has_them(bits: float, axis: int, group: int | None, kind: str, tmp_path: Path) -> None:
    """Rounded, optimized, packed and written by the package, and unpacked by it in float32."""
    torch = pytest.importorskip("torch", reason="needs torch")
    theirs = pytest.importorskip("hqq.core.quantize", reason="compared with hqq")
    save_file = pytest.importorskip("safetensors.torch").save_file
    from edgedec.export.safetensors import read_header

    torch.manual_seed(0)
    linear = torch.nn.Linear(128, 48)
    config = theirs.BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis, view_as_float="floats" in kind)
    dtype = getattr(torch, kind.split(",")[0])
    layer = theirs.HQQLinear(linear, config, compute_dtype=dtype, device="cpu")
    state = {f"m.{key}": part.contiguous() for key, part in layer.state_dict().items()}
    save_file(state, tmp_path / "m.safetensors")
    meta = {key: part.float() if key in ("scale", "zero") else part for key, part in layer.meta.items()}
    wanted = theirs.Quantizer.dequantize(layer.W_q.data, meta | {"compute_dtype": torch.float32}).numpy()
    settings = {"quant_config": config}
    found = matrices(settings, read_header(tmp_path / "m.safetensors"))
    assert found.used == state.keys() - {"m.bias"}
    matrix = found.matrices["m.weight"]
    np.testing.assert_array_equal(matrix.floats(0, 48), wanted)
    np.testing.assert_array_equal(matrix.floats(5, 47), wanted[5:47])
    assert np.abs(wanted - linear.weight.detach().numpy() if linear.weight is not None else 0).max() < 1


# ---- what a bundle keeps --------------------------------------------------------------------------------


def grouped(bits: int, group: int, shape: tuple[int, int], scale: float = 0.25) -> Raw:
    rng, groups = np.random.default_rng(bits), shape[0] * shape[1] // group
    data = rng.integers(0, 256, (groups * bits // 8, group), np.uint8)
    zero = (rng.integers(0, 4 << bits, groups) / 4).tolist()
    return raw(bits, group, 1, shape, data, [scale * 2.0 ** (i % 3) for i in range(groups)], zero)


@pytest.mark.parametrize(
    ("bits", "fmt"), [(8, "int8"), (4, "int4"), (4, "int8"), (2, "int4"), (1, "int4"), (1, "int8")]
)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_the_integers_of_a_bundle(bits: int, fmt: str, group: int, tmp_path: Path) -> None:
    matrix = opened(tmp_path, grouped(bits, group, (16, 128)))
    assert (matrix.own, matrix.block, matrix.offsets, matrix.exact) == ("int8" if bits == 8 else "int4", 32, True, True)
    assert (matrix.suggested, matrix.holds(Part("m.weight"))) == (matrix.own, True)
    assert not matrix.holds(Part("m.weight", add=1.0))
    data, scales, offsets = matrix.stored(Part("m.weight", rows=(2, 14), times=-0.5), fmt, 1, 9)  # type: ignore[arg-type]
    assert scales.shape == offsets.shape == data.shape[:2] == (8, 4)
    found = values(unpacked(data, fmt), fmt) * scales.astype(np.float32)[..., None]
    found += offsets.astype(np.float32)[..., None]
    np.testing.assert_array_equal(found.reshape(8, 128), -0.5 * matrix.floats(3, 11))


def test_the_middle_of_few_bits_is_the_middle_of_the_format(tmp_path: Path) -> None:
    """So offsets are small: of one bit the codes are 7 and 8 of int4, of six in a byte 96 to 159 of int8."""
    data, _, offsets = opened(tmp_path, grouped(1, 32, (16, 32))).stored(Part("m.weight"), "int4", 0, 16)
    assert set(unpacked(data, "int4").ravel()) == {7, 8}
    assert np.abs(offsets).max() <= 1
    six = raw(6, 32, 1, (1, 32), [list(range(32, 64))], [1], [32])
    data, _, offsets = opened(tmp_path, six).stored(Part("m.weight"), "int8", 0, 1)
    assert (data.min(), data.max(), offsets.tolist()) == (128, 159, [[0]])


def test_what_no_block_holds_is_read_as_floats(tmp_path: Path) -> None:
    for found in (
        grouped(4, 16, (16, 128)),
        raw(4, 64, 0, (2, 64), np.zeros((32, 2), np.uint8), [1, 1], [0, 0]),
        raw(4, 32, 1, (2, 32), np.zeros((1, 32), np.uint8), [1, 60000], [0, -4]),  # an offset of 720000
        raw(4, 32, 1, (2, 32), np.zeros((1, 32), np.uint8), [1, np.nan], [0, 0]),
    ):
        matrix = opened(tmp_path, found)
        assert (matrix.holds(Part("m.weight")), matrix.suggested) == (False, "int8")
    odd = raw(4, 32, 1, (2, 32), np.zeros((1, 32), np.uint8), [1, 0.1], [0, 3.3])
    assert opened(tmp_path, odd).holds(Part("m.weight"))
    assert not opened(tmp_path, odd).exact


# ---- settings, and modules that are damaged -------------------------------------------------------------


def of_all(**params: Any) -> dict[str, Any]:
    return {"quant_config": {"weight_quant_params": params}}


def test_numbers_that_only_the_config_has(tmp_path: Path) -> None:
    less = {name: one for name, one in FOUR.items() if name not in ("m.nbits", "m.group_size", "m.axis", "m.packing")}
    wanted = opened(tmp_path, FOUR).floats(0, 2)
    settings = of_all(nbits=4, group_size=4, axis=1)
    np.testing.assert_array_equal(opened(tmp_path, less, settings).floats(0, 2), wanted)
    with pytest.raises(BadTensor, match=r"m\.nbits: missing from the checkpoint"):
        opened(tmp_path, less)
    tagged = {f"model.layers.3.{name}": one for name, one in less.items()}
    named = {"quant_config": {"m": settings["quant_config"], "other": of_all(nbits=2)["quant_config"]}}
    found = matrices(named, stored(tmp_path, tagged)).matrices["model.layers.3.m.weight"]
    np.testing.assert_array_equal(found.floats(0, 2), wanted)
    assert opened(tmp_path, FOUR, of_all(group_size=None)).group == 4


def flag(name: str) -> dict[str, Any]:
    return {f"m.{name}": ("U8", (), b"\1")}


DAMAGED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *(({f"m.{name}": None}, {}, rf"m\.{name}: missing") for name in ("scale", "zero", "shape", "axis", "group_size")),
    (flag("quant_scale"), {}, "m: quant_scale, quantized scales and zero points of HQQ, is not supported"),
    (flag("quant_zero"), {}, "m: quant_zero, quantized"),
    (flag("view_as_float"), {}, r"m\.W_q: is U8 \[1, 4\], expected F32 or F16 or BF16 of 2 axes"),
    ({"m.W_q": ("U8", (2, 4), bytes(8))}, {}, r"m\.W_q: U8 \[2, 4\] is not U8 \[1, 4\]"),
    ({"m.W_q": ("I32", (1, 1), bytes(4))}, {}, r"m\.W_q: is I32 \[1, 1\], expected U8 of 2 axes"),
    ({"m.scale": halves(1, 2, of=[1, 1])}, {}, r"m\.scale: has shape \[1, 2\], expected \[2, 1\]"),
    ({"m.zero": halves(1, of=[1])}, {}, r"m\.zero: is F16 \[1\], expected F32 or F16 or BF16 of 2 axes"),
    ({"m.zero_scale": halves(1, 2, 1, of=[1, 1])}, {}, r"m\.zero_scale: has shape \[1, 2, 1\], expected \[2, 2, 1\]"),
    ({"m.zero_scale": ("U8", (2, 2, 1), bytes(4))}, {}, r"m\.zero_scale: is U8 \[2, 2, 1\]"),
    ({"m.packing": ("U8", (3,), b"odd")}, {}, "m: nbits 4 packed as 'odd'; known: 8bit_u8, 4bit_u8"),
    ({"m.packing": ("U8", (7,), b"2bit_u8")}, {}, "m: nbits 4 packed as '2bit_u8'"),
    ({"m.nbits": number(7)}, {}, "m: nbits 7 packed as '4bit_u8'"),
    ({"m.nbits": ("F32", (), b"\0\0\xc0\x7f")}, {}, r"m\.nbits: nan is no size"),
    ({"m.axis": number(2)}, {}, r"m: groups of 4 by axis 2 are not of a weight \[2, 4\]"),
    ({"m.group_size": number(3)}, {}, "m: groups of 3 by axis 1"),
    ({"m.group_size": number(0)}, {}, "m: groups of 0 by axis 1"),
    ({"m.group_size": number(-4)}, {}, "m: groups of 4294967292 by axis 1"),
    ({"m.shape": ("I64", (3,), bytes(24))}, {}, r"m\.shape: has shape \[3\], expected \[2\]"),
    ({"m.shape": ("I64", (2,), np.array([1 << 60, 4]).tobytes())}, {}, "m: groups of 4 by axis 1 are not of a weight"),
    ({"m.shape": ("I64", (2,), np.array([-2, -4]).tobytes())}, {}, "m: groups of 4 by axis 1 are not of a weight"),
    ({"m.shape": ("I64", (2,), np.array([4, 4]).tobytes())}, {}, r"m\.W_q: U8 \[1, 4\] is not U8 \[2, 4\]"),
    ({}, of_all(nbits=8), "m: its nbits is 4, and config.json says 8"),
    ({}, of_all(axis="1"), "config.json: axis '1' of m is no size"),
    ({}, of_all(group_size=float("nan")), "config.json: group_size nan of m is no size"),
    ({}, {"quant_config": {"m": [1]}}, r"config.json: quant_config of m must be an object, found \[1\]"),
    ({}, {"quant_config": {"weight_quant_params": 4}}, "config.json: quant_config of m must be an object, found 4"),
]


@pytest.mark.parametrize(("change", "settings", "words"), DAMAGED, ids=[words for *_, words in DAMAGED])
def test_what_is_no_hqq(change: dict[str, Any], settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    found = {name: one for name, one in (FOUR | change).items() if one is not None}
    with pytest.raises((BadTensor, CheckpointError), match=words) as caught:
        opened(tmp_path, found, settings)
    assert "\n" not in str(caught.value)


def test_scales_beside_zero_points_and_codes_called_floats(tmp_path: Path) -> None:
    wanted = opened(tmp_path, FOUR).floats(0, 2)
    zero, scale = (FOUR[f"m.{name}"][2] for name in ("zero", "scale"))
    both = {name: one for name, one in FOUR.items() if name not in ("m.zero", "m.scale")}
    both |= {"m.zero_scale": ("F16", (2, 2, 1), zero + scale)}
    np.testing.assert_array_equal(opened(tmp_path, both).floats(0, 2), wanted)
    for dtype, width in (("F16", 2), ("BF16", 2), ("F32", 1)):
        called = {"m.W_q": (dtype, (1, width), FOUR["m.W_q"][2])}
        np.testing.assert_array_equal(opened(tmp_path, FOUR | flag("view_as_float") | called).floats(0, 2), wanted)
