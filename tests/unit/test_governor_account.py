"""What a governor pays for: who is asked and when next, rows that may be wrong, and what a call is settled with.

All values are worked out by hand."""

from __future__ import annotations

from time import thread_time
from types import SimpleNamespace

import pytest
from guesses import TREE, Proposes, context, merged

from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft
from edgedec.decoding.messages import StepResult
from edgedec.drafters.off import Off
from edgedec.runtime import CallResult, Outputs, Rows
from edgedec.speculation.bank import AUTO, NAMED, Experience, Terms
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.speculation.prices import Prices
from edgedec.speculation.proposals import Proposals
from edgedec.speculation.reasons import BANK, PROMPT, WAITING
from edgedec.speculation.record import DrafterRecord
from edgedec.speculation.state import SharedLearning
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.trees.calibration import Calibration


class Reads(Proposes):
    """A head that needs the result of every call."""

    reads = Outputs(hidden=(0,))


def alone(text: Context, terms: Terms = NAMED, second: Proposes | None = None) -> Governor:
    """A governor of two drafters, whose prices are known: 0.1 for each row, 0.2 for a draft, 0.5 between calls."""
    costs = Costs({1: 1.0, 33: 4.2})
    costs.between.start(0.5)
    costs.between.draft = 0.2
    governor = Governor([("a", Proposes()), ("b", second or Proposes())], lambda: costs, terms=terms)
    governor._begin(text)
    return governor


def test_a_call_is_settled_with_what_its_rows_and_its_draft_took() -> None:
    """Three tokens instead of one save two; two of five rows were drafted, at 0.1 and 0.05 for the text before each."""
    text = context(range(1, 13), cached=11)
    governor, settled = alone(text), list[tuple[float, float, float]]()
    governor.account.settle = lambda *given: settled.append(given)  # type: ignore[method-assign]
    prices = governor._prices = Prices(1.5, 1.0, [0.0, 0.1], 0.2, 1, 0.05)
    governor._found, governor._kept, governor._drafted = Proposals(merged(TREE)), [0, 1], 2
    step = StepResult(Rows.chain([1], 0), 0, [0, 1, 2], [7, 8, 3], CallResult(), 0.1, total=5)
    rows, row = list[tuple[int, int]](), governor.costs.row
    governor.costs.row = lambda *given: rows.append(given) or row(*given)  # type: ignore
    governor._settle(step, prices, 0.01)
    assert settled.pop() == pytest.approx((3.0, 0.15 * 2 + 0.01 + 0.2, 1.0))
    assert rows == [(3, 2)], "two rows more than the three of other texts and of the last token"
    governor._found.prompts = 2
    governor._settle(step, prices, 0.01)
    assert settled.pop() == pytest.approx((3.0, 0.15 * 4 + 0.01 + 0.2, 1.0)), "prompt rows ran as well"
    ended = StepResult(Rows.chain([1], 0), 0, [0, 1], [7, -1], CallResult(), 0.1, total=5)
    governor._settle(ended, prices, 0.0)
    assert settled.pop()[0] == 0.0, "one token, and the end of the text"
    assert governor.account.looked == 0.0, "no look was for nothing yet"
    governor._probing = True
    governor._settle(step, prices, 0.01)
    assert settled.pop() == (0.0, 0.01, 1.0), "measuring saves nothing and is not the drafters' cost"
    governor._probing, governor._found, governor._kept = False, Proposals(), []
    governor._settle(step, prices, 0.02)
    assert settled.pop() == (0.0, 0.02, 1.0)
    assert governor.account.looked == 0.02


def test_a_draft_has_the_rows_that_may_all_be_wrong() -> None:
    """The first guess is right with 0.75 in two of three: 0.4 may be lost, so 0.8 risked; 0.2 of it is the draft's."""
    governor = alone(context())
    bank = governor.account.bank
    bank.left, bank.expected, bank.accepted = 0.4, 8.0, 4.0
    assert bank.trust == pytest.approx(2 / 3)
    governor._found = Proposals(merged(TREE))
    prices = Prices(1.0, 1.0, [0.1 * n for n in range(65)], 0.2, 1, 0.0)
    assert governor._within(64, prices) == 6
    assert governor._within(3, prices) == 3
    bank.left = 0.1
    assert governor._within(64, prices) == 0
    governor._found = Proposals()
    bank.left = 0.55
    assert governor._within(64, prices) == 3, "without a guess no more than may be lost"


