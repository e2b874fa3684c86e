"""Costs of calls of a part of the stack: the prior by hand, and what is measured as a weighted least-squares fit."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters._slices.stack import block_costs
from edgedec.testing.fakes import tiny_spec

SPEC = tiny_spec()
PRIOR, TRUST = [1, 1, 0, 0.04], [4, 4, 400, 40]
CALLS = [(0.5, 0.1, 1), (0.25, 0.1, 4), (0.75, 0.0, 2), (0.5, 0.2, 7)]


def terms(blocks: float, head: float, rows: int) -> list[float]:
    return [blocks, head, 1, (blocks + head) * (rows - 1)]


def fitted(calls: list[tuple[float, float, int, float]]) -> np.ndarray:
    """The factors whose relative errors (the latest call's weight is 1, that of the one before .98, and so on) and
    distances from the prior are least; a call counts as twice what was expected of it at most."""
    lines: list[np.ndarray] = []
    unit, found = 0.0, np.array(PRIOR, float)
    for blocks, head, rows, seconds in calls:
        x = np.array(terms(blocks, head, rows))
        unit = unit or seconds / float(x @ PRIOR)
        expected = float(found @ x)
        lines = [line * np.sqrt(0.98) for line in lines]
        lines.append(np.array([*x, min(seconds / unit, 2 * expected)]) / expected)
        prior = [[*np.sqrt(TRUST[i]) * np.eye(4)[i], np.sqrt(TRUST[i]) * PRIOR[i]] for i in range(4)]
        every = np.array([*lines, *prior])
        found = np.linalg.lstsq(every[:, :4], every[:, 4], rcond=None)[0]
    return unit * found


def measured(calls: list[tuple[float, float, int, float]]) -> SliceCosts:
    costs = SliceCosts(SPEC)
    for call in calls:
        costs.add(*call)
        costs.seconds(*CALLS[0])  # estimates are those of the calls so far
    return costs


def test_the_prior_by_hand() -> None:
    costs, (blocks, head) = SliceCosts(SPEC), block_costs(SPEC)
    assert costs.head == head
    assert costs.blocks(0, len(blocks)) == pytest.approx(1 - head)
    assert costs.blocks(1, 3) == pytest.approx(blocks[1] + blocks[2])
    assert costs.plain == pytest.approx(1)
    assert costs.seconds(0.5, 0.1, 1) == pytest.approx(0.6)
    assert costs.seconds(0.5, 0.1, 6) == pytest.approx(0.6 + 5 * 0.04 * 0.6)


def test_the_first_call_is_the_unit() -> None:
    """It took 3: all calls take 3 / (.35 + 3 * .04 * .35) times as much as before."""
    costs, unit = measured([(0.25, 0.1, 4, 3.0)]), 3 / (0.35 + 3 * 0.04 * 0.35)
    assert costs.seconds(0.25, 0.1, 4) == pytest.approx(3)
    assert costs.seconds(0.5, 0.2, 2) == pytest.approx(unit * (0.7 + 0.04 * 0.7))
    assert costs.plain == pytest.approx(unit)


@pytest.mark.parametrize("law", [(2.0, 0.5, 0.0, 0.1), (0.4, 3.0, 0.2, 0.0), (1.0, 1.0, 0.0, 0.04)])
def test_factors_are_fitted_to_the_calls(law: tuple[float, ...]) -> None:
    calls = [(*call, float(np.dot(law, terms(*call)))) for call in CALLS * 6]
    for n in (1, 2, 3, 24):
        costs, factors = measured(calls[:n]), fitted(calls[:n])
        for call in CALLS:
            assert costs.seconds(*call) == pytest.approx(float(factors @ terms(*call)), rel=1e-9)


def test_a_call_that_was_held_up_counts_as_twice_what_was_expected() -> None:
    usual = [(*call, float(np.dot(PRIOR, terms(*call)))) for call in CALLS]
    slow = measured([*usual, (0.5, 0.1, 1, 90.0)]).seconds(0.5, 0.1, 1)
    assert slow == pytest.approx(measured([*usual, (0.5, 0.1, 1, 1.2)]).seconds(0.5, 0.1, 1))
    assert 0.6 < slow < 0.7


def test_estimates_have_a_floor_and_ignore_what_is_no_measurement() -> None:
    costs = measured([(0.5, 0.1, 1, 0.6)])
    for nothing in ((0.5, 0.1, 1, 0.0), (0.5, 0.1, 1, -1.0), (0.0, 0.0, 1, 5.0)):
        costs.add(*nothing)
    assert costs.seconds(0.5, 0.1, 3) == pytest.approx(0.6 + 2 * 0.04 * 0.6)
    cheap = [(0.5, 0.5, 1, 0.3), *[(0.9, 0.1, 1, 0.003)] * 99]  # a hundredth of what the first call said
    assert float(fitted(cheap) @ terms(1, 0, 1)) < 0.02
    assert measured(cheap).seconds(1, 0, 1) == pytest.approx(0.3 * 0.1)
