"""The parts of the governor by themselves: calibration, budget, backoff, what is shared."""

from __future__ import annotations

from itertools import pairwise
from time import sleep, thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.drafters import Tables
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.speculation.accounts import Prices, UsualTime, plain_seconds, reading_share
from edgedec.speculation.backoff import DrafterStats
from edgedec.speculation.budget import ALLOWANCE, SAVINGS, START, Budget
from edgedec.speculation.costs import Costs
from edgedec.speculation.own_time import OwnTime
from edgedec.speculation.selection import SURE
from edgedec.trees.calibration import BINS, Calibration, SharedCalibrations

CALL = 4e-3


# ── calibration ──


def test_calibration_learns_and_forgets() -> None:
    calibration = Calibration()
    assert calibration.estimates[BINS - 1] > 0.9
    for _ in range(30):
        calibration.add(BINS - 1, False)
    assert calibration.estimates[BINS - 1] < 0.12
    for _ in range(120):
        calibration.add(BINS - 1, True)
    assert calibration.estimates[BINS - 1] > 0.75
    assert calibration.estimates[0] == Calibration().estimates[0]


def learned(kind: int = 5, tests: int = 40, right: int = 30) -> Calibration:
    calibration = Calibration()
    for i in range(tests):
        calibration.add(kind, i < right)
    return calibration


def test_calibration_is_state() -> None:
    first, second = learned(), Calibration()
    second.restore(first.state())
    assert np.array_equal(first.estimates, second.estimates)
    second.add(5, True)
    assert second.tests[5] == first.tests[5] + 1


@pytest.mark.parametrize(
    "damage",
    [
        np.zeros((2, BINS - 1)),
        np.zeros((2, BINS), np.int64),
        np.full((2, BINS), np.nan),
        np.full((2, BINS), -1.0),
        np.stack([np.ones(BINS), np.zeros(BINS)]),
        np.full((2, BINS), 1e9),
    ],
)
def test_damaged_calibration_is_refused(damage: np.ndarray) -> None:
    calibration = learned()
    before = calibration.estimates.copy()
    with pytest.raises(UsageError, match="state calibration"):
        calibration.restore(damage)
    assert np.array_equal(calibration.estimates, before)


def test_a_session_starts_from_what_others_have_seen_and_goes_its_own_way() -> None:
    shared = SharedCalibrations()
    for _ in range(12):
        shared.add("copy", learned(right=38))
    own = shared.start("copy")
    assert own.estimates[5] > 0.6 > Calibration().estimates[5]
    for _ in range(20):
        own.add(5, False)
    assert own.estimates[5] < 0.35, "its own text counts for more"
    assert shared.start("copy").estimates[5] > 0.6
    assert np.array_equal(shared.start("suffix").estimates, Calibration().estimates)


SPEC = "copy:fixed=5+recycling"


def calibrations(session: edgedec.Session) -> dict[str, bytes]:
    return {key: array.tobytes() for key, array in session._drafter.state().items() if key.startswith("governor.")}


def test_calibration_is_saved_forked_and_shared(tmp_path: object) -> None:
    model = edgedec.open("nano", threads=1)
    fresh = calibrations(model.session(speculate=SPEC))
    session = model.session(speculate=SPEC)
    list(session.tokens([5, 6, 7, 5, 6, 7, 5, 6], max_tokens=60, ignore_eos=True))
    kept = calibrations(session)
    assert kept != fresh
    assert calibrations(session.fork()) == kept
    session.save(f"{tmp_path}/a.session")
    again = model.session(speculate=SPEC)
    again.load(f"{tmp_path}/a.session")
    assert calibrations(again) == kept
    tables: Tables = {}
    first = model.session(speculate=SPEC, tables=tables)
    list(first.tokens([5, 6, 7, 5, 6, 7, 5, 6], max_tokens=60, ignore_eos=True))
    assert calibrations(model.session(speculate=SPEC, tables=tables)) != fresh
    assert calibrations(first.fork()) == calibrations(first)


# ── budget ──


def test_what_is_lost_is_bounded_whatever_happens() -> None:
    """Drafters that never gain: each call takes what is left, and a little for each token comes back."""
    budget, spent, calls = Budget(), 0.0, 5000
    budget.start(CALL)
    for _ in range(calls):
        cost = 2e-4 if budget.left > 0 else 0.0
        budget.add_call(CALL, 1, cost)
        spent += cost
    assert spent < (START * CALL + ALLOWANCE * CALL * calls) * 1.02
    assert spent > 0.9 * ALLOWANCE * CALL * calls, "and it is used"


def test_savings_are_limited_and_only_the_first_start_counts() -> None:
    budget = Budget()
    budget.start(CALL)
    budget.start(CALL)
    assert budget.left == START * CALL
    for _ in range(100):
        budget.add_draft(5 * CALL, 0.1 * CALL)
    assert budget.left == SAVINGS * CALL
    assert budget.saved == pytest.approx(500 * CALL)


def test_debts_go_on_to_the_next_text() -> None:
    budget = Budget()
    budget.start(CALL)
    budget.add_draft(0.0, 4 * CALL)
    budget.start(CALL)
    assert budget.left == pytest.approx(-3 * CALL)


