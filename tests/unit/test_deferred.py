"""Texts begin without drafters while the savings of all texts do not pay for opening them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opening import CALL, CREATE, PROPOSE, REST, Clock, Drafts, World, context, looks, set_clock

from edgedec.decoding.draft import BaseDrafter, Draft
from edgedec.speculation.bank import AUTO, Bank
from edgedec.speculation.deferred import Deferred, Openings, _Tries
from edgedec.speculation.reasons import BANK, TEXTS, UNOPENED


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


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


def test_openings_that_no_gains_pay_for_wait_for_2_4_8_and_16_others() -> None:
    tries, found = _Tries(Bank(AUTO)), list[int]()
    for n in range(80):
        tries.passed = float(n)
        found += [n] if tries.take(1.0) else []
    assert found == [0, 2, 6, 14, 30, 46, 62, 78]


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


def test_texts_that_end_before_the_second_look_save_as_well(world: World) -> None:
    """30 calls save 0.24 of 0.75 s; a rest is 33 calls long."""
    for _ in range(40):
        text = world.text()
        text.propose(context(1), 4, 0.0)
        assert not text.opened
    found = list[bool]()
    while not any(found):
        text = world.text()
        found.append(text.opened)
        text.propose(context(1), 4, 0.0)
        text.end(context(31))
    assert found == [False] * 4 + [True]
    assert text.drafter.ends == 1  # type: ignore[attr-defined]


def test_the_end_of_a_text_saves_what_no_look_has_seen(world: World) -> None:
    """Also of a text that goes on, and of drafters that are closed; an open text pays by its governor."""
    text = world.text()
    text.propose(context(5), 4, 0.0)
    text.propose(context(15), 4, 0.0)
    text.end(context(20))
    assert world.bank.left == pytest.approx(15 * AUTO.rate * CALL)
    text.end(context(20))
    text.propose(context(25), 4, 0.0)
    assert world.bank.left == pytest.approx(20 * AUTO.rate * CALL)
    world.bank.left = 2 * (CREATE + PROPOSE)
    text.propose(context(30), 4, 0.0)
    left = world.bank.left
    assert text.opened
    text.end(context(90))
    assert (world.bank.left, text.drafter.ends) == (left, 1)  # type: ignore[attr-defined]
    made, world.bank.left = text.drafter, -0.1
    text.reset()
    text.propose(context(5), 4, 0.0)
    text.end(context(15))
    assert world.bank.left == pytest.approx(-0.1 + 10 * AUTO.rate * CALL)
    assert made.ends == 1  # type: ignore[attr-defined]


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