def test_calls_without_a_proposal_are_those_that_tokens_came_of() -> None:
    """After a proposal at 12 tokens for 5 calls of rest: one call at each further token, the one in progress left
    out."""
    text = context(range(1, 13), cached=11)
    governor = alone(text)
    governor._rest = 5
    for more, rested in ((0, 0), (1, 0), (2, 1), (4, 3), (6, 5), (9, 5)):
        governor._ids = [*range(12 + more)]
        assert governor._rested() == rested
    governor._ids = [*range(3)]
    assert governor._rested() == 0, "the text slid"


def asked(governor: Governor, left: float, reading: bool = False) -> tuple[list[int], str, list[int]]:
    """The drafters that are asked where so much may be lost, why there are no more, and those that learn."""
    governor.account.bank.left, governor.account.own, governor._learners = left, 0.0, []
    assert governor._prices is not None
    found = [number for number, _ in governor._asked(governor._prices, reading)]
    return found, governor._why, [governor.members.index(one) for one in governor._learners]


def test_a_text_earns_until_it_ends() -> None:
    """Texts shorter than a rest would otherwise never pay back anything."""
    text = context(range(1, 13), cached=11)
    governor = alone(text, AUTO)
    bank, (first, second) = governor.account.bank, governor.members
    bank.left, governor._rest, governor._later, first.wait = -1.0, 100, BANK, 100
    text.ids += range(20)
    governor.end(text)
    earned = -1.0 + 0.008 * 20 * 1.5
    assert bank.left == pytest.approx(earned)
    assert governor._whys[BANK] == 19, "the first was that of the proposal"
    assert (first.wait, first.shared.calls, second.shared.calls) == (81, 20, 20)
    governor.end(text)
    governor.reset()
    assert bank.left == pytest.approx(earned), "once"
    assert (governor._whys[BANK], first.shared.calls) == (19, 20)


def test_a_text_that_goes_on_after_its_end_earns_from_there() -> None:
    text = context(range(1, 13), cached=11)
    governor = alone(text, AUTO)
    bank = governor.account.bank
    bank.left, governor._rest = -1.0, 100
    text.ids += range(20)
    governor.end(text)
    text.ids += range(3)
    governor._begin(text)
    assert bank.left == pytest.approx(-1.0 + 0.008 * 23 * 1.5)
    text.ids += range(5)
    text.n_prompt = len(text.ids)
    governor.end(text)
    assert bank.left == pytest.approx(-1.0 + 0.008 * 23 * 1.5), "what was appended took no calls"


def test_before_calls_have_a_cost_nothing_is_earned() -> None:
    governor = Governor([("a", Proposes())], lambda: Costs({}))
    text = context(range(1, 13), cached=11)
    governor.end(text)
    governor._begin(text)
    text.ids += range(20)
    assert isinstance(governor.propose(text, 4, 0.0), Draft)
    assert governor._spent > 0.0
    governor.end(text)
    assert (governor.account.bank.left, governor.account.bank.lost) == (0.0, 0.0)


def test_what_others_generated_earns_nothing() -> None:
    """A fork begins after tokens of the text that it was made of, whose governor accounts for them."""
    text, costs = context(range(1, 13), cached=11), Costs({1: 1.0, 33: 4.2})
    governor = Governor([("a", Proposes())], lambda: costs, terms=NAMED)
    bank = governor.account.bank
    bank.open(1.0)
    bank.left = -1.0
    assert text.generated_after(0) == 9
    governor._begin(text)
    governor.end(text)
    assert bank.left == -1.0


@pytest.mark.parametrize("terms", [AUTO, NAMED])
def test_drafters_are_asked_that_may_be_wrong_at_all(terms: Terms) -> None:
    """A first try costs nothing that is known, but a row of 0.1 and the 0.2 of a draft. The first one takes 0.25."""
    governor = alone(context(range(1, 13), cached=11), terms)
    first = governor.members[0]
    first.own.add(0.25, 1.0, 1.0)
    first.own.add(0.25, 1.0, 1.0)
    assert asked(governor, 0.6) == ([0, 1], WAITING, [0, 1])
    assert asked(governor, 0.55 + 1e-9) == ([0, 1], WAITING, [0, 1])
    assert asked(governor, 0.5) == ([1], BANK, [1])
    assert asked(governor, 0.3 - 1e-9) == ([], BANK, [])
    assert asked(governor, 0.6, reading=True) == ([], PROMPT, [])
    assert asked(governor, 0.0, reading=True) == ([], BANK, []), "so the rest begins with the prompt"
    first.wait = 3
    expected = ([1], WAITING, [1]) if terms is AUTO else ([0, 1], WAITING, [0, 1])
    assert asked(governor, 0.6) == expected, "a named drafter does not wait"
    assert asked(governor, 0.0)[1] == BANK
    governor.members[1].wait = 3
    assert asked(governor, 0.0) == ([], WAITING if terms is AUTO else BANK, []), "nobody would be asked anyway"


