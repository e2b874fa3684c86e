"""Silence costs next to nothing, and ends where drafting pays: in given proportions of time, never in measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import decode

import edgedec
from edgedec.bench.prompts import read_prompts
from edgedec.decoding.allocation import READING, Offer, Others, allocate, best_of_one, text_cells
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, Effort
from edgedec.drafters._tables.compiled import CompiledDrafter
from edgedec.kernels.cpu import loader
from edgedec.runtime import Outputs, TableSettings, WatchPrices
from edgedec.speculation import silence as silence_module
from edgedec.speculation.accounts import UsualTime
from edgedec.speculation.backoff import DrafterStats
from edgedec.speculation.budget import ALLOWANCE, Budget
from edgedec.speculation.compiled import CompiledMerger
from edgedec.speculation.costs import Costs, _split
from edgedec.speculation.finds import Finds
from edgedec.speculation.governor import Governor
from edgedec.speculation.outside import OutsideCalls, Usual
from edgedec.speculation.prospects import hopeless, unknown
from edgedec.speculation.readers import Readers
from edgedec.speculation.silence import Silence
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.trees.calibration import Calibration

pytestmark = pytest.mark.usefixtures("ticking")

native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
# A model of three million weights: a call takes as long as some lines of Python.
US = 1e-6
NANO = {1: 150 * US, 2: 190 * US, 4: 290 * US, 8: 510 * US, 16: 980 * US, 32: 2000 * US}


class Still(Costs):
    """Costs as they are given."""

    def add(self, rows: int, seconds: float, cells: int = 0) -> bool:
        return False


def copier() -> CompiledDrafter:
    from edgedec.runtimes._native_drafting import PARTS

    chosen = TableSettings("copy", ngram=3, length=16)
    table = PARTS.table(chosen)
    assert table is not None
    return CompiledDrafter(PARTS, table, chosen)


# ── a look ──


@native
@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_look_says_what_a_proposal_and_the_allocator_say(seed: int) -> None:
    """It tests the guesses of the last look by what came, and those of nothing else."""
    rng = np.random.default_rng(seed)
    calibrations = Calibration(), Calibration()
    looking, proposing = (CompiledMerger([copier()], [own]) for own in calibrations)
    text, costs = rng.integers(0, 4, 12).tolist(), Costs(NANO, per_cell=0.3 * US)
    tested, before = False, 0
    for _ in range(12):
        context: Any = SimpleNamespace(ids=text, n_prompt=12)
        cached, trust = len(text) - 1, float(rng.uniform(0.6, 1.0))
        prices = WatchPrices(
            costs.seconds, costs.per_cell * cached, (1 - READING) * costs.per_cell * cached, trust, 0.3
        )
        paying = looking.watch(context, 16, 0.1, 1, prices)
        if tested:
            proposing.test(text[before:], [calibrations[1]])
        proposing.propose(context, 16, 0.1, 1)
        order = proposing.best_first()
        chances = [trust * proposing.chances[node] for node in order]
        sure = bool(order) and proposing.chances[order[0]] >= 0.3
        expected = best_of_one(Offer(chances, 1, cached, costs), Others(), 17).nodes if sure else 0
        assert (paying, looking.best_first()) == (expected, order)
        before, tested = len(text), True
        text = text + rng.integers(0, 4, int(rng.integers(1, 4))).tolist()
    np.testing.assert_array_equal(calibrations[0].tests, calibrations[1].tests)
    np.testing.assert_allclose(calibrations[0].estimates, calibrations[1].estimates)
    assert calibrations[0].tests.sum() > 0, "nothing was guessed"


@native
def test_a_draft_that_was_verified_is_not_tested_twice() -> None:
    calibration = Calibration()
    merger = CompiledMerger([copier()], [calibration])
    context: Any = SimpleNamespace(ids=[1, 2, 3, 4, 5, 1, 2, 3], n_prompt=8)
    prices = WatchPrices([0.0, *[1.0] * 20], 0.0, 0.0, 1.0, 0.1)
    assert merger.watch(context, 4, 0.01, 1, prices) > 0
    merger.test([4, 5, 9], [calibration])
    seen = calibration.tests.copy()
    assert seen.sum() > 1
    context.ids = [*context.ids, 4, 5, 9]
    merger.watch(context, 4, 0.01, 1, prices)
    np.testing.assert_array_equal(calibration.tests, seen)


# ── between looks ──


class Looks:
    """A merger that counts looks, each of which takes `seconds` by the clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.looks, self.finds = seconds, 0.0, 0, 0

    def watch(self, *_: Any) -> int:
        self.looks += 1
        self.now += self.seconds
        return self.finds


