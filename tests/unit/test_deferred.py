"""Texts begin without drafters while the savings of all texts do not pay for opening them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.decoding import host_time
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.draft import BaseDrafter, Draft, State
from edgedec.decoding.scheduler.batch import Batch
from edgedec.kernels.cpu.loader import why_not
from edgedec.speculation.bank import AUTO, Bank
from edgedec.speculation.deferred import Deferred, Openings
from edgedec.speculation.reasons import BANK, TEXTS, UNOPENED

CREATE, PROPOSE, CALL = 0.5, 0.25, 1.0
REST = 32


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Drafts(BaseDrafter):
    """Takes PROPOSE seconds for each proposal."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.asked, self.known, self.resets = clock, 0, "new", 0

    def propose(self, context: Any, nodes: int, min_path_prob: float) -> Draft:
        self.asked += 1
        self.clock.now += PROPOSE
        return Draft.chain([7])

    def reset(self) -> None:
        self.resets += 1

    def state(self) -> State:
        return {"known": np.array([1])}

    def restore(self, state: State) -> None:
        self.known = "restored"

    def inherit(self, other: Any) -> None:
        self.known = f"from {other.known}"

    def report(self) -> dict[str, Any]:
        return {"silent": 3, "calls": {BANK: 1, "waiting": 2}, "sizes": {}, "drafters": {}}


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    for name in ("perf_counter", "thread_time"):
        monkeypatch.setattr(host_time, name, clock)


class World:
    """Texts that share a bank. A call without drafts takes CALL seconds, and creating drafters CREATE."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: float = 0.0) -> None:
        self.clock = Clock()
        set_clock(monkeypatch, self.clock)
        self.bank = Bank(AUTO)
        self.openings = Openings(self.bank)
        for _ in range(2):  # their times become known
            self.text().propose(context(1), 4, 0.0)
        self.bank.open(CALL)
        self.bank.left, self.bank.lost = left, 0.0

    def text(self) -> Deferred:
        return Deferred(self.make, self.openings, ["copy", "eagle3"])

    def make(self) -> Drafts:
        self.clock.now += CREATE
        return Drafts(self.clock)


def context(length: int, others: int = 0) -> Any:
    return Context([0] * length, 1, SimpleNamespace(), concurrent=others)  # type: ignore[arg-type]  # no cache


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def looks(text: Deferred, others: int = 0, length: int = 10, step: int = REST + 1) -> int:
    """How often it is asked until it is open."""
    for n in range(10_000):
        if text.opened:
            return n
        text.propose(context(length + n * step, others), 4, 0.0)
    raise AssertionError("never opened")


def test_the_first_texts_open_at_once_because_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    set_clock(monkeypatch, clock)
    bank = Bank(AUTO)
    openings = Openings(bank)

    def make() -> Drafts:
        clock.now += 9.0 if clock.now == 0 else CREATE  # the first one loads what all texts share
        return Drafts(clock)

    opened = [Deferred(make, openings).opened for _ in range(3)]
    assert opened == [True, True, False]
    assert (bank.lost, openings._seconds) == (CREATE, CREATE)


def test_while_the_cost_of_a_call_is_unknown_fewer_and_fewer_looks_open_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these texts lives long enough to make it known; the one that does finds it with the debts of all."""
    clock = Clock()
    set_clock(monkeypatch, clock)
    bank = Bank(AUTO)
    openings = Openings(bank)

    def make() -> Drafts:
        clock.now += CREATE
        return Drafts(clock)

    opened = [n for n in range(1, 101) if Deferred(make, openings).opened]
    assert opened == [1, 2, 4, 8, 16, 32, 64]
    assert bank.left == -6 * CREATE, "the first one is not counted"
    bank.open(CALL)
    assert bank.left == CALL - 6 * CREATE
    assert not Deferred(make, openings).opened


