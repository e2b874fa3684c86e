"""Calibration, what sessions share of it, and the clock of drafters."""

from __future__ import annotations

from time import sleep, thread_time

import numpy as np
import pytest

import edgedec
from edgedec.decoding import host_time
from edgedec.decoding.host_time import OwnTime
from edgedec.drafters import Tables
from edgedec.errors import UsageError
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


# ── OwnTime ──


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


def test_a_watch_counts_what_the_thread_and_its_helpers_did(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"wall": 10.0, "own": 5.0}
    monkeypatch.setattr(host_time, "FINE", True)
    monkeypatch.setattr(host_time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(host_time, "thread_time", lambda: clock["own"])
    watch = OwnTime()
    clock.update(wall=20.0, own=8.0)
    assert watch.seconds() == 6.0, "at most two threads"
    assert watch.seconds(elsewhere=5.0) == 5.0
    assert watch.seconds(forwards=1.0) == 1.0 + 6.0
    assert watch.seconds(elsewhere=2.0, forwards=5.0) == 5.0 + 3.0
    monkeypatch.setattr(host_time, "FINE", False)
    assert watch.seconds() == 10.0