def silent_calls(look: float, plain: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Looks, Budget]:
    looks, budget = Looks(look), Budget()
    monkeypatch.setattr(silence_module, "perf_counter", lambda: looks.now)
    silence = Silence(None, [])
    silence._merger = looks  # type: ignore[assignment]
    budget.left, ids = -1.0, list(range(50))
    for _ in range(calls):
        context: Any = SimpleNamespace(ids=ids, n_prompt=40, cache=SimpleNamespace(length=len(ids) - 1))
        if not silence.sleeps(ids):
            silence.promising(context, 8, Costs(NANO), budget, OutsideCalls(Usual()))
            budget.add_silence(plain, silence.passed())
            silence.rest(plain, budget, 0.0)
        ids.append(1000 + len(ids))
    assert silence.calls <= calls < silence.calls + 16, "every call is counted"
    return looks, budget


def test_looks_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, budget = silent_calls(6 * US, 150 * US, 2000, monkeypatch)
    assert looks.now < 0.6 * ALLOWANCE * 2000 * 150 * US
    assert looks.looks > 2000 / 16
    assert budget.left > -1.0, "the rest is saved for trying"


def test_where_a_call_is_long_every_call_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, _ = silent_calls(6 * US, 40_000 * US, 100, monkeypatch)
    assert looks.looks == 100


def test_it_wakes_as_soon_as_drafting_is_paid_for() -> None:
    silence, budget = Silence(None, []), Budget()
    budget.left, silence._interval = -2.5 * ALLOWANCE * 150 * US, 16
    silence.rest(150 * US, budget, 0.0)
    slept = 0
    while silence.sleeps([]):
        slept += 1
    assert slept == 2


