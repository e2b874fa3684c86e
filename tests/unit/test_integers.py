"""How codes of 2, 3, 4 and 8 bits lie in bytes, beside the plainest reading of the page that says so."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.bundle.folder import dequantize, whole_scales
from edgedec.bundle.integers import Integers, code_bytes, is_integer, packed, stands_for_zero, step_of, unpacked
from edgedec.export.grids import GRIDS
from edgedec.export.quantize import codes_of, from_codes, packed_codes, quantize

LOW: tuple[Integers, ...] = ("int3", "int2")


def plain(data: bytes, fmt: str, i: int) -> int:
    """Code i of packed bytes, bit by bit as docs/bundle-format.md has it."""
    at, s, b = i // 32, i % 16 // 4, i % 4
    words = 3 if fmt == "int3" else 2
    low = data[4 * (words * at + i % 32 // 16) + b] >> 2 * s & 3
    if fmt == "int2":
        return low
    return low | (data[4 * (words * at + 2) + b] >> i % 32 // 4 & 1) << 2


@pytest.mark.parametrize("fmt", LOW)
def test_planes_are_what_the_format_says(fmt: Integers) -> None:
    codes = np.random.default_rng(0).integers(0, 8 if fmt == "int3" else 4, 96).astype(np.uint8)
    data = packed(codes, fmt)
    assert data.dtype == np.uint8
    assert len(data) == code_bytes(fmt, 96)
    assert [plain(data.tobytes(), fmt, i) for i in range(96)] == codes.tolist()


@pytest.mark.parametrize("fmt", ["int8", "int4", *LOW])
def test_what_is_packed_comes_back(fmt: str) -> None:
    codes = np.random.default_rng(1).integers(0, 1 << {"int8": 8, "int4": 4, "int3": 3, "int2": 2}[fmt], (3, 2, 64))
    back = unpacked(packed(codes.astype(np.uint8), fmt), fmt)
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, codes)


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("fmt", LOW)
def test_nearest_rounding_gives_the_nearest_multiple(fmt: Integers, block: int) -> None:
    rows = np.random.default_rng(2).standard_normal((5, 100)).astype(np.float32)
    data, scales = quantize(rows, fmt, block)
    nb = -(-100 // block)
    assert data.shape == (5, nb, code_bytes(fmt, block))
    assert scales.shape == (5, nb)
    stored = dequantize(data, scales, fmt, 100)
    steps = np.repeat(scales.astype(np.float64), block, axis=1)[:, :100]
    values = np.arange(-4, 4) if fmt == "int3" else np.array([-3, -1, 1, 3])
    choices = steps[..., None] * values
    best = np.abs(choices - rows[..., None]).min(axis=-1)
    np.testing.assert_allclose(np.abs(stored - rows), best, atol=1e-6)
    assert np.square(stored - rows).mean() < {"int3": 0.04, "int2": 0.15}[fmt]
    codes = codes_of(data, fmt, 100)
    np.testing.assert_array_equal(from_codes(codes, scales, fmt, block), stored)
    whole = code_bytes(fmt, 96)
    np.testing.assert_array_equal(
        packed_codes(codes, fmt, block).reshape(5, -1)[:, :whole], data.reshape(5, -1)[:, :whole]
    )


def test_what_fills_a_block_up_does_not_change_its_scale() -> None:
    rows = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
    alone = quantize(np.tile(rows, (1, 4)), "int2", 32)[1]
    np.testing.assert_array_equal(quantize(rows, "int2", 32)[1], alone)


@pytest.mark.parametrize("fmt", LOW)
def test_zeros_stay_zeros(fmt: Integers) -> None:
    data, scales = quantize(np.zeros((2, 32), np.float32), fmt, 32)
    assert not dequantize(data, scales, fmt, 32).any()


def test_the_grids_are_those_of_the_storage() -> None:
    for fmt, grid in GRIDS.items():
        low, high = (code * step_of(fmt) - stands_for_zero(fmt) for code in (0, (1 << int(fmt[3:])) - 1))
        assert (grid.low, grid.high) == ((-127, 127) if fmt == "int8" else (low, high))
        assert grid.codes(np.array([float(grid.low), float(grid.high)])).tolist()[1] == (1 << int(fmt[3:])) - 1
    assert is_integer("int2")
    assert not is_integer("f16")


def test_a_part_is_times_the_scale_of_its_own_256_weights() -> None:
    """Two rows of 512 weights: 32 parts and two scales each."""
    parts = np.arange(64, dtype=np.uint8).reshape(2, 32) * np.uint8(5)
    scales = np.array([[1, 10], [100, 1000]], np.float16)
    found, offsets = whole_scales("int6", parts, scales)
    expected = parts.view(np.int8).astype(np.float32) * np.repeat(scales.astype(np.float32), 16, axis=1)
    assert (found.tolist(), offsets) == (expected.tolist(), None)
    assert found.min() < 0 < found.max()


def test_of_uint2_a_part_has_a_scale_and_an_offset() -> None:
    parts = np.arange(64, dtype=np.uint8).reshape(2, 32) * np.uint8(3)
    scales = np.array([[1, 10], [100, 1000]], np.float16)
    both = np.stack([scales, -2 * scales], axis=-1).reshape(2, 4)  # of each 256 weights a scale and an offset
    found, offsets = whole_scales("uint2", parts, both)
    each = np.repeat(scales.astype(np.float32), 16, axis=1)
    assert offsets is not None
    assert found.tolist() == ((parts & 15) * each).tolist()
    assert offsets.tolist() == ((parts >> 4) * (-2 * each)).tolist()
