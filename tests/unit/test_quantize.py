"""Block quantization against a plain Python oracle, and the bounds it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgedec.bundle.folder import dequantize
from edgedec.errors import BadTensor, UsageError
from edgedec.export import quantize as module
from edgedec.export.quantize import Format, quantize

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

FORMATS: tuple[Format, ...] = ("int4", "int8")
weights = st.floats(-1e4, 1e4, width=32)
matrices = hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 70)), elements=weights)


def slow(rows: np.ndarray, scales: np.ndarray, fmt: Format, block: int) -> list[list[int]]:
    """The stored bytes of every row, given the scales, one weight at a time."""
    low, high, zero = (-8, 7, 8) if fmt == "int4" else (-127, 127, 128)
    found = []
    for row, row_scales in zip(rows, scales, strict=True):
        stored = []
        for b, scale in enumerate(row_scales.astype(np.float32)):
            for j in range(b * block, (b + 1) * block):
                step = np.float32(1) / scale if scale else np.float32(0)
                q = round(float(row[j] * step)) if j < len(row) else 0
                stored.append(min(max(q, low), high) + zero)
        found.append(stored if fmt == "int8" else [a | b << 4 for a, b in zip(stored[::2], stored[1::2], strict=True)])
    return found


@settings(max_examples=60, deadline=None)
@given(matrices, st.sampled_from(FORMATS), st.sampled_from([2, 16, 32]))
def test_bytes_are_those_of_the_slow_oracle(rows: np.ndarray, fmt: Format, block: int) -> None:
    data, scales = quantize(rows, fmt, block)
    blocks = -(-rows.shape[1] // block)
    assert (data.dtype, scales.dtype) == (np.uint8, np.float16)
    assert data.shape == (len(rows), blocks, block // 2 if fmt == "int4" else block)
    assert scales.shape == (len(rows), blocks)
    assert data.reshape(len(rows), -1).tolist() == slow(rows, scales, fmt, block)


@settings(max_examples=60, deadline=None)
@given(matrices, st.sampled_from([2, 32]))
def test_int8_is_within_half_a_step(rows: np.ndarray, block: int) -> None:
    data, scales = quantize(rows, "int8", block)
    error = np.abs(dequantize(data, scales, "int8", rows.shape[1]) - rows)
    step = np.repeat(scales.astype(np.float32), block, axis=1)[:, : rows.shape[1]]
    # The largest weight may lie past 127 steps by what float16 rounded off the scale (or its smallest step).
    assert (error <= step / 2 + 127 * (step * 2.0**-11 + 2.0**-25) + 1e-30).all()


@settings(max_examples=60, deadline=None)
@given(matrices, st.sampled_from([2, 32]))
def test_int4_is_never_worse_than_the_plain_scale(rows: np.ndarray, block: int) -> None:
    """Squared error of a block against round(x / (max / 7)); float16 may cost a little."""
    data, scales = quantize(rows, "int4", block)
    found = dequantize(data, scales, "int4", rows.shape[1])
    for at in range(0, rows.shape[1], block):
        x, y = rows[:, at : at + block].astype(np.float64), found[:, at : at + block]
        largest = np.abs(x).max(axis=1, keepdims=True)
        plain = np.rint(x / np.where(largest, largest / 7, 1)) * largest / 7
        ours, theirs = ((y - x) ** 2).sum(1), ((plain - x) ** 2).sum(1)
        slack = block * (largest[:, 0] * 2.0**-11 + 8 * 2.0**-25) ** 2
        assert (np.sqrt(ours) <= np.sqrt(theirs) + np.sqrt(slack)).all()


def test_the_places_buy_what_the_file_says() -> None:
    rows = np.random.default_rng(0).standard_normal((64, 2048)).astype(np.float32)

    def error(block: int) -> float:
        found = dequantize(*quantize(rows, "int4", block), "int4", 2048)
        return float(np.sqrt(((found - rows) ** 2).mean()))

    for block, gain in ((32, 0.840), (128, 0.828)):
        x = rows.reshape(-1, block)
        scale = np.abs(x).max(axis=1, keepdims=True) / 7
        plain = np.sqrt(((np.rint(x / scale) * scale - x) ** 2).mean())
        assert error(block) / plain == pytest.approx(gain, abs=0.006)


@pytest.mark.parametrize("scale", [0.5, -0.25, 2.0**-20, 3.0])
def test_weights_on_an_int4_grid_come_back_exactly(scale: float) -> None:
    rng = np.random.default_rng(1)
    q = rng.integers(-8, 8, (50, 64))
    q[:, ::32] = -8
    symmetric = rng.integers(-7, 8, (50, 64))
    symmetric[:, ::32] = 7
    for steps in (q, symmetric):
        rows = (steps * scale).astype(np.float32)
        np.testing.assert_array_equal(dequantize(*quantize(rows, "int4", 32), "int4", 64), rows)


@pytest.mark.parametrize("fmt", FORMATS)
def test_zeros_and_tails(fmt: Format) -> None:
    rows = np.zeros((3, 37), np.float32)
    rows[1, 36] = 1.0
    data, scales = quantize(rows, fmt, 32)
    zero = 0x88 if fmt == "int4" else 128
    assert (data[0] == zero).all()
    assert (data[1, 1, 4:] == zero).sum() == data.shape[2] - 4 - (fmt == "int8")
    assert scales[0].tolist() == [0, 0]
    np.testing.assert_array_equal(dequantize(data, scales, fmt, 37)[[0, 2]], 0)
    assert dequantize(data, scales, fmt, 37)[1, 36] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("fmt", "reach"), [("int4", 65504 * 7), ("int8", 65504 * 127)])
def test_weights_beyond_float16_scales_are_refused(fmt: Format, reach: int) -> None:
    edge = np.full((1, 32), reach, np.float32)
    np.testing.assert_allclose(dequantize(*quantize(edge, fmt, 32), fmt, 32), edge, rtol=1e-3)
    mixed = np.array([[reach, *[reach / 7 * 1.49] * 31]], np.float32)
    assert np.isfinite(dequantize(*quantize(mixed, fmt, 32), fmt, 32)).all()
    for bad in (reach * 1.01, -reach * 1.01, 1e38, np.inf, -np.inf, np.nan):
        rows = np.zeros((2, 32), np.float32)
        rows[1, 3] = bad
        with pytest.raises(BadTensor, match="not finite, or beyond"):
            quantize(rows, fmt, 32)


@pytest.mark.parametrize("fmt", FORMATS)
def test_weights_too_small_for_a_scale_are_zero(fmt: Format) -> None:
    rows = np.full((1, 32), 1e-12, np.float32)
    data, scales = quantize(rows, fmt, 32)
    assert not dequantize(data, scales, fmt, 32).any()


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(2).standard_normal((7, 100)).astype(np.float32)
    whole = quantize(rows, "int4", 32)
    monkeypatch.setattr(module, "CHUNK", 64)
    for a, b in zip(whole, quantize(rows, "int4", 32), strict=True):
        np.testing.assert_array_equal(a, b)


def test_arguments_out_of_range() -> None:
    rows = np.zeros((1, 4), np.float32)
    with pytest.raises(UsageError, match="'int5' is not one of int8, int4, int3, int2"):
        quantize(rows, "int5", 4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="block 16: int3 needs a multiple of 32 weights"):
        quantize(rows, "int3", 16)
    for block in (0, 1, 33):
        with pytest.raises(UsageError, match="needs a multiple of 2"):
            quantize(rows, "int4", block)