def test_after_a_find_intervals_grow_from_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that was left by one word goes on after it."""
    looks, silence, budget = Looks(6 * US), Silence(None, []), Budget()
    monkeypatch.setattr(silence_module, "perf_counter", lambda: looks.now)
    silence._merger = looks  # type: ignore[assignment]
    context: Any = SimpleNamespace(ids=[0] * 9, n_prompt=4, cache=SimpleNamespace(length=8))
    budget.left, looks.finds, costs = -1.0, 3, Costs(NANO)
    costs.finds.add(US, 500 * US)
    assert silence.promising(context, 8, costs, budget, OutsideCalls(Usual()))
    looks.finds, at = 0, list[int]()
    for call in range(40):
        if not silence.sleeps([]):
            at.append(call)
            assert not silence.promising(context, 8, costs, budget, OutsideCalls(Usual()))
            silence.rest(150 * US, budget, 0.0)
    assert at[:3] == [0, 1, 5]
    assert at[3] > 12, "and then those that a look is paid by"
    assert max(np.diff(at)) <= 16


def test_a_prompt_is_looked_at_before_its_first_token() -> None:
    silence = Silence(None, [])
    silence.refused(150 * US)
    assert silence.sleeps([])
    silence.reset()
    assert not silence.sleeps([])


# ── the governor ──


class Slow(BaseDrafter):
    """Always wrong, and dear: each of its proposals takes a third of a call."""

    calls = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self.calls += 1
        return Draft.chain([12 if context.ids[-1] != 12 else 11] * nodes, [0.3] * nodes)


def test_drafting_stops_where_the_governor_alone_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """All drafters are expensive beside a call of 0.15 ms, so that none of them counts as idle time: the governor's own
    0.1 ms does."""
    runtime, drafter = FakeRuntime(tiny_spec(context_length=2048)), Slow()
    governor = Governor([("slow", drafter)], lambda: Still(NANO))
    monkeypatch.setattr("edgedec.speculation.own_time.OwnTime.seconds", lambda *_: 50 * US)
    monkeypatch.setattr("edgedec.speculation.governor.every.times_apart", lambda members: (0.0, 0.0))
    context = Context([1, 2, 3], 3, runtime.new_cache(1100))
    made = [*decode(runtime, context, GenerationConfig(max_tokens=1000), governor)]
    assert len(made) == 1000
    assert 2 <= drafter.calls < 30, "it tries now and then"
    assert governor.report()["silent"] > 900


def test_time_of_its_own_is_the_least_of_late() -> None:
    usual = UsualTime()
    usual.proposed(9.0, 1.0, 0.0)
    assert usual.idle == 1.0, "of the first, which opens things, a call"
    usual.proposed(0.5, 1.0, 0.2)
    assert usual.idle == pytest.approx(0.3), "expensive drafters are used only where they can be paid"
    usual.proposed(0.5, 1.0, 9.9)
    assert usual.idle == pytest.approx(0.1), "never nothing"
    usual.proposed(50.0, 1.0, 0.0)
    assert usual.idle == pytest.approx(0.105)


@native
def test_a_copy_is_drafted_though_the_budget_is_used_up(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence_module, "perf_counter", lambda: 0.0)
    model = edgedec.open(nano, engine="native", threads=1)
    prompt = next(prompt for prompt in read_prompts(None) if prompt.category == "code")
    ids = model.tokenizer.encode(prompt.turns[0])
    plain = list(model.session(context=500, speculate="off").tokens(ids, max_tokens=80, ignore_eos=True))
    session = model.session(context=500, speculate="copy+suffix+recycling+trigram")
    governor: Governor = session._drafter.drafter  # type: ignore[attr-defined]
    governor._costs, governor._survey = Still(NANO), None
    governor._budget._started, governor._budget.left, governor._phase = True, -1.0, 0
    assert list(session.tokens(ids, max_tokens=80, ignore_eos=True)) == plain
    assert session.stats.accepted > 30
    assert session.stats.generated / session.stats.calls > 1.5
    assert governor._budget.left < 0, "nothing but looks found it"
    proposed = {member.name: member.proposed for member in governor.members}
    assert proposed["copy"] > 0
    assert proposed["recycling"] == proposed["trigram"] == 0


# ── drafters that cannot pay ──


class Head(BaseDrafter):
    """Five tokens ahead, by the layers of a head; always right if asked."""

    def __init__(self, share: float = 0.1) -> None:
        self.effort, self.calls = Effort(5, share), 0
        self.outputs = self.reads = Outputs(top=2)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self.calls += 1
        return Draft.chain([1] * min(nodes, 5), [0.9] * min(nodes, 5))


def test_a_head_that_cannot_pay_is_never_used_and_shown_nothing() -> None:
    for seconds, used in ((NANO, False), ({k: 100 * s for k, s in NANO.items()}, True)):
        head, runtime = Head(), FakeRuntime(tiny_spec(context_length=256))
        governor = Governor([("head", head)], lambda seconds=seconds: Still(seconds))  # type: ignore[misc]
        governor.reset()
        assert (governor.reads != Outputs()) == used
        list(decode(runtime, Context([1, 2], 2, runtime.new_cache(100)), GenerationConfig(max_tokens=60), governor))
        assert (head.calls > 0) == used


def test_a_head_waits_until_it_is_known_what_rows_cost() -> None:
    head = Head()
    assert unknown(head, Costs({1: 1.0}))
    assert not unknown(head, Costs({1: 1.0, 8: 2.0}))
    assert not unknown(BaseDrafter(), Costs({1: 1.0}))


def test_what_was_measured_counts_more_than_what_size_says() -> None:
    member, costs = DrafterStats("head", Head()), Costs({k: 100 * s for k, s in NANO.items()})
    assert not hopeless(member, costs)
    for _ in range(6):
        member.add_proposal(0.5)
    assert hopeless(member, costs)
    member, costs = DrafterStats("head", Head()), Costs(NANO)
    assert hopeless(member, costs)
    for _ in range(6):
        member.add_proposal(20 * US)
    assert not hopeless(member, costs)
    assert not hopeless(DrafterStats("table", BaseDrafter()), costs)


@native
def test_the_effort_of_a_head_is_that_of_its_layers(nano: Path) -> None:
    model = edgedec.open(nano, engine="native", threads=1)
    session = model.session(speculate="eagle3")
    effort = session._drafter.drafter.members[0].drafter.effort  # type: ignore[attr-defined]
    assert effort is not None
    assert effort.depth == model.bundle.manifest.drafts["eagle3"].depth
    assert 0.02 < effort.share < 0.5
    assert effort.seconds(1.0) > effort.depth * effort.share


def test_in_silence_heads_are_shown_what_a_call_pays_for() -> None:
    readers = Readers([Head()])
    readers.limit(150 * US, 30 * US)
    assert [readers.wanted(silent=True) != Outputs() for _ in range(8)] == [True] * 5 + [False] * 3
    assert readers.wanted(silent=False) == readers.reads
    readers.limit(4000 * US, 30 * US)
    assert sum(readers.wanted(silent=True) != Outputs() for _ in range(100)) == 64


# ── what calls cost ──


def test_a_text_is_read_once_for_all_rows_of_a_sequence() -> None:
    assert text_cells(1, 300) == 300
    assert text_cells(3, 100) == 150
    costs = Costs(dict.fromkeys((1, 2, 4, 8, 16), 1.0), per_cell=0.01)
    chances, context = [0.9, 0.8, 0.7], 1000
    # Without this a row more after 1,000 tokens would cost as much as a call, and nothing would pay.
    alone = best_of_one(Offer(chances, 1, context, costs), Others(), 16)
    several = allocate([Offer(chances, 1, context, costs), Offer([], 1, context, costs)], Others(), 16)
    assert alone.nodes == 3
    assert alone.speed == pytest.approx(3.4 * 11.0 / (1.0 + 0.01 * text_cells(4, context)), rel=1e-3)
    assert several[0].nodes == 3


def test_a_call_that_was_disturbed_does_not_bend_the_curve() -> None:
    assert _split([1, 2, 4], [1.0, 1.5, 9.0]) == [1.0, 1.5, 6.0]
    costs = Costs({1: 1.0, 2: 1.3, 4: 0.9, 8: 3.0})
    assert costs.doubted == [2, 4], "one of the two was disturbed"
    for i in range(8):
        costs.add(4, 1.9 + i * 1e-9)
    assert costs.doubted == []
    assert costs.seconds[4] == pytest.approx(1.9, rel=0.2)


def test_a_point_is_compared_with_the_calls_before_it() -> None:
    """The host runs at half its speed while a call of eight rows is made for the first time."""
    costs = Costs({}, largest=32)
    for i in range(40):
        costs.add(1, 1.0 + i * 1e-9)
    for i in range(4):
        costs.add(1, 2.0 + i * 1e-9)
    costs.add(8, 6.0)
    for i in range(60):
        costs.add(1, 1.0 + i * 1e-9)
    assert costs.seconds[8] == pytest.approx(3.0, rel=0.25)


# ── finds that lose ──


def test_finds_that_lose_rest_for_longer_each_time() -> None:
    finds = Finds()
    rests = [finds.add(US, -1.0) for _ in range(18)]
    assert rests[:8] == [0] * 7 + [64], "eight of them are a judgement"
    assert [rest for rest in rests if rest] == [64, 128, 256, 512, 1024, 2048]
    assert max(finds.add(US, -1.0) for _ in range(80)) == 8192


def test_finds_that_gain_never_rest() -> None:
    finds = Finds()
    for _ in range(20):
        assert finds.add(US, -1.0) >= 0
    for _ in range(40):
        finds.add(US, 2.0)
    assert finds.rest == 64, "what was held against them is forgotten"
    assert [finds.add(US, gain) for gain in (1.0, -0.5, -0.5, 1.0)] == [0] * 4, "one loss among gains is none"


def test_a_rest_goes_on_in_the_next_text_until_a_long_run() -> None:
    silence, finds = Silence(None, []), Finds()
    silence._merger = Looks(6 * US)  # type: ignore[assignment]
    for _ in range(8):
        silence.drafted(4, 0, 60 * US, -100 * US, finds)
    silence.reset()
    text = list(range(40))
    slept = [silence.sleeps([]) for _ in range(3)]
    assert slept == [True] * 3, "a text that begins is not looked at"
    assert all(silence.sleeps([*text, *text[:n]]) for n in range(20)), "a few tokens that come again are not enough"
    assert not all(silence.sleeps([*text, *text[:n]]) for n in range(20, 32)), "a copy is"


def test_the_calls_that_the_loop_ran_by_itself_count_as_silent() -> None:
    silence = Silence(None, [])
    silence.rest(100 * US, Budget(), 1.0)
    assert silence.rests.rest == 255
    text = list(range(300))
    assert silence.sleeps(text[:10])
    assert silence.rests.rest == 254
    assert silence.sleeps(text[:21]), "ten more calls"
    assert silence.rests.rest == 243
    assert silence.passed() == 13
    assert not silence.sleeps(text), "they are over"


def test_a_look_counts_what_a_draft_takes_of_python() -> None:
    """Where drafters take as long as a call, guesses that save less than that are left alone."""
    looks, silence, budget = Prices(), Silence(None, []), Budget()
    silence._merger = looks  # type: ignore[assignment]
    context: Any = SimpleNamespace(ids=[0] * 9, n_prompt=4, cache=SimpleNamespace(length=8))
    costs, none = Costs(NANO), OutsideCalls(Usual())
    silence.promising(context, 8, costs, budget, none)
    before, takes = looks.seconds, costs.finds.takes
    costs.finds.takes += 110 * US
    silence.promising(context, 8, costs, budget, none)
    assert looks.seconds[1] == before[1]
    assert looks.seconds[4] == pytest.approx(before[4] + 110 * US)
    for _ in range(40):
        silence.drafted(4, 4, takes / 2, 1.0, costs.finds)
    assert costs.finds.takes == pytest.approx(takes / 2, rel=0.01)


def test_a_first_find_of_a_text_is_small_and_later_ones_grow_while_they_come_true() -> None:
    looks, silence, finds = Prices(), Silence(None, []), Finds()
    silence._merger = looks  # type: ignore[assignment]
    context: Any = SimpleNamespace(ids=[0] * 9, n_prompt=4, cache=SimpleNamespace(length=8))

    def most() -> int:
        silence.promising(context, 64, Costs(NANO), Budget(), OutsideCalls(Usual()))
        return looks.nodes

    sizes = [most()]
    for accepted in (4, 8, 16, 0, 0, 0, 0):
        silence.drafted(sizes[-1], accepted, US, 1.0, finds)
        sizes.append(most())
    assert sizes == [4, 8, 16, 16, 8, 4, 3, 3]
    silence.reset()
    assert most() == 4, "what came true in another text says little of this one"


def test_looks_soon_after_a_find_end_where_they_bring_nothing() -> None:
    finds = Finds()
    assert finds.worth == 0.0, "at first nothing is known"
    finds.add(US, 1.0)
    assert finds.worth > 0.2
    for _ in range(60):
        finds.looked_again(False)
    assert finds.worth < 1e-3


class Prices:
    """A merger that keeps what a look was told calls cost."""

    seconds: Sequence[float] = ()
    nodes = 0

    def watch(self, context: Any, nodes: int, least: float, enabled: int, prices: WatchPrices) -> int:
        self.seconds, self.nodes = prices.seconds, nodes
        return 0


def test_a_text_that_repeats_itself_wakes_it_beside_heads_that_are_shown_every_call() -> None:
    """These keep the loop from resting: the governor is asked at each call, and looks at the text itself."""
    silence = Silence(None, [])
    silence._merger = Looks(6 * US)  # type: ignore[assignment]
    text = list(range(40))
    silence.refused(150 * US)
    assert silence.sleeps(text)
    assert silence.sleeps([*text, *text[:2]])
    assert not silence.sleeps([*text, *text[:6]]), "five tokens came as they did before"
