"""GPTQ beside a naive column-by-column solver, in the formats as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.bundle.integers import Integers
from edgedec.errors import CheckpointError
from edgedec.export.grids import GRIDS
from edgedec.export.passes import _solve
from edgedec.export.passes._solve import block_scales, damped, factor, solve
from edgedec.export.passes._statistics import WIDEST, Moments
from edgedec.export.passes.gptq import drifted
from edgedec.export.quantize import from_codes, quantize

FORMATS: tuple[Integers, ...] = ("int8", "int4", "int3", "int2")
N, K, BLOCK = 7, 70, 32  # the last block is short


def case(seed: int = 0, n: int = N, k: int = K, rows: int = 400) -> tuple[Any, Any]:
    """Weights, and inputs that depend on each other, of very different sizes."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((rows, k)) @ rng.standard_normal((k, k)) * np.exp(rng.standard_normal(k))
    return rng.standard_normal((n, k)), mixed


def moments(x: Any) -> list[Any]:
    found = Moments.of(x.shape[1])
    found.add(x)
    return found.diagonal


def by_obq(w: Any, h: Any, steps: Any, multiples: Any, order: Any) -> Any:
    """Optimal brain quantization: after each column the inverse of what is left is made anew."""
    w, q, left = w.copy(), np.zeros_like(w), list(order)
    while left:
        i = left[0]
        inverse = np.linalg.inv(h[np.ix_(left, left)])
        q[:, i] = multiples(w[:, i] / steps[:, i])
        error = (w[:, i] - q[:, i] * steps[:, i]) / inverse[0, 0]
        w[:, left] -= np.outer(error, inverse[0])
        left = left[1:]
    return q


@pytest.mark.parametrize("order", [True, False])
@pytest.mark.parametrize("fmt", FORMATS)
def test_columns_are_those_of_the_naive_solver(fmt: Integers, order: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_solve, "_BATCH", 16)  # several of them
    w, x = case()
    h, grid = x.T @ x, GRIDS[fmt]
    codes, scales = solve(w, [h], grid, BLOCK, 0.01, order, sweeps=0)
    steps = np.repeat(scales.astype(float), BLOCK, axis=1)[:, :K]
    full = h + 0.01 * np.diag(h).mean() * np.eye(K)
    places = np.argsort(-np.diag(h), kind="stable") if order else np.arange(K)
    assert list(places) != list(range(K)) or not order
    expected = by_obq(w, full, steps, grid.multiples, places)
    np.testing.assert_array_equal(codes, grid.codes(expected))


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_is_stored_changes_the_output_less_than_nearest_rounding(fmt: Integers) -> None:
    w, x = case(1)
    data, scales = quantize(w.astype(np.float32), fmt, BLOCK)
    from edgedec.bundle.folder import dequantize

    nearest = output_error(dequantize(data, scales, fmt, K), w, x)
    plain, swept = (
        output_error(from_codes(*solve(w, moments(x), GRIDS[fmt], BLOCK, 0.01, True, n), fmt, BLOCK), w, x)
        for n in (0, 2)
    )
    assert swept < plain < 0.8 * nearest


def output_error(stored: Any, w: Any, x: Any) -> float:
    return float(np.square((stored - w) @ x.T).sum())


def test_a_sweep_takes_each_column_to_its_best_multiple() -> None:
    """The naive solver: the error of all choices of one weight, others fixed, again and again."""
    w, x = case(2, n=3, k=8)
    grid, h = GRIDS["int2"], damped(x.T @ x, 0.01)
    codes, scales = solve(w, [x.T @ x], grid, 32, 0.01, True, sweeps=50)
    steps = np.repeat(scales.astype(float), 32, axis=1)[:, :8]
    q = codes * grid.step - float(grid.zero)

    def loss(row: int, values: Any) -> float:
        change = w[row] - values * steps[row]
        return float(change @ h @ change)

    for row in range(3):
        least = loss(row, q[row])
        for i in range(8):
            for value in (-3, -1, 1, 3):
                other = q[row].copy()
                other[i] = value
                assert loss(row, other) >= least * (1 - 1e-12)