def openings_in_turn(world: World, texts: int, gain: float) -> int:
    """How many of so many texts with 3 looks each are opened, each of which then gains so much and lets the bank be at
    its most: savings alone never keep a text from it."""
    n = 0
    for _ in range(texts):
        text = world.text()
        for look in range(3):
            if not text.opened:
                text.propose(context(10 + look * 50), 4, 0.0)
        if text.opened:
            n += 1
            text.propose(context(200), 4, 0.0)
            world.bank.saved += gain
        world.bank.left = CALL
    return n


def test_openings_that_bring_nothing_become_rare(world: World) -> None:
    """A text without drafters saves 0.8 s of its 100 calls, about an opening (0.75 s): after the first ones, one in 15
    texts."""
    world.bank.left = CALL
    assert openings_in_turn(world, 30, gain=0.0) <= 5
    assert openings_in_turn(world, 60, gain=0.0) == 4


def test_openings_that_pay_are_not_waited_for(world: World) -> None:
    world.bank.left = CALL
    assert openings_in_turn(world, 30, gain=2 * (CREATE + PROPOSE)) >= 28


def test_a_large_gain_pays_for_tries_in_the_texts_after_it(world: World) -> None:
    world.bank.left = CALL
    assert openings_in_turn(world, 60, gain=0.0) < 10
    world.bank.saved += 1000 * CALL
    assert openings_in_turn(world, 20, gain=0.0) >= 16
    assert openings_in_turn(world, 30, gain=0.0) <= 5, "but for no more than 16"


def test_a_loss_of_drafting_is_no_gain(world: World) -> None:
    world.bank.left = CALL
    openings_in_turn(world, 30, gain=0.0)
    world.bank.saved, world.bank.lost = world.bank.saved + 5 * CALL, world.bank.lost + 6 * CALL
    assert openings_in_turn(world, 15, gain=0.0) <= 1


def test_a_text_that_cannot_pay_rests_and_nothing_is_created(world: World) -> None:
    text = world.text()
    draft = text.propose(context(5), 4, 0.0)
    assert isinstance(draft, Draft)
    assert (draft.tokens, draft.rest, draft.unseen, draft.why) == ((), REST, True, TEXTS[BANK])
    assert not text.opened
    assert (text.reads, text.outputs, text.prompt_rows) == (BaseDrafter.reads, BaseDrafter.outputs, 0)


