"""Attention's products of bytes as graphs, on the CPU: nothing is cut off, and what rounding costs is what it may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx_sessions import session as session_of

pytest.importorskip("onnx", reason="making graphs needs onnx")

from edgedec.export.graph import FLOAT, UINT8, Graph
from edgedec.export.onnx import quantized_products

STEP = 1 / 32767
Floats = NDArray[np.float32]


def computed(left: Floats, right: NDArray[np.int8], product: Any) -> Floats:
    """left [rows, n] times right, of which half comes from the past."""
    g = Graph("products", "", {})
    half = len(right) // 2
    names = [g.input(name, UINT8, [1, 1, name, right.shape[1]]) for name in ("past", "new")]
    y = product(g, g.input("left", FLOAT, [1, 1, "rows", "n"]), quantized_products.joined(g, names))
    g.node("Identity", [y], out="y")
    g.output("y", FLOAT, [1, 1, "rows", "m"])
    stored = (right.astype(np.int16) + 128).astype(np.uint8)
    feed = {"left": left[None, None], "past": stored[None, None, :half], "new": stored[None, None, half:]}
    session = session_of(g.model().SerializeToString())
    found: Floats = session.run(None, feed)[0][0, 0]
    return found


def keys(rng: np.random.Generator, slots: int, dim: int) -> NDArray[np.int8]:
    return rng.integers(-128, 128, (slots, dim)).astype(np.int8)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([16, 64, 128]), st.floats(-3, 3), st.floats(0, 3))
def test_scores(seed: int, dim: int, size: float, spread: float) -> None:
    """Queries of any size, some channels far larger than others."""
    rng = np.random.default_rng(seed)
    q = (10**size * rng.standard_normal((5, dim)) * np.exp(spread * rng.standard_normal(dim))).astype(np.float32)
    right = keys(rng, 40, dim)
    exact = q.astype(np.float64) @ right.T.astype(np.float64)
    sums = np.abs(q.astype(np.float64)).sum(-1, keepdims=True)
    apart = np.abs(computed(q, right, quantized_products.scores) - exact) / sums
    # Half a step of the product, and half a step of each input.
    assert apart.max() <= (64 + 0.5 * np.abs(right.astype(np.int64)).sum(-1).max()) * STEP * 1.01
    assert np.sqrt((apart**2).mean()) < (64 + 30 * dim**0.5) * STEP


def test_the_largest_scores_are_not_cut_off() -> None:
    q = np.zeros((3, 16), np.float32)
    q[0, 0], q[1, :] = 50.0, -2.0  # the third sees nothing but zeros
    right = np.full((4, 16), -128, np.int8)
    right[1] = 127
    found = computed(q, right, quantized_products.scores)
    assert np.abs(found - q @ right.T.astype(np.float32)).max() <= 50 * 128 * STEP
    assert (found[2] == 0).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 3000), st.floats(0, 8))
def test_weighted_values(seed: int, slots: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    weights = np.exp(spread * rng.standard_normal((3, slots)))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    right = keys(rng, slots, 32)
    exact = weights.astype(np.float64) @ right.astype(np.float64)
    found = computed(weights, right, quantized_products.mixed)
    assert np.abs(found - exact).max() <= 64 * STEP + slots * 128 * 0.25 * STEP
    assert np.sqrt(((found - exact) ** 2).mean()) <= 128 * STEP * (1 + slots**0.5)


def test_one_value_is_taken_as_it_is() -> None:
    weights = np.eye(4, dtype=np.float32)
    right = np.array([[-128] * 8, [127] * 8, [0] * 8, [-1, 1, -2, 2, 100, -100, 64, -64]], np.int8)
    found = computed(weights, right, quantized_products.mixed)
    assert np.rint(found).tolist() == right.tolist()
    assert np.abs(found - right).max() <= 64 * STEP * 1.01