def test_guesses_that_bring_less_than_expected_count_for_less() -> None:
    budget = Budget()
    budget.start(CALL)
    assert budget.trust == 1.0
    for _ in range(50):
        budget.add_guesses(2.0, 1)
    assert 0.5 < budget.trust < 0.6
    for _ in range(400):
        budget.add_guesses(2.0, 2)
    assert budget.trust > 0.95
    budget.left = -0.5 * CALL
    careful = budget.trust
    budget.left = -2 * CALL
    assert 1.0 > careful > budget.trust > 0.6


# ── prices, drawn drafts, spikes ──


def test_what_a_token_is_worth_and_a_row_costs_in_company() -> None:
    costs = Costs({1: 1.0, 4: 2.0, 8: 6.0})
    alone = Prices.of(costs, 1, 4, 3, plain_seconds(costs, 1, 0))
    assert (alone.token, alone.row) == (1.0, pytest.approx(1 / 3))
    company = Prices.of(costs, 4, 8, 4, plain_seconds(costs, 4, 0))
    assert (company.token, company.row) == (0.5, 1.0)
    assert Prices.of(costs, 40, 60, 20, plain_seconds(costs, 40, 0)).row == 0.0, "nothing is known there"
    assert Prices.of(Costs({}, largest=8), 1, 1, 0, 0.0).token == 0.0
    costs.per_cell = 0.001
    late = Prices.of(costs, 1, 4, 3, plain_seconds(costs, 1, 1000))
    assert (late.token, late.row) == (2.0, pytest.approx(1 / 3 + 1.0 / 4)), "the text is read once"


def test_the_text_before_a_call_counts_in_what_a_token_is_worth() -> None:
    costs = Costs({1: 1.0, 4: 2.0, 8: 6.0}, per_cell=0.01)
    long = Prices.of(costs, 1, 4, 3, plain_seconds(costs, 1, 50))
    assert (long.token, long.row, long.call) == (1.5, pytest.approx(1 / 3 + 0.5 / 4), 1.5)
    company = Prices.of(costs, 4, 8, 4, plain_seconds(costs, 4, 50))
    assert (company.token, company.row) == (1.0, pytest.approx(1 + 0.5 / 4))


def test_a_spike_of_the_drafters_time_is_cut() -> None:
    usual = UsualTime()
    assert usual.cut(99.0, 0.25) == 0.025, "in the first call things are opened"
    assert [usual.cut(1.0, 0.25) for _ in range(9)] == [1.0] * 9
    assert usual.cut(50.0, 0.25) == pytest.approx(4.0, rel=0.15)


def test_a_prompt_that_drafters_read_is_a_share_of_its_reading() -> None:
    step: Any = SimpleNamespace(root=59, rows=range(60), seconds=0.3)
    assert reading_share(step, 120) == pytest.approx(0.02 * 0.6)
    step.root = 0
    assert reading_share(step, 120) == 0.0


def test_what_was_drawn_says_nothing_about_guesses() -> None:
    """One sampled generation with a poor verifier left later greedy drafts short for the life of a session."""
    member = DrafterStats("model", Off())
    costs = Costs({1: 1.0, 8: 1.3, 32: 5.0})
    assert member.drawn_length(costs, 1) > 8
    for _ in range(100):
        member.add_drawn(4, 0)
    assert member.drawn_rate < 0.1
    lengths = [member.drawn_length(costs, 1) for _ in range(64)]
    assert min(lengths) <= 1
    assert max(lengths) > 8, "now and then it is tried"
    for _ in range(200):
        member.add_drawn(4, 4)
    assert 0.96 < member.drawn_rate < SURE
    assert member.drawn_length(costs, 1) == 7


def test_a_spike_of_the_host_is_no_time_of_the_drafter() -> None:
    member = DrafterStats("copy", Off())
    for _ in range(50):
        member.add_proposal(1e-5)
        member.add_observation(1e-5)
    member.add_proposal(0.05)
    member.add_observation(0.05)
    assert member.propose_s < 2e-5
    assert member.observe_s < 2e-5
    for _ in range(100):
        member.add_proposal(1e-3)
    assert member.propose_s > 5e-4, "but a drafter that becomes slow is"


def test_one_that_gains_nothing_is_backed_off_for_longer_each_time() -> None:
    member, used = DrafterStats("copy", Off()), []
    for call in range(600):
        member.expensive = True
        if member.drafts(0):
            used.append(call)
            member.add_proposal(1e-3)
            member.add_gain(0.0, 0.0)
    assert used[:8] == list(range(8))
    gaps = [b - a for a, b in pairwise(used) if b - a > 1]
    assert gaps[:3] == [17, 33, 65]
    member.restart()
    assert not member.backed_off


def test_time_in_which_another_program_had_the_core_is_not_counted() -> None:
    watch = OwnTime()
    sleep(0.05)
    assert watch.seconds() < 0.02
    assert watch.seconds(forwards=0.04) == pytest.approx(0.04, abs=0.02), "forwards may run in other threads"
    watch = OwnTime()
    until = thread_time() + 0.03
    while thread_time() < until:
        pass
    assert watch.seconds() > 0.01
    assert watch.seconds(elsewhere=1.0) < 0.0
