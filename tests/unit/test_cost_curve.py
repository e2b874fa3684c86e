"""The curve of what calls cost, its points and its slope, by their rules: worked out by hand, and by a regression."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.speculation.costs import Costs, Slope, _split


def test_the_slope_is_that_of_a_regression() -> None:
    """Least squares of 1 = a c + b x, relative to the seconds, with weights 0.99^age, held to the old slope with 0.002
    of the weight of all texts; what is far off is left out."""
    rng, slope, b, old = np.random.default_rng(4), Slope(), 1e-3, 1e-3
    calls = list[tuple[float, float]]()
    for n in range(300):
        curve, cells = rng.uniform(0.5, 3.0), int(rng.integers(1, 2000))
        seconds = (1.1 * curve + 2e-3 * cells) * rng.uniform(0.9, 1.1) * (20.0 if n % 7 == 3 else 1.0)
        c, x = curve / seconds, cells / seconds
        b = slope.add(curve, cells, seconds, old)
        if not (1 / 3 < c < 3 and 1 / 1.5 < c + old * x < 1.5):
            assert b == old
            continue
        calls.append((c, x))
        if len(calls) > 1:
            rows = np.array(calls) * (0.99 ** np.arange(len(calls))[::-1, None]) ** 0.5
            hold = 0.002 * rows[:, 1] @ rows[:, 1]
            left = rows.T @ rows + [[0, 0], [0, hold]]
            right = np.array(calls).T @ (0.99 ** np.arange(len(calls))[::-1]) + [0, hold * old]
            assert b == pytest.approx(max(np.linalg.solve(left, right)[1], 0.0), rel=1e-6)
        old = b
    assert 100 < len(calls) < 290
    assert b == pytest.approx(2e-3, rel=0.2)


def test_an_error_is_shared_by_curve_and_text() -> None:
    """One row takes 1 s and its 1,000 cells 1 s; the call takes e^0.1 times as long. Half of this is the text's, and
    moves the slope at 0.08. Half is the curve's: all points at 0.08, that of one row, measured twice, at 1/3."""
    costs = Costs({1: 1.0, 8: 4.0}, per_cell=1e-3)
    costs.add(1, 2.0 * np.exp(0.1), 1000)
    assert costs.per_cell == pytest.approx(1e-3 * np.exp(0.08 * 0.05))
    assert costs.points() == pytest.approx({1: np.exp(0.05 / 3), 8: 4.0 * np.exp(0.08 * 0.05)})
    beside = Costs({20: 4.0, 24: 5.0, 60: 9.0})
    beside.add(22, 4.5 * np.exp(0.2))
    near, far = np.exp(0.15 * 0.2), np.exp(0.08 * 0.2)
    assert beside.points() == pytest.approx({20: 4.0 * near, 24: 5.0 * near, 60: 9.0 * far})
    wild = Costs({1: 1.0, 8: 4.5})
    wild.add(8, 450.0)
    assert wild.points()[1] == pytest.approx(np.exp(0.08 * 0.7)), "no error counts for more than a factor of two"
    assert wild.points()[8] == pytest.approx(4.5 * np.exp(0.7 / 3))


def test_calls_of_about_so_many_rows() -> None:
    costs = Costs({1: 1.0, 20: 3.0, 24: 3.5}, largest=64)
    for n in range(3):
        costs.add(20, 3.0 + 1e-6 * n)
    assert [costs.calls(k) for k in (1, 2, 18, 20, 21, 23, 27, 28)] == [2, 0, 5, 5, 5, 2, 2, 0]
    near = Costs({30: 3.0, 33: 3.2}, largest=64)
    near.add(33, 3.2)
    assert [near.calls(k) for k in (31, 32)] == [2, 3], "of two points the nearer one"
    for n in range(100):
        costs.add(24, 3.5 + 1e-6 * n)
    assert costs.calls(24) == 50, "older calls count no more"
    costs.add(40, 5.0)
    assert (costs.calls(40), costs.known) == (1, 4)
    costs.add(40, 4.5)
    assert (costs.calls(40), costs.known) == (2, 4), "a new point is the least of two calls"
    assert costs.points()[40] == pytest.approx(4.5, rel=0.01)


def test_a_call_costs_no_more_than_smaller_calls_with_a_factor() -> None:
    assert _split([1, 2, 4], [1.0, 1.5, 9.0]) == [1.0, 1.5, 6.0]
    assert _split([2, 4, 8], [4.0, 20.0, 60.0]) == [4.0, 16.0, 32.0]


def test_what_is_assumed_of_rows_that_were_not_measured() -> None:
    """Below the first point at least a half is reading the weights; after the last one rows cost 1.2 times as much."""
    costs = Costs({4: 2.0, 8: 3.0}, largest=18)
    assert costs.seconds[1] == pytest.approx(2.0 * (0.5 + 0.5 / 4))
    assert costs.seconds[18] == pytest.approx(3.0 + 1.2 * 0.25 * 10)
    assert Costs({1: 2.0}, largest=3).seconds[3] == pytest.approx(2.0 + 1.2 * 2.0 * 2), "one row, as far as is known"


def test_an_estimated_slope_is_of_the_first_call() -> None:
    costs = Costs({}, largest=8)
    costs.cell_calls = 2e-3
    costs.add(1, 3.0, 100)
    assert costs.points() == {1: 3.0}
    assert costs.per_cell == pytest.approx(6e-3)
    costs.add(1, 3.01, 100)
    assert costs.points()[1] == pytest.approx(3.01 - 0.6), "without its text"
    costs.add(8, 5.0, 4000)
    assert costs.points()[8] == pytest.approx(0.2 * 5.0), "a fifth at least is not its text"