def test_a_balance_is_looked_at_again_when_it_pays_for_the_cheapest_drafter() -> None:
    """A row and a draft take 0.3, the first drafter 0.25 besides; 0.008 of the 1.5 of a token is earned at each."""
    governor = alone(context(range(1, 13), cached=11), AUTO)
    first, second = governor.members
    account, known = governor.account, Experience.known(0.25, 4.0, 1.0)
    for lacks, own, looked, calls in (
        (0.3, 0.0, 0.0, 25), (0.55, 0.5, 0.0, 46), (0.55, 0.5, 0.1, 55), (0.55, 0.5, 0.3, 100), (1.05, 1.5, 0.0, 84),
    ):  # fmt: skip
        governor._begin(context(range(1, 13), cached=11))
        assert account.lacking == 0.0, "of this call"
        first.shared, second.shared, account.looked = known, Experience.known(own, 4.0, 1.0), looked
        assert asked(governor, 0.0) == ([], BANK, [])
        assert account.lacking == pytest.approx(min(0.55, 0.3 + own))
        account.lacking = lacks
        assert account.calls_in_debt(1.5, 1000) == calls
    assert account.most == 1.0, "no more than that can ever be paid"
    assert account.calls_in_debt(1.5, 70) == 70


def test_a_balance_is_looked_at_again_when_it_pays_for_the_tables() -> None:
    """Of ten drafts that the tables are sure of at most one may be lost."""
    governor = alone(context(range(1, 13), cached=11), AUTO)
    group = governor._group = DrafterRecord("tables", Off(), Calibration(), Experience.known(0.1, 4.0, 1.0))
    assert governor._prices is not None
    governor.account.bank.left = 0.0
    governor._ask_tables(governor._prices)
    assert not governor._watched
    assert governor.account.lacking == pytest.approx((group.takes + governor._prices.row) / 10)
    governor.account.bank.left = governor.account.lacking + 1e-9
    governor._ask_tables(governor._prices)
    assert governor._watched


@pytest.mark.parametrize("terms", [AUTO, NAMED])
def test_tables_that_are_named_do_not_wait(terms: Terms) -> None:
    governor = alone(context(range(1, 13), cached=11), terms)
    group = governor._group = DrafterRecord("tables", Off(), Calibration(), Experience.known(0.1, 4.0, 1.0))
    assert governor._prices is not None
    group.wait = 3
    governor._ask_tables(governor._prices)
    assert governor._watched == (terms is NAMED)


def test_a_stored_time_above_a_full_balance_does_not_keep_a_drafter_out_for_ever() -> None:
    """A full balance of `auto` is 1; asking it would take 2 and the 0.3 of a draft with a row."""
    governor = alone(context(range(1, 13), cached=11), AUTO)
    first, known = governor.members[0], Experience.known(2.0, 4.0, 1.0)
    first.shared, looks = known, 0
    assert governor.account.most == 1.0
    while asked(governor, 1.0) == ([1], BANK, [1]):
        looks += 1
        assert known.seconds == pytest.approx(2.0 * (63 / 64) ** looks)
    assert asked(governor, 1.0) == ([0, 1], WAITING, [0, 1])
    assert looks == 67, "2 · (63 / 64)^67 is 0.696"
    assert asked(governor, 0.9) == ([1], BANK, [1]), "one that only this balance cannot pay for"
    assert known.seconds == pytest.approx(2.0 * (63 / 64) ** looks), "keeps its time"


def test_reading_the_costs_of_an_earlier_process_is_no_text_s_drafting() -> None:
    def costs() -> Costs:
        until = thread_time() + 0.2
        while thread_time() < until:
            pass
        return Costs({1: 1.0, 33: 4.2})

    governor = Governor([("a", Proposes())], costs)
    governor.propose(context(range(1, 13), cached=11), 0, 0.0)
    assert len(governor.costs.seconds) > 1
    assert 0.0 < governor._spent < 0.1


def test_a_drafter_that_reads_gets_a_call_before_it_is_asked() -> None:
    governor = alone(context(range(1, 13), cached=11), AUTO, Reads())
    head = governor.members[1]
    assert asked(governor, 0.6) == ([0], WAITING, [0, 1])
    head.follows = True
    assert asked(governor, 0.6) == ([0, 1], WAITING, [0, 1])
    assert asked(governor, 0.1) == ([], BANK, [1]), "it goes on reading while anything is left"
    assert asked(governor, 0.0) == ([], BANK, [])
    assert asked(governor, 0.6, reading=True) == ([], PROMPT, [1]), "and it reads the prompt"
    assert asked(governor, 0.0, reading=True) == ([], BANK, []), "unless nothing may be lost"


