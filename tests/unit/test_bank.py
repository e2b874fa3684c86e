"""What drafting may lose: the bank, a text's account, prices, and the records that decide who is asked."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from loops import decode
from simulated import Python, large, measured, small, tiny

from edgedec.decoding import host_time
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context, Ends
from edgedec.decoding.draft import BaseDrafter, Draft, Drafter, Effort
from edgedec.decoding.host_time import BetweenCalls, Gaps
from edgedec.drafters.off import Off
from edgedec.runtime import Outputs
from edgedec.speculation.bank import AUTO, FIRST, NAMED, TRIAL, Bank, Experience, Means, Terms, TextAccount, risked
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.speculation.prices import Prices
from edgedec.speculation.reasons import HOPELESS, UNOPENED, USED, WAITS
from edgedec.speculation.record import DrafterRecord
from edgedec.speculation.state import SharedLearning, inherit_all
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.trees.calibration import Calibration

CALL = 4e-3
LINEAR = {k: 1.0 + 0.1 * (k - 1) for k in range(1, 33)}


# ── bank ──


def test_what_is_lost_is_bounded_whatever_happens() -> None:
    """Drafts that are never right: each costs what may be risked, and a little for each token comes back."""
    account, spent, tokens = TextAccount(Bank(AUTO)), 0.0, 5000
    account.bank.open(CALL)
    largest = 0.0
    for _ in range(tokens):
        account.add_time(CALL)
        cost = min(risked(account.left, 0.5), CALL) if account.left > 0 else 0.0
        account.settle(0.0, cost, CALL)
        spent, largest = spent + cost, max(largest, cost)
    allowed = AUTO.most * CALL + AUTO.rate * CALL * tokens
    assert 0.9 * allowed < spent <= allowed + largest


def test_a_first_balance_is_given_once_and_is_the_largest() -> None:
    bank = Bank(Terms(0.01, 2.0))
    bank.open(CALL)
    assert bank.left == 2 * CALL
    bank.add(-1.5 * CALL)
    bank.open(CALL)
    assert bank.left == pytest.approx(0.5 * CALL)
    bank.add(9 * CALL)
    assert bank.left == 2 * CALL
    bank.open(CALL / 4)
    assert bank.left == CALL / 2, "a call in other company takes less"


def test_a_text_risks_its_own_gains_first() -> None:
    bank = Bank(AUTO)
    account, other = TextAccount(bank), TextAccount(bank)
    bank.open(CALL)
    account.settle(2.5 * CALL, 0.5 * CALL, CALL)
    assert account.own == pytest.approx(2 * CALL)
    assert (account.left, other.left) == (pytest.approx(3 * CALL), CALL)
    account.settle(0.0, 2.5 * CALL, CALL)
    assert account.own == 0.0
    assert bank.left == pytest.approx(0.5 * CALL), "what it had not gained is the bank's loss"
    account.settle(40 * CALL, 0.0, CALL)
    assert account.own == 4 * CALL
    assert bank.left == CALL
    assert (bank.saved, bank.lost) == (pytest.approx(42.5 * CALL), pytest.approx(3 * CALL))
    account.reset()
    assert account.left == CALL


def test_a_named_drafter_may_lose_more() -> None:
    assert NAMED.rate == 0.1
    assert 64 * NAMED.rate == NAMED.most > AUTO.most


def test_guesses_that_bring_less_than_expected_count_for_less() -> None:
    bank = Bank()
    assert bank.trust == 1.0
    for _ in range(50):
        bank.add_guesses(2.0, 1)
    assert 0.5 < bank.trust < 0.6
    for _ in range(400):
        bank.add_guesses(2.0, 2)
    assert bank.trust > 0.95


def test_what_is_nearly_sure_may_cost_more() -> None:
    assert risked(0.3, 0.9) == pytest.approx(3.0)
    assert risked(0.3, 1.0) == pytest.approx(3.0), "nothing is quite sure"
    assert risked(0.3, 0.0) == pytest.approx(0.3)
    assert risked(-0.1, 0.9) < 0


# ── prices ──


def test_what_a_token_is_worth_and_a_row_costs_in_company() -> None:
    costs, between = Costs({1: 1.0, 4: 2.0, 8: 6.0}), BetweenCalls()
    alone = Prices.of(costs, between, 1, 0)
    assert (alone.token, alone.call) == (1.0, 1.0)
    assert alone.added[:4] == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
    company = Prices.of(costs, between, 4, 0)
    assert (company.token, company.call, company.added[1]) == (0.5, 2.0, 1.0)
    assert Prices.of(costs, between, 40, 0).added == [0.0], "nothing is known there"
    costs.per_cell = 0.001
    late = Prices.of(costs, between, 1, 1000)
    assert (late.token, late.added[1]) == (2.0, pytest.approx(1 / 3 + 1.0 / 4)), "the text is read once"
    reading = Prices.of(costs, between, 1, 0, reading=3)
    assert (reading.token, reading.added[1]) == (1.0, 1.0), "drafted rows come after the rows of the prompt"
    between.start(0.25)
    assert Prices.of(costs, between, 4, 0).token == 0.75


def test_what_a_token_is_worth_where_no_further_texts_come() -> None:
    """The seconds by which the calls become shorter that the text would be in, shared by the texts that end with it."""
    costs, between = Costs({1: 1.0, 2: 1.5, 4: 2.0, 8: 6.0}, per_cell=0.001), BetweenCalls()
    between.start(0.25)
    text, mean = 0.1 + 0.25, 2.0 / 4 + 0.1 + 0.25  # attention to 100 cached tokens, and the time between calls
    last = Prices.of(costs, between, 4, 100, ends=Ends(0, 1))
    assert last.token == pytest.approx(1.0 + text), "with its end all calls end"
    assert last.weight == pytest.approx((1.0 + text) / mean)
    ahead = Prices.of(costs, between, 4, 100, ends=Ends(1, 1))
    assert ahead.token == pytest.approx(0.5 + text), "one text goes on, in calls of one row in place of two"
    together = Prices.of(costs, between, 4, 100, ends=Ends(2, 2))
    assert together.token == pytest.approx((2.0 - 1.5) / 2 + text)
    many = Prices.of(costs, between, 4, 100, ends=Ends(7, 9))
    assert many.token == pytest.approx((6.0 - costs.seconds[7]) / 9 + text), "no calls of so many rows are known"
    assert last.call == ahead.call == pytest.approx(2.0 + 4 * 0.1)


def test_the_smallest_draft_is_one_row_and_the_time_of_a_draft() -> None:
    assert Prices(1.0, 1.0, [0.0, 0.1, 0.3, 0.9], 0.05, 1, 0.0).row == pytest.approx(0.15)
    assert Prices(1.0, 1.0, [0.0], 0.05, 1, 0.0).row == 0.05, "no cost of more rows is known"


def test_rows_that_can_be_paid() -> None:
    prices = Prices(1.0, 1.0, [0.0, 0.1, 0.2, 0.9], 0.05, 1, 0.0)
    assert [prices.affordable(s) for s in (-1.0, 0.0, 0.1, 0.16, 0.26, 0.9, 2.0)] == [0, 0, 0, 1, 2, 2, 3]
    assert prices.of_rows(0.5) == pytest.approx(0.05)
    assert prices.of_rows(2.5) == pytest.approx(0.55)
    assert prices.of_rows(9) == 0.9


# ── records ──


class Reading(BaseDrafter):
    """A head that needs every call."""

    outputs = reads = Outputs(hidden=(0,))

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        return Draft()


def record(drafter: BaseDrafter | None = None, shared: Experience | None = None) -> DrafterRecord:
    return DrafterRecord("it", drafter or Off(), Calibration(), shared)  # type: ignore[arg-type]


def prices(token: float = 1.0, row: float = 0.1) -> Prices:
    return Prices(token, token, [row * k for k in range(65)], 0.0, 1, 0.0)


def proposed(it: DrafterRecord, seconds: float, tokens: float, rows: float = 1.0, price: Prices | None = None) -> None:
    it.add_time(seconds)
    it.judge(tokens, rows, price or prices())


def test_one_that_gains_nothing_waits_longer_each_time() -> None:
    it, asked = record(), []
    for call in range(4000):
        it.pass_calls(1, 1)
        if it.ready(prices()):
            asked.append(call)
            proposed(it, 1.0, 0.0)
    waits = [later - sooner for sooner, later in pairwise(asked)]
    assert waits[: TRIAL - 1] == [1] * (TRIAL - 1), "first it is tried"
    assert waits[TRIAL - 1 : TRIAL + 3] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert max(waits) == 250, "no longer than makes its tries negligible"
    assert it.facts(prices())["state"] == WAITS
    it.restart()
    assert not it.wait


def test_another_text_waits_as_its_record_says() -> None:
    it = record()
    for _ in range(TRIAL):
        proposed(it, 1.0, 0.0)
    it.restart()
    assert (it.facts(prices())["state"], it.facts(prices())["wait"]) == (WAITS, FIRST)
    assert it.facts(None)["wait"] == 0, "whether it pays is not known without costs"


def test_one_that_pays_is_asked_at_every_call() -> None:
    it = record()
    assert it.facts(None)["state"] == UNOPENED
    for _ in range(50):
        it.pass_calls(1, 1)
        assert it.ready(prices())
        proposed(it, 0.2, 0.5)
    assert it.facts(prices()) == {
        "state": USED, "wait": 0, "asked": 50, "takes_s": pytest.approx(0.2), "gain_s": pytest.approx(0.4),
        "guessed": 0, "needs_s": pytest.approx(0.2),
    }  # fmt: skip
    assert not it.pays(prices(token=0.5)), "where a token is worth less it does not"


def test_cheap_tries_come_often() -> None:
    it = record()
    for _ in range(TRIAL + 4):
        proposed(it, 0.02, 0.0, 0.0)
    assert it.wait == 5, "0.02 in 5 calls of 1.0 are 0.4 %"


def test_one_that_reads_every_call_is_judged_by_more_of_this_text() -> None:
    """Opening it was dear, so the first proposals that do not pay do not end it."""
    it, other = (record(drafter, Experience.known(1.0, 0.0, 1.0)) for drafter in (Reading(), Off()))
    for _ in range(TRIAL - 1):
        proposed(it, 1.0, 0.0)
        assert not it.wait
    proposed(it, 1.0, 0.0)
    assert it.wait == FIRST
    proposed(other, 1.0, 0.0)
    assert other.wait == FIRST


def test_in_other_company_it_is_tried_anew() -> None:
    it = record()
    for _ in range(TRIAL + 4):
        proposed(it, 1.0, 0.0)
    assert it.wait > 9
    it.pass_calls(1, 2)
    assert not it.ready(prices()), "twice as many are the same company"
    it.pass_calls(1, 3)
    assert it.ready(prices())


def test_what_others_found_counts_as_its_first_proposals() -> None:
    shared = Experience()
    for _ in range(2 * TRIAL):
        shared.add(1.0, 0.2, 1.0)
    it = record(shared=shared)
    shared.until = 40
    assert not it.pays(prices())
    assert not it.ready(prices())
    assert it.calls_left(prices()) == 40
    it.pass_calls(40, 1)
    assert it.ready(prices()), "now and then one text tries it"
    for _ in range(6):
        it.judge(1.9, 1.0, prices())
    assert it.pays(prices()), "this text is another matter"


def test_reading_a_prompt_is_spread_over_the_proposals_that_use_it() -> None:
    shared = Experience.known(0.1, 0.5, 1.0)
    it = record(Reading(), shared)
    first = it.charge(1.7)
    it.judge(0.5, 1.0, prices())
    assert first == pytest.approx(0.1 + 1.6 / 16)
    charged = first
    for _ in range(80):
        charged += it.charge(0.1)
    assert charged == pytest.approx(0.1 * 81 + 1.6, rel=0.05)
    assert shared.debt < 0.08
    assert record(Off(), shared).charge(1.7) == 1.7, "others read no prompt"


def test_who_is_shown_too_much_is_shown_no_more() -> None:
    it = record(Reading())
    shown = 0
    while not it.wait:
        it.follow(2)
        shown += 2
    assert shown == 18
    assert not it.follows


def test_a_head_that_would_lose_even_if_it_were_right_is_hopeless() -> None:
    class Head(Reading):
        effort = Effort(2, 1.0)

    it, cheap = record(Head()), record(Head())
    it.learn_hope(prices(token=1e-4, row=3e-5))
    assert it.hopeless
    assert not it.ready(prices(1e-4))
    assert it.facts(None)["state"] == HOPELESS
    cheap.drafter.effort = Effort(2, 0.05)  # type: ignore[misc]
    cheap.learn_hope(prices(token=4e-3, row=4e-4))
    assert not cheap.hopeless
    for _ in range(TRIAL):
        cheap.shared.add(0.1, 0.0, 0.0)
    cheap.learn_hope(prices(token=4e-3, row=4e-4))
    assert cheap.hopeless, "what was measured counts more than what its size says"


def test_hope_counts_the_tokens_that_a_head_can_propose_and_that_have_a_known_cost() -> None:
    """Two right tokens bring 1.94 - 0.2 seconds, three would bring 2.88 - 0.3; asking takes 1.75."""

    class Head(Reading):
        effort = Effort(2, 0.8749)

    class Deeper(Reading):
        effort = Effort(3, 0.2)

    two, one = record(Head()), record(Deeper())
    two.learn_hope(prices())
    assert two.hopeless
    two.drafter.effort = Effort(2, 0.8649)  # type: ignore[misc]
    two.learn_hope(prices())
    assert not two.hopeless
    one.learn_hope(Prices(1.0, 1.0, [0.0, 0.1], 0.0, 1, 0.0))
    assert not one.hopeless, "one right token pays"


def test_a_time_that_keeps_a_drafter_from_being_asked_counts_for_less_at_each_look() -> None:
    it = record(shared=Experience.known(3.2, 2.0, 1.0))
    it.own.seconds = 6.4
    it.doubt(prices(), 3.2)
    assert (it.shared.seconds, it.own.seconds) == (3.2, 6.4), "a full balance pays for it"
    it.doubt(prices(), 3.1)
    assert it.shared.seconds == pytest.approx(3.15)
    assert it.own.seconds == pytest.approx(6.3)


def test_a_head_that_was_hopeless_while_other_programs_had_the_cores_is_tried_again() -> None:
    class Head(Reading):
        effort = Effort(2, 0.1)

    it = record(Head(), Experience.known(2.0, 1.0, 1.0))
    it.learn_hope(prices())
    looks = 1
    while it.hopeless:
        it.learn_hope(prices())
        looks += 1
    assert looks == 10, "2 s · (63 / 64)^n is what two right tokens bring, 1.74 s, after 9 looks"
    assert it.ready(prices()) or it.calls_left(prices()) == 0


def test_a_first_time_includes_opening_and_a_spike_is_cut() -> None:
    means = Means()
    for seconds in (9.0, *[0.1] * 20):
        means.add(seconds, 1.0, 2.0)
    assert means.seconds == pytest.approx(0.1)
    means.add(50.0, 1.0, 2.0)
    assert means.seconds == pytest.approx(0.13)
    assert (means.tokens, means.rows) == (1.0, 2.0)


# ── time between calls ──


def test_a_draft_costs_what_passes_besides_the_usual() -> None:
    between, gaps = BetweenCalls(), Gaps()
    gaps.watch(between)
    gaps.add_forward(9.0)  # what was before the first call does not count
    for _ in range(4):
        gaps.add_forward(1e-4, 2)
    assert between.plain == pytest.approx(5e-5)
    assert between.known
    for _ in range(200):
        gaps.count(3e-5)
        gaps.add_draft()
        gaps.add_forward(1e-5, 2, own=False)  # of a draft model: part of the time between two steps
        gaps.add_forward(4e-4, 2)
    assert between.draft == pytest.approx(4.1e-4 - 1e-4 - 3e-5, rel=0.05)
    assert between.plain == pytest.approx(5e-5)


def test_the_usual_time_is_a_mean_without_spikes() -> None:
    between = BetweenCalls()
    between.add(4.0, 0.0, 2, 0)
    assert (between.plain, between.known) == (2.0, False)
    between.add(8.0, 0.0, 1, 0)  # the first calls include one-time work
    assert (between.plain, between.known) == (2.0, True)
    between.add(1.0, 0.0, 1, 0)
    assert between.plain == pytest.approx(2.0 - 1.0 / 3)
    between.add(100.0, 0.0, 1, 0)  # three times the mean at most
    assert between.plain == pytest.approx(5 / 3 + (5.0 - 5 / 3) / 4)
    for _ in range(40):
        between.add(between.plain, 0.0, 1, 0)
    assert between.plain == pytest.approx(2.5)
    between.add(5.0, 0.0, 1, 0)
    assert between.plain == pytest.approx(2.5 + 0.05 * 2.5)


def test_the_usual_time_of_an_earlier_process_goes_on() -> None:
    between = BetweenCalls()
    between.start(0.0)
    assert not between.known
    between.start(0.5)
    assert (between.plain, between.known) == (0.5, True)
    between.add(0.8, 0.0, 1, 0)
    assert between.plain == pytest.approx(0.5 + 0.3 / 3)


def test_the_time_of_drafts_is_a_mean_by_draft() -> None:
    between = BetweenCalls()
    between.add(5.0, 0.0, 1, 1)  # what is usual is not known yet
    between.add(5.0, 1.0, 1, 0)  # a drafter worked, for nothing
    assert (between.plain, between.draft, between.known) == (0.0, 0.0, False)
    between.start(1.0)
    between.add(7.0, 2.0, 2, 1)
    assert between.draft == pytest.approx(3.0)
    between.add(6.0, 2.0, 2, 2)
    assert between.draft == pytest.approx((0.95 * 3.0 + 2.0) / (0.95 + 2))
    between.add(1.0, 2.0, 2, 1)  # quicker than usual: nothing
    before = (0.95 * 4.85) / (0.95 * 2.95 + 1)
    assert between.draft == pytest.approx(before)
    assert between.plain == 1.0
    between.add(1.0, 0.0, 1, 0)
    assert between.draft == pytest.approx(0.998 * before)
    wild = BetweenCalls()
    wild.start(1.0)
    wild.add(1e6, 2.0, 2, 1)
    assert wild.draft == pytest.approx((50.0 if host_time.FINE else 3.0) * (2.0 + 2.0))


class Noting(BetweenCalls):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[float, float, int, int]] = []

    def add(self, seconds: float, counted: float, sequences: int, drafts: int) -> None:
        self.given.append((seconds, counted, sequences, drafts))


def test_what_passes_between_own_forwards_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_time, "FINE", False)  # no processor time
    gaps, between = Gaps(), Noting()
    assert not gaps.watched
    gaps.watch(between)
    assert gaps.watched
    gaps.add_forward(9.0)
    gaps.end_forward()
    assert not gaps.watched
    gaps.add_draft()
    gaps.count(0.5)
    gaps.count(0.25)
    gaps.add_forward(1.0, own=False)
    gaps.consumed(0.5)
    gaps.consumed(0.25)
    gaps.add_forward(2.0, 3)  # with a draft
    gaps.add_draft()
    gaps.add_draft()
    gaps.add_forward(4.0)  # after a draft, with two
    gaps.add_forward(5.0)  # after two
    gaps.add_forward(6.0, 2)
    assert between.given == [(2.25, 0.75, 3, 1), (4.0, 0.0, 1, 1), (5.0, 0.0, 1, 2), (6.0, 0.0, 2, 0)]
    assert (gaps.forwards, gaps.tokens, gaps.total) == (5, 2, 9.0 + 1.0 + 1.25 + 15.0)


def test_time_of_other_programs_is_left_out_while_a_drafter_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the thread's processor time, since watching began or since the last forward."""
    clock = {"wall": 10.0, "own": 5.0}
    monkeypatch.setattr(host_time, "FINE", True)
    monkeypatch.setattr(host_time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(host_time, "thread_time", lambda: clock["own"])
    gaps, between = Gaps(), Noting()
    gaps.watch(between)
    clock.update(wall=12.0, own=5.5)
    gaps.watch(between)  # watched since 10
    clock.update(wall=14.0, own=6.0)
    gaps.add_forward(6.0)  # 4 of them watched, and a quarter of those at work
    assert gaps.total == pytest.approx(6.0 - (4.0 - 1.25))
    gaps.add_forward(1.0)  # nobody watches
    gaps.end_forward()
    clock.update(wall=30.0, own=8.0)
    gaps.consumed(0.5)
    gaps.add_forward(3.5)  # 3 without the consumer's, 2 of them at work
    assert between.given == [(1.0, 0.0, 1, 0), (pytest.approx(2.5), 0.0, 1, 0)]
    gaps.end_forward()
    clock.update(own=9.0)
    gaps.add_forward(1.0)
    assert between.given[-1] == (1.0, 0.0, 1, 0), "no more is left out than has passed"


def test_where_processor_time_is_coarse_a_draft_s_time_has_a_lower_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of other programs is not left out there."""
    source = inspect.getsource(host_time)
    for resolution, fine, cap in ((1e-5, True, 50.0), (0.016, False, 3.0)):
        monkeypatch.setattr(time, "get_clock_info", lambda name, r=resolution: SimpleNamespace(resolution=r))
        there = ModuleType("host_time")
        exec(compile(source, "host_time", "exec"), there.__dict__)
        assert there.FINE is fine
        between = there.BetweenCalls()
        between.start(1.0)
        between.add(1e6, 2.0, 2, 1)
        assert between.draft == pytest.approx(cap * (2.0 + 2.0))


def test_time_is_never_negative() -> None:
    gaps = Gaps()
    gaps.consumed(1.0)
    gaps.add_forward(0.25)
    assert gaps.total == 0.0


# ── all together ──


class Adversary(BaseDrafter):
    """Sure of itself and always wrong."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        return Draft.chain([12 if context.ids[-1] != 12 else 11] * nodes, [0.95] * nodes)


@pytest.mark.usefixtures("ticking")
def test_nobody_is_asked_while_all_wait() -> None:
    """While all drafters wait the loop is told for how many calls."""
    asked: list[int] = []

    class Useless(BaseDrafter):
        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
            asked.append(len(context.ids))
            for _ in range(1000):  # a millisecond of the ticking clock
                host_time.perf_counter()
            return Draft()

    class Noting(Governor):
        def propose(self, context: Context, nodes: int, min_path_prob: float):  # type: ignore[no-untyped-def]
            found = super().propose(context, nodes, min_path_prob)
            seen.append(len(context.ids))
            return found

    seen: list[int] = []
    runtime = FakeRuntime(tiny_spec(context_length=2048))
    context = Context([1, 2, 3], 3, runtime.new_cache(700), rng=np.random.default_rng(5))

    governor = Noting([("it", Useless())], lambda: Still({1: CALL, 8: 2 * CALL}))
    assert len(list(decode(runtime, context, GenerationConfig(max_tokens=300), governor))) == 300
    assert asked, "it was tried"
    assert len(seen) < 120, "in most of 300 calls nothing is asked at all"
    assert governor.report()["silent"] > 250


@pytest.mark.parametrize("seconds", [large, small, tiny], ids=["1.2b", "135m", "nano"])
@pytest.mark.parametrize("n", [1, 4])
def test_an_adversary_costs_no_more_than_the_formula(seconds: object, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All guesses are wrong, and the drafter is sure of them."""
    python = Python() if seconds is not tiny else Python(*[x / 4 for x in (40e-6, 60e-6, 20e-6, 50e-6, 5e-6, 8e-6)])
    simulation = measured(seconds, monkeypatch, python)  # type: ignore[arg-type]
    tokens = 200
    off = n * tokens / simulation.run(n, 0.0, tokens)
    governed = n * tokens / simulation.run(n, 0.0, tokens, fixed=0)
    call = off / tokens
    assert governed - off <= (AUTO.rate * off + (AUTO.most + 1.0) * call) + 0.01 * off


class Still(Costs):
    """Costs that no call corrects."""

    def add(self, rows: int, seconds: float, cells: int = 0) -> bool:
        return False


def still(added: float = 0.1) -> Still:
    """A call of one row takes a second, each row more of it so much."""
    return Still({1: 1.0, 64: 1.0 + 63 * added})


def new_text(n: int = 400) -> tuple[FakeRuntime, Context]:
    runtime = FakeRuntime(tiny_spec(context_length=2048))
    return runtime, Context([1, 2, 3], 3, runtime.new_cache(n), rng=np.random.default_rng(5))


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("sooner", [0, 2])
def test_a_stop_token_that_was_drafted_saves_no_call(sooner: int) -> None:
    """Plain decoding needs no further call after it: what is saved is the calls of the tokens before it."""
    runtime, context = new_text()
    text = [*context.ids, *decode(runtime, context, GenerationConfig(max_tokens=40), Off())]
    at = next(i for i in range(12, len(text)) if text[i] not in text[3:i])  # the text's end

    class Last(BaseDrafter):
        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
            n = len(context.ids)
            return Draft.chain(text[n : at + 1], [0.99] * (at + 1 - n)) if n == at - sooner else Draft()

    runtime, context = new_text()
    governor = Governor([("it", Last())], still, terms=NAMED)
    config = GenerationConfig(max_tokens=40, stop_tokens=frozenset({text[at]}))
    assert [*context.ids, *decode(runtime, context, config, governor)] == text[:at]
    assert governor.members[0].accepted == sooner + 1, "it ran and was right"
    # The mean time between calls is part of what a token is worth.
    assert governor.account.bank.saved == pytest.approx(sooner * 1.0, abs=0.01)
    assert governor.account.bank.lost == pytest.approx((sooner + 1) * 0.1, abs=0.01)


@pytest.mark.usefixtures("ticking")
def test_tokens_that_are_appended_to_a_text_earn_nothing() -> None:
    """Turn after turn of long questions and short answers: the answers' time counts alone."""
    runtime, context = new_text(1500)
    governor = Governor([("it", Adversary())], still)
    turns, answer, question = 8, 5, 150
    for _ in range(turns):
        context.ids += [int(token) for token in np.random.default_rng(len(context.ids)).integers(1, 11, question)]
        context.n_prompt = len(context.ids)
        assert len(list(decode(runtime, context, GenerationConfig(max_tokens=answer), governor))) == answer
    bank = governor.account.bank
    assert bank.lost - bank.saved <= AUTO.most + AUTO.rate * turns * answer + 64 * 0.1
    assert bank.left <= AUTO.most + AUTO.rate * turns * answer - (bank.lost - bank.saved) + 0.01


def test_the_prompt_that_a_head_read_is_charged_though_its_text_ends() -> None:
    """Short texts: each ends after two proposals, and what their prompts took is charged to those that follow."""
    shared, read, usual = Experience.known(0.1, 0.5, 1.0), 1.7, 0.1
    charged = 0.0
    for _ in range(100):
        it = record(Reading(), shared)
        for took in (read, usual):
            charged += it.charge(took)
            it.judge(0.5, 1.0, prices())
    assert charged + shared.debt == pytest.approx(100 * (read + usual))
    assert shared.debt < 16 * read, "the rest is that of a few texts"
    it.restart()
    before = shared.debt
    charged = sum(record(Off(), shared).charge(usual) for _ in range(200)) - 200 * usual
    assert charged == pytest.approx(before, rel=0.01), "nothing of it is lost"


def test_forks_share_what_their_text_may_lose() -> None:
    bank = Bank(AUTO)
    bank.open(CALL)
    bank.add(-0.2 * CALL)
    twins = [Bank(AUTO) for _ in range(3)]
    for twin in twins:
        twin.divide(bank)
        twin.open(CALL)
    assert [twin.left for twin in twins] == pytest.approx([0.4 * CALL, 0.2 * CALL, 0.1 * CALL])
    assert bank.left == pytest.approx(0.1 * CALL)
    overdrawn, twin, early = Bank(AUTO), Bank(AUTO), Bank(AUTO)
    overdrawn.open(CALL)
    overdrawn.add(-3 * CALL)
    twin.divide(overdrawn)
    assert (twin.left, overdrawn.left) == (-CALL, -CALL), "the loss is shared as well"
    twin = Bank(AUTO)
    twin.divide(early)
    twin.open(CALL)
    early.open(CALL)
    assert (twin.left, early.left) == (0.0, CALL), "a first balance is given once"


def test_a_twin_that_shares_tables_inherits_only_the_states_of_heads() -> None:
    def inherited(tables: bool) -> list[str]:
        found = list[str]()

        class Table(Off):
            def inherit(self, other: Drafter) -> None:
                found.append("table")

        class Head(Reading):
            def inherit(self, other: Drafter) -> None:
                found.append("head")

        members = [record(Table()), record(Head())]
        inherit_all(members, [record(), record(Reading())], tables)
        return found

    assert inherited(tables=True) == ["table", "head"]
    assert inherited(tables=False) == ["head"]


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("terms", [AUTO, NAMED], ids=["auto", "named"])
def test_an_adversary_in_forks_of_forks_costs_no_more_than_the_formula(terms: Terms) -> None:
    """Every fork continues with a governor of its own; all of them together have the balance of one text."""
    costs, config = still(), GenerationConfig(max_tokens=12)
    runtime, context = new_text()
    texts = [(context, Governor([("it", Adversary())], lambda: costs, terms=terms))]
    tokens = lost = 0.0
    banks, drafted = list[Bank](), 0
    for _ in range(5):
        for context, governor in list(texts):
            tokens += len(list(decode(runtime, context, config, governor)))
            twin = Governor([("it", Adversary())], lambda: costs, terms=terms)
            twin.inherit(governor)
            texts.append((context.fork(), twin))
    for _, governor in texts:
        banks.append(governor.account.bank)
        drafted += governor.members[0].proposed
    lost = sum(bank.lost - bank.saved for bank in banks)
    assert len({id(bank) for bank in banks}) == len(texts) == 32
    assert drafted > 0
    last = 64 * 0.1 + 0.01  # one draft of each text, at most
    allowed = terms.most + terms.rate * tokens
    assert lost <= allowed + last
    # What all of them may still lose is what is left of it.
    assert sum(bank.left for bank in banks) <= allowed - lost + 0.01 * tokens


@pytest.mark.parametrize("seconds", [large, small], ids=["1.2b", "135m"])
@pytest.mark.parametrize("n", [4, 16])
def test_an_adversary_in_a_batch_of_texts_that_end(seconds: object, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of different lengths come and go, twice as many as run at a time."""
    simulation = measured(seconds, monkeypatch)  # type: ignore[arg-type]
    lengths = [8 + 5 * (i * 7 % 11) for i in range(2 * n)]
    off, largest = simulation.ending(lengths, n, -1)
    governed, _ = simulation.ending(lengths, n, 0)
    assert governed != off, "something was drafted"
    assert governed - off <= (AUTO.rate * off + (AUTO.most + 1.0) * largest) + 0.01 * off


def test_sessions_of_a_thread_share_one_bank_for_each_terms() -> None:
    shared = SharedLearning()
    costs = Costs(LINEAR)
    first = Governor([("it", Adversary())], lambda: costs, shared=shared)
    second = Governor([("it", Adversary())], lambda: costs, shared=shared)
    named = Governor([("it", Adversary())], lambda: costs, shared=shared, terms=NAMED)
    assert first.account.bank is second.account.bank is not named.account.bank
    experiences: Sequence[Experience] = [governor.members[0].shared for governor in (first, second, named)]
    assert experiences[0] is experiences[1] is experiences[2]
