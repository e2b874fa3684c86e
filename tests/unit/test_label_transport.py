"""Means of examples that are moved towards the texts (`edgedec.encoding.transport`)."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from edgedec.encoding import transport as module
from edgedec.encoding.numeric import unit
from edgedec.encoding.transport import aligned, transport


def clusters(random: np.random.Generator, counts: list[int], shift: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One example a label, and texts which all lie to one side of their label's example."""
    centres = random.standard_normal((len(counts), 32))
    examples = unit(centres + 1.6 * random.standard_normal(centres.shape))
    wanted = np.repeat(np.arange(len(counts)), counts)
    aside = shift * random.standard_normal(32)
    texts = unit(centres[wanted] + 0.5 * random.standard_normal((len(wanted), 32)) + aside)
    return examples, texts, wanted


def right(means: np.ndarray, texts: np.ndarray, wanted: np.ndarray) -> float:
    return float(((texts @ means.T).argmax(axis=1) == wanted).mean())


def test_worked_examples() -> None:
    assert doctest.testmod(module, extraglobs={"np": np}).attempted
    assert not doctest.testmod(module, extraglobs={"np": np}).failed


def test_a_plan_has_the_sums_that_are_wanted() -> None:
    random = np.random.default_rng(0)
    costs, shares = random.random((6, 40)), unit(random.random(6)) ** 2
    plan = transport(costs, shares)
    np.testing.assert_allclose(plan.sum(axis=1), shares, rtol=1e-5)
    np.testing.assert_allclose(plan.sum(axis=0), np.full(40, 1 / 40), rtol=1e-5)


def test_a_plan_costs_what_a_linear_program_finds() -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="the plan is compared with scipy's linear program")
    random = np.random.default_rng(1)
    costs, shares = random.random((4, 20)), np.array([0.1, 0.2, 0.3, 0.4])
    plan = transport(costs, shares)
    sums = np.concatenate([np.kron(np.eye(4), np.ones(20)), np.kron(np.ones(4), np.eye(20))])
    best = optimize.linprog(costs.ravel(), A_eq=sums, b_eq=np.concatenate([shares, np.full(20, 0.05)]))
    # The entropy of a plan is at most log(80), of which the least cost may be missed by a twentieth.
    assert best.fun - 1e-6 <= float((plan * costs).sum()) <= best.fun + 0.05 * np.log(80)
    assert float((plan * costs).sum()) < best.fun + 0.03 < float((shares[:, None] * costs / 20).sum())
    # It is the plan of this entropy: exp(-cost / 0.05) times a factor a row and one a column.
    logs = np.log(plan) + costs / 0.05
    np.testing.assert_allclose(logs - logs[:1] - logs[:, :1] + logs[0, 0], np.zeros_like(logs), atol=1e-6)


@pytest.mark.parametrize("align", ["measured", "even"])
def test_means_that_are_moved_label_more_texts(align: module.Align) -> None:
    gained = []
    for seed in range(8):
        examples, texts, wanted = clusters(np.random.default_rng(seed), [30] * 8, 0.7)
        moved = aligned(examples, np.ones(8, np.int64), texts, align)
        np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-6)
        gained.append(right(moved, texts, wanted) - right(examples, texts, wanted))
    assert min(gained) > 0
    assert np.mean(gained) > 0.1


def test_labels_of_unequal_frequency_need_the_measured_shares() -> None:
    found = {"plain": [], "measured": [], "even": []}
    for seed in range(8):
        examples, texts, wanted = clusters(np.random.default_rng(seed), [160, 80, 40, 20, 10, 5, 3, 2], 0.7)
        ones = np.ones(8, np.int64)
        found["plain"].append(right(examples, texts, wanted))
        for align in ("measured", "even"):
            found[align].append(right(aligned(examples, ones, texts, align), texts, wanted))
    assert np.mean(found["measured"]) > np.mean(found["plain"]) + 0.05
    assert np.mean(found["even"]) < np.mean(found["plain"]) - 0.1


def test_few_texts_move_means_a_little_and_examples_hold_them() -> None:
    examples, texts, _ = clusters(np.random.default_rng(3), [1] * 8, 0.3)
    for align in ("measured", "even"):
        one = aligned(examples, np.ones(8, np.int64), texts[:1], align)
        assert (one @ texts[0]).argmax() == (examples @ texts[0]).argmax()
    nearest = int((examples @ texts[0]).argmax())
    moved = aligned(examples, np.full(8, 2), texts[:1], "measured")
    # Two examples and a text: a third of the way. The other labels have no text and stay.
    np.testing.assert_allclose(moved[nearest], unit(2 / 3 * examples[nearest] + texts[0] / 3), atol=1e-6)
    np.testing.assert_array_equal(np.delete(moved, nearest, 0), np.delete(examples, nearest, 0))
    many = aligned(examples, np.full(8, 1000), texts, "even")
    assert float((many * examples).sum(axis=1).min()) > 0.999


def test_one_example_a_label_takes_five_passes() -> None:
    examples, texts, _ = clusters(np.random.default_rng(4), [20] * 6, 0.8)

    def passes(counts: np.ndarray) -> int:
        calls = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "transport", lambda *given: calls.append(1) or transport(*given))
            aligned(examples, counts, texts, "even")
        return len(calls)

    assert passes(np.ones(6, np.int64)) == 5
    assert passes(np.array([1, 1, 1, 2, 1, 1])) == 1


def test_texts_that_are_all_the_same() -> None:
    same = np.tile(unit(np.ones(8, np.float32)), (5, 1))
    for align in ("measured", "even"):
        assert np.isfinite(aligned(same[:2], np.ones(2, np.int64), same, align)).all()