def test_a_prompt_is_shown_to_the_tables_if_one_of_them_learns_from_it() -> None:
    governor, seen = alone(context(range(1, 13), cached=11)), list[int]()
    governor._tables, governor._others = list(governor.members), []
    governor._compiled = SimpleNamespace(observe=lambda step, mask: seen.append(mask))  # type: ignore[assignment]
    step = StepResult(Rows.chain([1], 0), 0, [0], [7], CallResult(), 0.1)
    for learners in ([], governor.members[:1], governor.members):
        governor._learners = list(learners)
        governor._teach(step)
        seen.append(-1)
    assert seen == [-1, governor._mask, -1, governor._mask, -1]


def test_calls_until_anyone_is_asked() -> None:
    governor = alone(context(range(1, 13), cached=11), AUTO)
    assert governor._prices is not None
    first, second = governor.members

    def rest(one: int, other: int, tables: bool = True) -> int:
        first.wait, second.wait = one, other
        assert governor._prices is not None
        return governor._calls_to_rest(governor._prices, tables)

    governor._why = WAITING
    assert [rest(20, 7), rest(0, 7), rest(90, 95), rest(90, 95, tables=False), rest(200, 200, tables=False)] == [
        7, 0, 32, 90, 128,
    ]  # fmt: skip
    governor._why = BANK
    assert [rest(20, 7), rest(0, 7), rest(0, 7, tables=False), rest(90, 95)] == [7, 4, 32, 32]
    governor.account.bank.left = -1.0
    assert [rest(0, 7), rest(0, 7, tables=False)] == [84, 84], "1 owed, 0.008 of 1.5 a call"
    governor._shared = SharedLearning()
    assert [rest(0, 7), rest(0, 7, tables=False)] == [84, 84], "shared or not"
    governor.account.bank.left = 0.0
    governor._watched = True
    assert rest(0, 7) == 0, "the tables were asked"
    first.hopeless = True
    assert rest(0, 7) == 7
    second.hopeless = True
    assert rest(0, 7) == 32, "none ever"
    named = alone(context(range(1, 13), cached=11), NAMED)
    assert named._prices is not None
    named.members[0].wait = named.members[1].wait = 50
    assert named._calls_to_rest(named._prices) == 0


def test_learning_is_charged_to_those_that_were_asked() -> None:
    governor = Governor([("a", Proposes()), ("b", Proposes())], lambda: Costs({1: 1.0, 8: 2.0}), terms=NAMED)
    text = Context([1, 2, 3], 3, FakeRuntime(tiny_spec()).new_cache(40))
    governor._begin(text)
    assert governor._prices is not None
    governor._judge(Proposals(asked=[0, 1]), [0.0, 0.0], [0, 0], governor._prices, 0.4)
    assert [one.seconds for one in governor.members] == pytest.approx([0.2, 0.2])
    governor._judge(Proposals(asked=[1]), [0.0, 0.0], [0, 0], governor._prices, 0.4)
    assert [one.seconds for one in governor.members] == pytest.approx([0.2, 0.6])


def test_tables_are_judged_together_and_looked_at_one_by_one_at_times() -> None:
    """Their common record has every proposal; those of each table are noted once in 16 calls."""
    governor = alone(context(range(1, 13), cached=11))
    assert governor._prices is not None
    table, other = governor.members
    group = governor._group = governor._record("a", Off())
    governor._tables, governor._watched = [table], True
    seen = list[int]()
    for _ in range(33):
        governor._judge(Proposals(merged(TREE)), [0.0, 0.0], [0, 0], governor._prices, 0.1)
        seen.append(table.runs.proposals)
    assert seen == [1] * 16 + [2] * 16 + [3]
    assert (group.runs.proposals, group.asked, other.runs.proposals) == (33, 33, 0)
    assert group.seconds == pytest.approx(3.3)


def test_what_others_gained_counts_as_four_proposals_once_it_is_known() -> None:
    """2 tokens for 4 rows in other texts, 0.5 for one row in this one; a token is worth 1, a row costs 0.1."""
    prices = Prices(1.0, 1.0, [0.1 * n for n in range(65)], 0.0, 1, 0.0)
    shared = Experience.known(0.1, 2.0, 4.0)
    one = DrafterRecord("it", Off(), Calibration(), shared)
    assert one.gain(prices) == pytest.approx(2.0 - 0.4)
    one.own.add(0.1, 0.5, 1.0)
    assert one.gain(prices) == pytest.approx((0.5 + 4 * 2.0) / 5 - 0.1 * (1 + 4 * 4) / 5)
    shared.n -= 1
    assert one.gain(prices) == pytest.approx(0.5 - 0.1), "seven proposals of others say nothing"
    assert DrafterRecord("it", Off(), Calibration()).gain(prices) == 0.0