def test_a_text_that_can_pay_is_open_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Creation is charged; the first proposal is what its governor charges."""
    world = World(monkeypatch, left=CREATE + PROPOSE)
    text = world.text()
    assert text.opened
    assert world.bank.left == PROPOSE
    draft = text.propose(context(5), 4, 0.0)
    assert isinstance(draft, Draft)
    assert draft.tokens == (7,)
    assert (world.bank.left, world.bank.lost) == (PROPOSE, CREATE)
    world.bank.left = CREATE + PROPOSE - 1e-9
    assert not world.text().opened


def test_it_opens_at_the_look_at_which_the_calls_without_drafters_have_paid(world: World) -> None:
    """0.75 s are 0.8 % of 93.75 s: three looks of 33 calls of a second after the first one."""
    text = world.text()
    assert looks(text) == 4
    assert text.drafter.asked == 1  # type: ignore[attr-defined]


def test_time_is_divided_between_the_texts_of_a_call(world: World) -> None:
    assert looks(world.text(), others=1) == 7


def test_what_the_balance_cannot_hold_is_saved_for_openings(world: World) -> None:
    """One that costs more than the bank may ever hold is opened nevertheless."""
    world.openings._created._means.seconds = 1.5 * CALL
    assert world.bank.most * CALL == CALL
    text = world.text()
    calls = (1.5 + PROPOSE) / AUTO.rate
    assert looks(text) == 2 + int(calls / (REST + 1))
    assert 0 < world.bank.left <= CALL


def test_the_first_proposal_is_paid_from_savings(world: World) -> None:
    """They pay both, so the balance is what it was, less what the governor settles."""
    world.bank.left = CALL
    world.openings._saved = CREATE + PROPOSE
    text = world.text()
    assert (world.openings._saved, world.bank.left, world.bank.lost) == (PROPOSE, CALL, CREATE)
    world.bank.left = CALL / 2
    text.propose(context(5), 4, 0.0)
    assert (world.openings._saved, world.bank.left) == (0.0, CALL / 2 + PROPOSE)
    text.propose(context(6), 4, 0.0)
    assert world.bank.left == CALL / 2 + PROPOSE


def test_a_reset_text_saves_nothing_for_the_tokens_of_the_next_one(world: World) -> None:
    text = world.text()
    text.propose(context(5), 4, 0.0)
    text.reset()
    text.propose(context(500), 4, 0.0)
    assert (text.opened, world.bank.left) == (False, 0.0)
    text.propose(context(510), 4, 0.0)
    assert world.bank.left == pytest.approx(10 * CALL * AUTO.rate)


def test_a_used_up_balance_closes_drafters_at_the_next_text(world: World) -> None:
    """They are the same ones when it has recovered, and opening them again costs nothing."""
    world.bank.left = CREATE + PROPOSE
    text = world.text()
    text.propose(context(5), 4, 0.0)
    made = text.drafter
    text.reset()
    assert text.opened, "nothing is lost"
    world.bank.left = -0.1
    assert text.propose(context(6), 4, 0.0).tokens == (7,)  # type: ignore[union-attr]
    text.reset()
    assert not text.opened
    draft = text.propose(context(5), 4, 0.0)
    assert isinstance(draft, Draft)
    assert (draft.tokens, draft.rest, draft.why) == ((), REST, TEXTS[BANK])
    assert text.report()["silent"] == 3, "what they did is reported"
    world.bank.left, lost = 2 * (CREATE + PROPOSE), world.bank.lost
    assert text.propose(context(6), 4, 0.0).tokens == (7,)  # type: ignore[union-attr]
    assert text.drafter is made
    assert world.bank.lost == lost
    world.bank.left = -0.1
    text.reset()
    assert not text.opened
    assert list(text.state()) == ["known"]
    assert text.drafter is made, "a saved state opens them"


def test_states_and_forks_find_drafters(world: World) -> None:
    saved, restored, fork, closed = (world.text() for _ in range(4))
    assert list(saved.state()) == ["known"]
    restored.restore({})
    assert restored.drafter.known == "restored"  # type: ignore[attr-defined]
    fork.inherit(restored)
    assert fork.drafter.known == "from restored"  # type: ignore[attr-defined]
    closed.inherit(world.text())
    assert not closed.opened
    own = world.text()
    assert own.own_state() == {}
    assert own.opened


def test_its_calls_without_drafters_are_reported_as_unpaid(world: World) -> None:
    text = world.text()
    text.propose(context(5), 4, 0.0)
    none = {"proposed": 0, "accepted": 0, "seconds": 0.0, "state": UNOPENED, "asked": 0, "wait": 0}
    assert text.report() == {"why": BANK, "sizes": {}, "drafters": {"copy": none, "eagle3": none}}
    text.propose(context(25), 4, 0.0)
    world.bank.left = CALL
    text.propose(context(30), 4, 0.0)
    assert text.opened
    assert text.report() == {"silent": 28, "calls": {BANK: 26, "waiting": 2}, "sizes": {}, "drafters": {}}


@settings(deadline=None)
@given(
    create=st.floats(0.01, 5.0),
    propose=st.floats(0.01, 5.0),
    lengths=st.lists(st.integers(1, 400), min_size=5, max_size=60),
)
def test_openings_lose_no_more_than_the_rate(create: float, propose: float, lengths: list[int]) -> None:
    """Of texts that are all opened in vain: at most the first balance, the rate of their time, and one opening."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch, left=CALL)
        for usual, seconds in ((world.openings._created, create), (world.openings._proposed, propose)):
            usual._means.seconds = seconds
        patch.setitem(globals(), "CREATE", create)
        patch.setitem(globals(), "PROPOSE", propose)
        lost = time = 0.0
        for length in lengths:
            text, at = world.text(), 1
            while at <= length:
                if not text.opened:
                    text.propose(context(at), 4, 0.0)
                if text.opened:
                    lost += create + propose
                    text.propose(context(at), 4, 0.0)
                    world.bank.add(AUTO.rate * (length - at) * CALL - propose)  # as its governor does
                    break
                at += REST + 1
            time += length * CALL
        assert lost <= CALL + AUTO.rate * time + create + propose + 1e-6


@pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")
def test_short_texts_of_a_small_model_share_few_openings(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are opened, some are not, how many follows from the machine; the texts are those without drafters."""
    model, opened, made = edgedec.open(nano, engine="native", threads=1), Counter[bool](), list[Deferred]()
    create = Deferred.__init__
    monkeypatch.setattr(Deferred, "__init__", lambda self, *a: made.append(self) or create(self, *a))
    prompts = [model.tokenizer.encode(f"{word} upon a time there was a") for word in ("Once", "One", "Then", "A")] * 8
    config = GenerationConfig(max_tokens=24)
    texts = dict[str, list[list[int | None]]]()
    for speculate in ("off", "auto"):
        batch, texts[speculate], tables = Batch(model.runtime), [[] for _ in prompts], dict[Any, Any]()
        for ids, text in zip(prompts, texts[speculate], strict=True):
            session = model.session(context=128, speculate=speculate, tables=tables)
            session.submit(batch, list(ids), text.append, config=config)
            batch.run()
    opened.update(text.opened for text in made)
    assert len(made) == len(prompts)
    assert opened[True] >= 2
    assert opened[False] >= 2
    assert texts["auto"] == texts["off"]


@pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")
def test_short_first_texts_do_not_keep_later_ones_from_drafters(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end before calls of more rows are measured; but what a call takes at least is known, so savings are."""
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))  # no costs of earlier runs
    model, tables = edgedec.open(nano, engine="native", threads=1), dict[Any, Any]()
    ids = model.tokenizer.encode("Once upon a time")
    for _ in range(2):
        list(model.session(context=128, speculate="auto", tables=tables).tokens(ids, max_tokens=5))
    bank = tables["speculation"].bank()
    assert bank.opened
    assert bank.call > 0
    tables["speculation"].openings._created._means.seconds = 2 * bank.call
    bank.left = 0.0
    text = model.session(context=128, speculate="auto", tables=tables)
    list(text.tokens(ids, max_tokens=100))
    assert bank.left > 0, "its calls saved for one"


@pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")
@pytest.mark.parametrize("speculate", ["copy", "auto+copy"])
def test_named_drafters_are_opened_with_their_text(nano: Path, speculate: str) -> None:
    model, tables = edgedec.open(nano, engine="native", threads=1), dict[Any, Any]()
    for _ in range(4):
        session = model.session(context=64, speculate=speculate, tables=tables)
        assert not isinstance(session._drafter.drafter, Deferred)  # type: ignore[attr-defined]


@pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")
def test_without_drafters_all_calls_after_the_prompt_are_the_runtime_s_own(
    nano: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = edgedec.open(nano, engine="native", threads=1)
    session, rows = model.session(context=64, speculate="off"), list[int]()
    forward = model.runtime.forward
    monkeypatch.setattr(model.runtime, "forward", lambda calls: rows.append(len(calls[0].rows)) or forward(calls))
    first = list(session.tokens(model.tokenizer.encode("Once upon a time"), max_tokens=4))
    assert len(rows) <= 1
    again = list(session.tokens(None, max_tokens=8))
    assert len(rows) <= 1
    assert session.stats.calls == 8
    assert len(first + again) == 12
