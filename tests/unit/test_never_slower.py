"""Drafting never loses much, at any acceptance and any load, and gains what the best fixed length would: in simulated
time, with real proportions. Calls take milliseconds and scatter; drafters and the loop take microseconds, in what was
measured; no clock of this machine is read, so that a run gives the same figures anywhere."""

from __future__ import annotations

import pytest
from simulated import Seconds, Simulation, large, measured, small, tiny


@pytest.mark.parametrize("n", [1, 4, 16, 64])
@pytest.mark.parametrize("right", [0.0, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("seconds", [large, small], ids=["1.2b", "135m"])
def test_in_every_cell(seconds: Seconds, right: float, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    off, governed, best = cell(measured(seconds, monkeypatch), n, right)
    # A little wider than the bounds of the issue: these texts are short, and begin with nothing known.
    assert governed > 0.96 * off
    assert governed > 0.9 * best


@pytest.mark.parametrize(("n", "right"), [(1, 0.0), (1, 0.3), (4, 0.3), (4, 0.7), (16, 0.0), (16, 0.9), (64, 0.7)])
@pytest.mark.parametrize("seconds", [large, small], ids=["1.2b", "135m"])
def test_after_a_while_next_to_nothing_is_lost(
    seconds: Seconds, n: int, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = measured(seconds, monkeypatch)
    tokens = 240 if n < 64 else 100
    assert simulation.run(n, right, tokens, fixed=0) > 0.98 * simulation.run(n, right, tokens)


@pytest.mark.parametrize("right", [0.0, 0.3, 0.7, 0.9])
def test_where_a_call_takes_no_longer_than_python_nothing_is_lost(
    right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = measured(tiny, monkeypatch)
    assert simulation.run(1, right, 400, fixed=0) > 0.98 * simulation.run(1, right, 400)


def test_a_run_is_the_same_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {measured(small, monkeypatch).run(4, 0.7, 60, fixed=0) for _ in range(2)}
    assert len(speeds) == 1


def cell(simulation: Simulation, n: int, right: float) -> tuple[float, float, float]:
    """Tokens a second without drafts, governed, and with the best fixed length."""
    tokens = 120 if n < 16 else 40
    off = simulation.run(n, right, tokens)
    simulation.runtime.rows.clear()
    governed = simulation.run(n, right, tokens, fixed=0)
    if right >= 0.7 and n <= 4:
        assert max(simulation.runtime.rows[2:]) > n, "nothing was drafted"
    lengths = [length for length in (1, 2, 4, 8) if n * (1 + length) <= 256]
    return off, governed, max(simulation.run(n, right, tokens, fixed=length) for length in lengths)


@pytest.mark.parametrize("seconds", [large, small], ids=["1.2b", "135m"])
def test_a_first_generation_pays_little_for_measuring(seconds: Seconds, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(seconds, monkeypatch)
    assert not simulation.costs.points()
    first = simulation.run(1, 0.0, 120, fixed=0)
    assert simulation.costs.covers(1)
    assert first > 0.93 * simulation.run(1, 0.0, 120)
    second = simulation.run(1, 0.9, 120, fixed=0)
    assert second > 1.5 * simulation.run(1, 0.9, 120)


def test_many_short_texts_lose_no_more_than_one_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = measured(small, monkeypatch)
    off = governed = 0.0
    for _ in range(12):
        off += 25 / simulation.run(1, 0.0, 25)
        governed += 25 / simulation.run(1, 0.0, 25, fixed=0)
    assert off > 0.95 * governed


def test_the_load_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned alone serves in company, and the other way round."""
    simulation = Simulation(large, monkeypatch)
    for n in (1, 16, 4, 64, 1):
        simulation.run(n, 0.7, 60, fixed=0)
    for n in (1, 4, 16):
        assert simulation.run(n, 0.7, 60, fixed=0) > 0.93 * simulation.run(n, 0.7, 60)
    assert simulation.run(4, 0.7, 60, fixed=0) > 1.4 * simulation.run(4, 0.7, 60)
