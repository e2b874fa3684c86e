"""What calls cost: a curve by rows, a slope by context, both followed on line, completed by probes, kept on disk."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import ref

import numpy as np
import pytest

from edgedec.decoding.allocation import text_cells
from edgedec.model import open as open_model
from edgedec.spec import Attention
from edgedec.spec.macs import row_macs
from edgedec.speculation import cost_files
from edgedec.speculation.cost_files import cell_calls, host_costs, probe_of
from edgedec.speculation.costs import Costs, _rising
from edgedec.speculation.probing import COUNTS, RowProbe
from edgedec.testing.fakes import tiny_spec

MS = 1e-3


def true(rows: int, cells: int = 0) -> float:
    """A call of a model of 135 million weights on four cores."""
    return (3.5 + 0.7 * max(rows - 2, 0)) * MS + 1.4e-6 * cells


def test_between_and_beyond_what_was_measured() -> None:
    costs = Costs({1: 1.0, 2: 0.9, 4: 2.0})
    assert costs.seconds == [0.0, 0.95, 0.95, pytest.approx(1.475), 2.0], "what falls is taken together"
    assert _rising([1.0, 4.0, 2.0], [1, 1, 3]) == [1.0, 2.5, 2.5]
    assert costs.most == 4
    further = Costs({1: 1.0, 2: 1.1}, largest=6)
    assert further.most == 6
    assert further.seconds[6] == pytest.approx(1.1 + 4 * 1.2 * 0.1)
    assert further.covers(1)
    assert not further.covers(2)
    assert Costs({}, largest=8).covers(1) is False
    assert Costs({8: 2.0, 16: 3.0}).seconds[1] > 1.0


def test_the_curve_follows_the_host() -> None:
    costs = Costs({1: 1.0, 4: 2.0})
    for i in range(60):
        costs.add(4, 4.0 + i * 1e-9)
    assert costs.seconds[4] == pytest.approx(4.0, rel=0.1)
    costs.add(1, 1.5)
    assert 1.2 < costs.seconds[1] < 4.0  # nobody looked, but the host is slower for all
    for i in range(60):
        costs.add(1, 1.0 + i * 1e-9)
    assert costs.seconds[1] == pytest.approx(1.0, rel=0.1)
    costs.add(1, 1e6)
    assert costs.seconds[1] < 1.3  # one wild call is no change
    assert costs.add(9, 1.0)
    assert costs.add(1, 0.0)


def test_a_forward_counts_once_however_many_share_it() -> None:
    costs = Costs({1: 1.0, 4: 2.0})
    assert costs.add(4, 4.0)
    after = costs.points()
    assert not any(costs.add(4, 4.0) for _ in range(63))
    assert costs.points() == after


def test_points_are_learned_from_calls() -> None:
    costs, rng = Costs({}, largest=256), np.random.default_rng(1)
    for rows in (1, 16, 4, 64, 200, 1, 16, 4, 64, 200) * 12:
        costs.add(rows, true(rows) * rng.uniform(1.0, 1.2))
    for rows in (1, 4, 10, 16, 40, 64, 200):
        assert costs.seconds[rows] == pytest.approx(true(rows), rel=0.3)
    assert costs.covers(64)
    assert costs.calls(65) > 1
    assert costs.calls(100) == 0


def test_the_slope_is_learned_apart_from_the_curve() -> None:
    """A text that grows from 100 to 1,500 tokens: what a call of 16 rows costs at its end is not 16/1 of the growth."""
    costs, rng = Costs({k: true(k) for k in (1, 4, 8, 16, 32)}, per_cell=0.3e-6), np.random.default_rng(2)
    for context in range(100, 1500, 2):
        rows = int(rng.choice([1, 1, 4, 16]))
        cells = rows * context
        costs.add(rows, true(rows, cells) * rng.uniform(0.95, 1.05), cells)
    assert costs.per_cell == pytest.approx(1.4e-6, rel=0.35)
    for rows in (1, 4, 16):
        found = costs.seconds[rows] + costs.per_cell * rows * 1500
        assert found == pytest.approx(true(rows, rows * 1500), rel=0.2)


def test_the_slope_begins_with_what_arithmetic_says() -> None:
    spec = tiny_spec()
    assert 0 < cell_calls(spec) < 1
    attended = 2 * sum(block.n_heads * block.head_dim for block in spec.blocks if isinstance(block, Attention))
    assert cell_calls(spec) == pytest.approx(2 * attended / row_macs(spec)), "scores and values; each counts twice"
    assert cell_calls(tiny_spec(window=4)) < cell_calls(spec)
    costs = Costs({}, largest=32)
    costs.cell_calls = 0.0004
    assert costs.per_cell == 0
    costs.add(1, true(1))
    assert costs.per_cell == pytest.approx(0.0004 * true(1))
    for i in range(300):  # whatever disturbed calls say, it stays near that
        costs.add(1, true(1, 200) * (1 + i % 7), 200)
    assert 0.0004 / 3 <= costs.per_cell / costs.seconds[1] <= 0.0004 * 3


@pytest.mark.parametrize("arithmetic", [True, False])
def test_a_slope_that_is_far_too_steep_takes_nothing_from_the_curve(arithmetic: bool) -> None:
    """Where a call attends to a part of its text only, what its cells take by arithmetic is more than the whole call:
    the curve once went to nothing, and drafts had a budget of many calls."""
    costs = Costs({k: true(k) for k in (1, 4, 8)}, per_cell=40e-6)
    if arithmetic:
        costs.cell_calls = 40e-6 / true(1)
    for context in range(100, 3000, 2):
        costs.add(1, true(1, 100) * (1 + 1e-6 * context), context)  # equal seconds are of one call
        assert context < 200 or costs.per_cell * context < true(1, 100)
    assert costs.seconds[1] == pytest.approx(true(1), rel=0.5)
    assert costs.seconds[1] + costs.per_cell * 3000 == pytest.approx(true(1, 100), rel=0.1)


@pytest.mark.parametrize("arithmetic", [0.5, 1.0, 2.0])
def test_after_a_long_text_an_error_is_the_slopes(arithmetic: float) -> None:
    """After 30,000 tokens a call is nearly all text: what is wrong says next to nothing of the curve."""
    costs, rng = Costs({k: true(k) for k in (1, 2, 4, 8)}, per_cell=arithmetic * 1.4e-6), np.random.default_rng(0)
    for context in range(30000, 32000, 2):
        rows = int(rng.choice([1, 1, 1, 4]))
        cells = text_cells(rows, context)
        costs.add(rows, true(rows, cells) * rng.uniform(0.95, 1.05), cells)
    assert costs.per_cell == pytest.approx(1.4e-6, rel=0.1)
    for rows in (1, 4, 8):
        assert costs.seconds[rows] == pytest.approx(true(rows), rel=0.25)


def test_a_row_of_many() -> None:
    costs = Costs({1: 1.0, 3: 2.0, 5: 6.0})
    assert costs.row(1, 2) == pytest.approx(0.5)
    assert costs.row(3, 10) == pytest.approx(2.0)
    assert costs.row(5, 1) == 0.0


# ── row probe ──


def probed(calls: int, true_cost: Any = true, most: int = 255, keep: Any = lambda: None) -> tuple[Costs, list[int]]:
    """A text alone whose drafts never pay: what each call had for rows."""
    costs, made, seconds = Costs({}, largest=256), list[int](), np.random.default_rng(3)
    row_probe = RowProbe(costs, keep)
    for _ in range(calls):
        rows = row_probe.due(1, 1 + most) or 1
        took = true_cost(rows) * seconds.uniform(1.0, 1.05)
        made.append(rows)
        if costs.add(rows, took):
            row_probe.add(took, costs.seconds[1])
    return costs, made


def test_a_row_probe_measures_the_coarsest_first_and_ends() -> None:
    costs, made = probed(4000)
    asked = [rows for rows in made if rows > 1]
    assert asked[:3] == [8, 3, 16]
    assert {k for k in COUNTS if 2 < k <= 24} <= set(asked) <= set(COUNTS)
    assert len(asked) == len(set(asked)) + 3, "the coarsest three twice"
    assert made[:2] == [1, 1], "the first calls show what one row costs"
    for rows in (3, 12, 24):
        assert costs.seconds[rows] == pytest.approx(true(rows), rel=0.1)


def test_a_row_probe_costs_little_and_comes_soon() -> None:
    for n, most in ((40, 0.07), (300, 0.03), (2000, 0.025)):
        costs, made = probed(n)
        assert costs.covers(1)
        assert sum(map(true, made)) / (n * true(1)) - 1 < most


def test_rows_that_cannot_pay_are_not_measured() -> None:
    def steep(rows: int) -> float:
        return rows * 1.5 * MS

    _, made = probed(1000, steep)
    assert max(made) == 8
    assert made.count(8) <= 2


def test_a_row_probe_keeps_what_it_found() -> None:
    kept: list[int] = []
    costs, _ = probed(2000, keep=lambda: kept.append(1))
    assert 3 <= len(kept) <= len(costs.points())


def test_in_company_further_rows_are_measured() -> None:
    costs = Costs({}, largest=256)
    row_probe = RowProbe(costs)
    for i in range(40):
        rows = row_probe.due(64, 256) or 64
        if costs.add(rows, true(rows) + i * 1e-9):
            row_probe.add(true(rows), true(64))
    assert costs.covers(64)


# ── on disk ──


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    return tmp_path / "costs"


def test_a_generation_learns_what_the_next_process_knows(cached: Path) -> None:
    model = open_model("nano", threads=1)
    session = model.session(speculate="copy+recycling")
    list(session.tokens([1, 2, 3], max_tokens=200, ignore_eos=True))
    costs = host_costs(model.runtime, model.bundle)
    assert costs is host_costs(model.runtime, model.bundle)
    assert {1, 8} <= costs.points().keys()
    while not cached.exists():
        list(session.tokens([1, 2, 3], max_tokens=200, ignore_eos=True))
    (file,) = cached.iterdir()
    kept = json.loads(file.read_text())
    assert len(kept["rows"]) >= 4
    again = open_model("nano", threads=1)
    found = host_costs(again.runtime, again.bundle)
    assert found is not costs
    assert found.covers(1)
    assert found.per_cell == kept["per_cell"] > 0
    other = open_model("nano", threads=2)
    assert host_costs(other.runtime, other.bundle).points() == {}, "other threads, another file"


def test_damaged_files_are_as_none(cached: Path) -> None:
    model = open_model("nano", threads=1)
    path = cost_files._path(model.runtime, model.bundle)
    path.parent.mkdir(parents=True)
    for damage in (
        b"",
        b"[]",
        b"{}",
        b'{"rows": {"1": -1}, "per_cell": 0}',
        b'{"rows": {"1": 1, "2": 1e9}, "per_cell": 0}',
        b'{"rows": {"1": 1, "0": 1}, "per_cell": 0}',
        b'{"rows": {"1": 1}, "per_cell": NaN}',
        b'{"rows": {"1": "x"}, "per_cell": 0}',
        b'{"rows": {"1": 1}}',
        b"\xff",
    ):
        path.write_bytes(damage)
        assert cost_files._read(path) is None
    path.write_bytes(b'{"rows": {"1": 0.5, "8": 0.75}, "per_cell": 1e-6}')
    costs = host_costs(model.runtime, model.bundle)
    assert costs.points() == {1: 0.5, 8: 0.75}
    assert probe_of(costs) is not None
    assert probe_of(Costs({1: 1.0})) is None


def test_nothing_is_measured_before_the_first_token(cached: Path) -> None:
    model = open_model("nano", threads=1)
    tokens = model.session().tokens([1, 2, 3], max_tokens=200, ignore_eos=True)
    next(tokens)
    assert host_costs(model.runtime, model.bundle).points() == {}
    list(tokens)
    assert host_costs(model.runtime, model.bundle).covers(1)


def test_what_a_closed_model_cost_is_forgotten(cached: Path) -> None:
    """A server that loads and unloads models kept all of it: a row probe holds its costs."""
    model = open_model("nano")
    costs = host_costs(model.runtime, model.bundle)
    assert probe_of(costs) is not None
    assert host_costs(model.runtime, model.bundle) is costs
    kept = ref(costs)
    del model, costs
    gc.collect()
    assert kept() is None


def test_sessions_in_several_threads_share_a_surface() -> None:
    costs, wrong = Costs({}, largest=256), list[BaseException]()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(1500):
                rows = int(rng.integers(1, 257))
                costs.add(rows, true(rows) * rng.uniform(0.9, 1.1), rows * 100)
                assert len(costs.seconds) in (1, 257)
                costs.points()
        except BaseException as error:
            wrong.append(error)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert costs.seconds[200] == pytest.approx(true(200, 0), rel=0.5)


def test_a_point_that_is_new_while_the_host_is_slow_is_as_slow_as_the_others() -> None:
    """All calls take 1.3 times as long: 8 rows cost twice as much as one row, not 2.6 times."""
    costs = Costs({1: 1.0, 4: 1.4}, largest=32)
    for n in range(5):
        costs.add(1, 1.3 + 1e-6 * n)
    for n in range(2):
        costs.add(8, 2.6 + 1e-6 * n)
    points = costs.points()
    assert points[8] / points[1] == pytest.approx(2.0, rel=0.15)


def test_the_curve_is_computed_anew_once_it_is_wrong_not_at_every_call() -> None:
    """A tenth more in each call: after some calls the curve follows. Twice as much in each: at once."""
    costs = Costs({1: 1.0, 8: 2.0})
    for n in range(7):
        costs.add(8, 2.2 + 1e-6 * n)
    assert costs.seconds[8] == 2.0
    for n in range(5):
        costs.add(8, 2.2 + 1e-6 * (n + 7))
    assert costs.seconds[8] > 2.08
    costs = Costs({1: 1.0, 8: 2.0})
    for n in range(3):
        costs.add(8, 4.0 + 1e-6 * n)
    assert costs.seconds[8] > 2.5


def test_points_that_contradict_one_another_by_little_are_not_doubted() -> None:
    """Two rows cannot cost more than four: a few percent are noise, a quarter is a call that was disturbed."""
    assert Costs({1: 1.0, 2: 1.2, 4: 1.1}).doubted == []
    assert Costs({1: 1.0, 2: 1.5, 4: 1.0}).doubted == [2, 4]


def test_a_slope_may_be_some_times_what_arithmetic_says() -> None:
    """Twice as much is learned from calls whose texts differ; more than three times is never believed."""
    costs = Costs({}, largest=16)
    costs.cell_calls = 1e-3
    for n in range(4):
        costs.add((1, 8)[n % 2], (1.0, 2.0)[n % 2] + 1e-6 * n)
    assert costs.per_cell == pytest.approx(1e-3, rel=0.01)
    for n in range(400):
        cells = 40 + 37 * n % 400
        costs.add((1, 8)[n % 2], (1.0, 2.0)[n % 2] + 2e-3 * cells + 1e-9 * n, cells)
    assert costs.per_cell == pytest.approx(2e-3, rel=0.2)
    for n in range(400):
        cells = 40 + 37 * n % 400
        costs.add((1, 8)[n % 2], (1.0, 2.0)[n % 2] + 9e-3 * cells + 1e-9 * n, cells)
        assert costs.per_cell <= 3.3e-3 * costs.seconds[1]


def test_disturbed_steps_count_no_more_often_than_others() -> None:
    """One of ten plain steps takes twenty times as long. By their logarithms, as all calls are learned from, the mean
    is 1.35 ms; if each step counted in which a pause ends, most would be long ones."""
    costs, rng = Costs({1: 0.001, 8: 0.0015, 64: 0.01}), np.random.default_rng(0)
    counted = 0
    for n in range(20_000):
        seconds = (0.020 if rng.random() < 0.1 else 0.001) * (1 + 1e-9 * n)
        counted += costs.add_step(1, seconds, 0, plain=True)
    assert 500 < counted < 15_000, "some count"
    assert 0.0008 < costs.seconds[1] < 0.003


def test_the_name_of_the_file_takes_no_program(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: pytest.fail("it starts uname: milliseconds of the first token"))
    model = open_model(nano)
    assert len(cost_files._key(model.runtime, model.bundle)) == 32
