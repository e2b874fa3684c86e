"""What drafting takes between calls is counted, charged and weighed: in given proportions of time, never measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import decode
from simulated import Python, Simulation, large, measured, small, tiny

from edgedec.decoding import host_time as gaps_module
from edgedec.decoding import runner
from edgedec.decoding.allocation import MARGIN, Offer, Others, allocate, best_of_one
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.host_time import Gaps
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import StepResult
from edgedec.decoding.runner import run_loop
from edgedec.drafters import BaseDrafter, Draft
from edgedec.drafters.off import Off
from edgedec.runtime import CallResult
from edgedec.speculation import outside as outside_module
from edgedec.speculation.cost_files import _read, _write
from edgedec.speculation.costs import Costs
from edgedec.speculation.following import Following
from edgedec.speculation.outside import OutsideCalls, Usual, with_outside
from edgedec.testing.fakes import FakeRuntime, SetConstraint, tiny_spec

pytestmark = pytest.mark.usefixtures("ticking")

US = 1e-6


class Clock:
    """Seconds that pass, and of these those in which this thread had the core."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.busy = 0.0
        for module in (gaps_module, runner):
            monkeypatch.setattr(module, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(gaps_module, "thread_time", lambda: self.busy)
        monkeypatch.setattr(gaps_module, "FINE", True)

    def work(self, seconds: float, lost: float = 0.0) -> None:
        self.wall += seconds + lost
        self.busy += seconds


# ── counting ──


def test_forwards_and_the_consumer_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, runtime, gaps = Clock(monkeypatch), FakeRuntime(tiny_spec()), Gaps()
    forward = runtime.forward

    def slow(calls: Any) -> list[CallResult]:
        clock.work(1.0)
        return forward(calls)

    class Thinking(BaseDrafter):
        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
            return Draft()

        def observe(self, step: StepResult) -> None:
            clock.work(0.25)

    monkeypatch.setattr(runtime, "forward", slow)
    context = Context([1, 2], 2, runtime.new_cache(64))
    for _ in run_loop(runtime, decode_loop(context, GenerationConfig(max_tokens=9), Thinking()), gaps):
        clock.work(7.0)
    assert (gaps.forwards, gaps.tokens) == (9, 9)
    assert gaps.total == pytest.approx(8 * 0.25), "what follows the last forward is before no other"


def test_time_without_the_core_is_not_counted_where_a_drafter_works(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gaps = Clock(monkeypatch), Gaps()
    clock.work(1.0)
    gaps.add_forward(1.0)
    since = clock.wall
    clock.work(0.1)
    gaps.watch()
    clock.work(0.2, lost=5.0)
    gaps.add_forward(clock.wall - since)
    assert gaps.total == pytest.approx(1.0 + 0.1 + 1.25 * 0.2)
    assert gaps.watched
    gaps.end_forward()
    clock.work(0.4, lost=9.0)
    gaps.consumed(0.0)
    gaps.add_forward(9.4)
    assert gaps.total == pytest.approx(1.35 + 1.25 * 0.4)


# ── charging ──


def calls(
    outsides: Sequence[OutsideCalls], gaps: Gaps, n: int, between: float, own: float = 0.0, drafts: bool = False
) -> list[float]:
    """So many calls of these sequences; what each was charged in the last one."""
    charged = [0.0] * len(outsides)
    for _ in range(n):
        for outside in outsides:
            outside.begin(gaps, len(outsides))
            if own:
                outside.count(own)
            if drafts:
                outside.add_draft()
        gaps.add_forward(between)
        charged = [outside.charge(len(outsides)) for outside in outsides]
    return charged


def test_what_is_beyond_the_usual_and_not_counted_is_charged() -> None:
    gaps, outside = Gaps(), OutsideCalls(Usual())
    assert calls([outside], gaps, 20, 40 * US) == [0.0]
    assert outside.usual.plain == pytest.approx(40 * US)
    (charged,) = calls([outside], gaps, 20, 240 * US, own=80 * US, drafts=True)
    assert charged == pytest.approx(120 * US), "240 less 40 without drafts and the 80 it counted itself"
    assert outside.usual.draft == pytest.approx(120 * US, rel=0.05)
    assert outside.usual.plain == pytest.approx(40 * US), "calls with drafts say nothing of those without"
    seconds = with_outside([0.0, 1.0, 2.0], outside.usual)
    assert seconds[1] == pytest.approx(1.0 + 40 * US)
    assert seconds[2] == pytest.approx(2.0 + 40 * US + outside.usual.draft)


def test_the_sequences_of_a_batch_are_charged_once_together() -> None:
    gaps, usual = Gaps(), Usual()
    several = [OutsideCalls(usual) for _ in range(8)]
    calls(several, gaps, 20, 8 * 40 * US)
    assert usual.plain == pytest.approx(40 * US)
    charged = calls(several, gaps, 20, 8 * 240 * US, own=80 * US, drafts=True)
    assert sum(charged) == pytest.approx(8 * 120 * US)
    assert usual.draft == pytest.approx(120 * US, rel=0.05)
    usual.add_plain(40 * US)
    before = usual.draft
    calls(several, gaps, 400, 8 * 40 * US)
    assert usual.draft < 0.5 * before, "what was learned long ago is doubted"


def test_one_disturbed_call_spoils_nothing() -> None:
    gaps, outside = Gaps(), OutsideCalls(Usual())
    calls([outside], gaps, 20, 40 * US)
    (charged,) = calls([outside], gaps, 1, 0.1, own=80 * US, drafts=True)
    assert charged <= outside_module._BEYOND * (80 + 40) * US
    assert outside.usual.draft < 300 * US
    calls([outside], gaps, 1, 0.1)
    assert outside.usual.plain < 50 * US


def test_another_generation_begins_a_new_account() -> None:
    outside = OutsideCalls(Usual())
    calls([outside], Gaps(), 20, 40 * US)
    gaps = Gaps()
    gaps.add_forward(3.0)
    outside.begin(gaps, 1)
    assert outside.charge(1) == 0.0
    assert outside.usual.plain == pytest.approx(40 * US)


def test_it_is_found_out_though_every_call_has_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few calls go without; where calls are long beside Python none does."""
    for seconds, known in ((small, True), (lambda rows, cells: 100 * small(rows, cells), False)):
        simulation = measured(seconds, monkeypatch)
        simulation.costs.usual = Usual()
        simulation.run(1, 0.97, 120, fixed=0)
        assert simulation.costs.usual.known is known
        assert sum(rows == 1 for rows in simulation.runtime.rows) <= 8
    assert sum(rows > 1 for rows in simulation.runtime.rows) > 10


def test_it_is_kept_with_what_calls_cost(tmp_path: Path) -> None:
    costs = Costs({1: 1.0, 4: 2.0})
    _write(tmp_path / "costs.json", costs)
    assert _read(tmp_path / "costs.json") == ({1: 1.0, 4: 2.0}, 0.0, 0.0, 0.0)
    costs.usual.start(40 * US)
    costs.usual.add_trial(90 * US)
    _write(tmp_path / "costs.json", costs)
    assert _read(tmp_path / "costs.json") == ({1: 1.0, 4: 2.0}, 0.0, 40 * US, 90 * US)
    for damage in ('"outside": -3', '"trial": -1', '"trial": 1e9', '"trial": "x"'):
        (tmp_path / "costs.json").write_text('{"rows": {"1": 1.0}, "per_cell": 0, ' + damage + "}")
        assert _read(tmp_path / "costs.json") is None


def test_a_text_begins_silent_where_a_proposal_is_known_to_take_more_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a proposal takes is known of other texts: a new one need not lose it again."""
    drafts = list[int]()
    for trial in (0.0, 10.0):
        simulation = measured(tiny, monkeypatch)
        simulation.costs.usual.start(40 * US, trial)
        simulation.runtime.rows.clear()
        simulation.run(1, 0.9, 40, fixed=0)
        drafts.append(sum(rows > 1 for rows in simulation.runtime.rows[1:]))
    assert drafts[0] > 0
    assert drafts[1] == 0


# ── weighing ──


@given(
    st.lists(st.lists(st.floats(0.01, 0.99), max_size=5), min_size=1, max_size=4), st.floats(0, 1.0), st.floats(0, 1.0)
)
def test_what_passes_outside_counts_in_the_allocation(chances: list[list[float]], outside: float, extra: float) -> None:
    """Beside every other choice of how many nodes run, by the docstring's formula."""
    costs = Costs({1: 1.0, 4: 1.3, 12: 3.0, 32: 9.0})
    offers = [Offer(sorted(own, reverse=True), 1, 0, costs, outside=outside, extra=extra) for own in chances]
    granted = [grant.nodes for grant in allocate(offers, Others(), 32)]
    every = sorted(((c, i) for i, offer in enumerate(offers) for c in offer.chances), key=lambda pair: -pair[0])
    n = len(offers)

    def rate(nodes: int) -> float:
        some = every[:nodes]
        seconds = costs.seconds[n + nodes] + n * outside + len({i for _, i in some}) * extra
        return float(n + sum(c for c, _ in some)) / seconds

    best = max(range(len(every) + 1), key=rate)
    brings, worth = sum(c for c, _ in every[:best]), rate(0) * (n + sum(c for c, _ in every[:best])) / rate(best) - n
    assert rate(sum(granted)) == pytest.approx(rate(best if brings >= MARGIN * worth else 0))
    if n == 1:
        assert best_of_one(offers[0], Others(), 32).nodes == granted[0]


def test_a_draft_that_pays_by_its_rows_alone_does_not_run() -> None:
    costs = Costs({1: 160 * US, 2: 200 * US, 8: 500 * US})
    assert best_of_one(Offer([0.5], 1, 0, costs), Others(), 8).nodes == 1
    assert best_of_one(Offer([0.5], 1, 0, costs, outside=40 * US, extra=150 * US), Others(), 8).nodes == 0
    assert best_of_one(Offer([0.5], 1, 0, costs, outside=900 * US, extra=0.0), Others(), 8).nodes == 1


@pytest.mark.parametrize(("seconds", "n", "right"), [(small, 1, 0.5), (small, 4, 0.7), (large, 4, 0.5)])
def test_python_that_no_drafter_counts_makes_nothing_slower(
    seconds: Any, n: int, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To verify a draft takes nearly as long as a token without, and no drafter sees it."""
    python = Python(verify=0.8 * seconds(n, 0) / n)
    ratios = []
    for counted in (True, False):
        if not counted:
            monkeypatch.setattr(OutsideCalls, "begin", lambda self, gaps, sequences: None)
        simulation = measured(seconds, monkeypatch, python)
        off = simulation.run(n, right, 200)
        ratios.append(simulation.run(n, right, 200, fixed=0) / off)
    assert ratios[0] > 0.96
    assert ratios[1] < ratios[0] - 0.03, "without it is slower, or the test shows nothing"


def test_what_was_drafted_where_it_pays_is_drafted_still(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation: Simulation = measured(small, monkeypatch, Python())
    off = simulation.run(1, 0.9, 200)
    assert simulation.run(1, 0.9, 200, fixed=0) > max(1.8 * off, 0.95 * simulation.run(1, 0.9, 200, fixed=4))


# ── resting ──


class Resting(BaseDrafter):
    """Drafts nothing, and rests for seven calls of ten."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.shown = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self.asked.append(len(context.ids))
        return Draft(rest=7)

    def observe(self, step: StepResult) -> None:
        self.shown += 1


def test_a_drafter_that_rests_is_neither_asked_nor_shown_anything() -> None:
    texts = []
    for drafter in (Off(), resting := Resting()):
        runtime = FakeRuntime(tiny_spec())
        context = Context([1, 2, 3], 3, runtime.new_cache(128))
        texts.append([*decode(runtime, context, GenerationConfig(max_tokens=40), drafter)])
    assert texts[0] == texts[1]
    assert resting.asked == [3, 11, 19, 27, 35]
    assert resting.shown == 5


def test_a_drafter_that_rests_is_asked_when_the_text_is_read_anew() -> None:
    """A full context slides: the next call reads several rows, and the drafter's state is that of another text."""
    runtime, resting = FakeRuntime(tiny_spec()), Resting()
    context = Context([1, 2, 3], 3, runtime.new_cache(24), sinks=2)
    found = [*decode(runtime, context, GenerationConfig(max_tokens=30), resting)]
    assert len(found) == 30
    assert resting.asked == [3, 11, 19, 12]
    assert resting.shown == 4


def test_a_draft_that_rests_is_empty() -> None:
    class Busy(Resting):
        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
            return replace(Draft.chain([1]), rest=7)

    runtime = FakeRuntime(tiny_spec())
    context = Context([1, 2, 3], 3, runtime.new_cache(64))
    with pytest.raises(AssertionError, match="rests"):
        list(decode(runtime, context, GenerationConfig(max_tokens=12), Busy()))


def test_with_a_constraint_it_is_asked_at_every_call() -> None:
    """What that forces is drafted whatever the governor decides."""
    runtime, drafter = FakeRuntime(tiny_spec()), Resting()
    context = Context([1, 2, 3], 3, runtime.new_cache(64))
    constraint = SetConstraint(lambda path: range(3, 9))
    list(decode(runtime, context, GenerationConfig(max_tokens=12, constraint=constraint), drafter))
    assert len(drafter.asked) == 12


# ── repetition ──


def follows(ids: Sequence[int]) -> int:
    """`Following.run` in plain words, all from the beginning."""
    run = place = 0
    for n in range(1, len(ids)):
        if place and ids[place] == ids[n]:
            run, place = run + 1, place + 1
            continue
        earlier = [m + 1 for m in range(1, n) if (ids[m - 1], ids[m]) == (ids[n - 1], ids[n])]
        run, place = 0, earlier[-1] if earlier else 0
    return run


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_following_is_what_it_says(ids: list[int]) -> None:
    following = Following()
    for n in range(1, len(ids) + 1):
        following.repeats(ids[:n])
        assert following.run == follows(ids[:n])


def test_a_text_that_repeats_itself_is_noticed_after_three_tokens() -> None:
    following, text = Following(), [5, 6, 1, 2, 3, 9, 5, 6, 1, 2, 3]
    assert [following.repeats(text[:n]) for n in range(1, 12)] == [False] * 10 + [True]
    following.looked(False)
    assert not following.repeats([*text, 9, 5])
    assert following.repeats([*text, 9, 5, 6]), "twice as many after a look in vain"
    following.looked(True)
    following.reset()
    assert not following.repeats(np.arange(200).tolist())