def test_a_sweep_knows_what_it_has_just_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sweep beside the naive one, which computes the slope anew for each column."""
    monkeypatch.setattr(_solve, "_BATCH", 16)
    w, x = case(10)
    grid, h = GRIDS["int3"], damped(x.T @ x, 0.01)
    steps = np.repeat(block_scales(w, np.diag(h), grid, BLOCK), BLOCK, axis=1)[:, :K]
    q = grid.multiples(w / steps)
    found = np.ascontiguousarray(q.T)
    _solve._sweep(w.T, found, steps.T, h, grid)
    for i in range(K):
        slope = (w - q * steps) @ h[i]
        q[:, i] = grid.multiples((q[:, i] * steps[:, i] + slope / h[i, i]) / steps[:, i])
    assert (q == found.T).mean() > 0.99  # ties may fall either way


def test_scales_are_halves_and_weighed_by_the_inputs() -> None:
    w, x = case(3)
    codes, scales = solve(w, moments(x), GRIDS["int4"], BLOCK, 0.01, True, sweeps=1)
    assert (scales.dtype, scales.shape, codes.shape) == (np.float16, (N, 3), (N, K))
    even = block_scales(w, np.ones(K), GRIDS["int4"], BLOCK)
    uneven = block_scales(w, np.where(np.arange(K) % 2, 100.0, 0.01), GRIDS["int4"], BLOCK)
    assert (even != uneven).any()


def test_wide_matrices_are_solved_in_diagonal_blocks() -> None:
    k = WIDEST + 64
    rng = np.random.default_rng(4)
    w, x = rng.standard_normal((2, k)), rng.standard_normal((50, k))
    known = moments(x)
    assert [len(part) for part in known] == [WIDEST, 64]
    np.testing.assert_allclose(known[1], x[:, WIDEST:].T @ x[:, WIDEST:])
    codes, scales = solve(w, known, GRIDS["int4"], BLOCK, 0.01, True, sweeps=0)
    assert codes.shape == (2, k)
    assert scales.shape == (2, k // BLOCK)
    np.testing.assert_array_equal(
        codes[:, WIDEST:], solve(w[:, WIDEST:], known[1:], GRIDS["int4"], BLOCK, 0.01, True, sweeps=0)[0]
    )


def test_matrices_of_zeros_and_inputs_that_are_always_zero() -> None:
    w, x = case(5)
    codes, scales = solve(np.zeros_like(w), moments(x), GRIDS["int2"], BLOCK, 0.01, True, sweeps=2)
    assert not from_codes(codes, scales, "int2", BLOCK).any()
    x[:, 3] = 0
    codes, scales = solve(w, moments(x), GRIDS["int4"], BLOCK, 0.01, True, sweeps=2)
    stored = from_codes(codes, scales, "int4", BLOCK)
    assert np.abs(stored[:, 3] - w[:, 3]).max() <= np.abs(scales[:, 0].astype(float)).max()  # kept, not zeroed
    codes, scales = solve(w, moments(np.zeros_like(x)), GRIDS["int4"], BLOCK, 0.01, True, sweeps=2)
    assert np.isfinite(scales).all()


def test_states_that_are_not_numbers_are_refused() -> None:
    w, x = case(6)
    x[0, 0] = np.nan
    with pytest.raises(CheckpointError, match="not finite"):
        solve(w, moments(x), GRIDS["int4"], BLOCK, 0.01, True, sweeps=0)


def test_the_factor_is_of_the_inverse() -> None:
    _, x = case(7)
    h = damped(x.T @ x, 0.01)
    u = factor(h)
    assert not np.tril(u, -1).any()
    np.testing.assert_allclose(u.T @ u @ h, np.eye(K), atol=1e-6)


def test_weights_that_make_up_for_changed_inputs() -> None:
    """Where the rounded model's inputs are the float model's times a matrix, its inverse goes into the weights."""
    w, floats = case(8, n=4, k=12, rows=300)
    floats = floats / np.abs(floats).mean(axis=0)
    change = np.eye(12) + 0.1 * np.random.default_rng(9).standard_normal((12, 12))
    known = Moments.of(12)
    known.add(floats @ change, floats)
    found = drifted(w, known, 1e-9)
    np.testing.assert_allclose(found, w @ np.linalg.inv(change).T, atol=1e-4)
    assert np.abs(found - w).max() > 0.1
