"""From the proposals of several drafters to the draft that runs: who is asked, what is offered, what runs beside drawn
tokens, and what each drafter is credited with. All values are worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guesses import TREE, context, member, merged

from edgedec.decoding.constraint import ConstraintHooks
from edgedec.decoding.draft import Draft, Sampled
from edgedec.decoding.host_time import BetweenCalls
from edgedec.decoding.messages import StepResult
from edgedec.runtime import CallResult, Rows
from edgedec.sampling import Probs, Sampling
from edgedec.speculation.bank import NAMED, Bank
from edgedec.speculation.costs import Costs
from edgedec.speculation.decide import allowed, beyond, expected_of, offer_of, probing, watched, with_guesses
from edgedec.speculation.prices import SURE, Prices, chain_length
from edgedec.speculation.proposals import Proposals, drawn_limit, judge
from edgedec.speculation.record import DrafterRecord


def test_a_constraint_gets_the_nodes_by_chance_with_their_parents() -> None:
    found, text, seen = Proposals(merged(TREE)), context(), list[Any]()
    order = found.order(trees=True)
    assert order == [2, 0, 1]

    def permits(tokens: Sequence[int], parents: Sequence[int], seconds: float) -> Sequence[bool] | None:
        seen.append((list(tokens), list(parents), seconds))
        return None if len(seen) > 1 else [True, False, False]

    assert allowed(text, found, order, 0.5) == order, "there is no constraint"
    text.hooks = ConstraintHooks(allowed=permits)
    assert allowed(text, found, order, 0.5) == [2]
    assert seen == [([9, 7, 8], [-1, -1, 1], 1.5)]
    assert allowed(text, found, order, 0.5) == order, "it cannot tell in time"
    found.drawn = Draft.chain([4])
    assert allowed(text, found, order, 0.5) == order
    assert len(seen) == 2, "drawn tokens run unchanged"


def test_an_offer_has_pending_rows_drawn_tokens_and_trusted_chances() -> None:
    costs, between = Costs({1: 1.0, 8: 2.0}), BetweenCalls()
    between.plain, between.draft = 0.25, 0.5
    found = Proposals(merged(TREE))
    offer = offer_of(found, context(), [2, 0], costs, 0.5, between)
    assert (offer.rows, offer.reading, offer.context, offer.tokens) == (3, 2, 2, 1.0)
    assert (offer.chances, offer.between, offer.extra) == ([0.375, 0.25], 0.25, 0.5)
    found.drawn, found.drawn_by = Draft.chain([4, 4]), member()
    found.drawn_by.drawn_rate = 0.5
    offer = offer_of(found, context(), [2, 0], costs, 0.5, between)
    assert (offer.rows, offer.reading) == (5, 2)
    assert offer.tokens == 1 + 0.5 + 0.25
    assert offer.extra == 0.0, "the drawn draft runs anyway"


def test_a_measuring_draft_is_filled_up() -> None:
    text, some = context(), Draft([5, 6], [-1, 0], [0.5, 0.25], by=["a", "b"])
    vocab = text.cache.spec.vocab_size
    tree, chain = probing(some, 4, text, trees=True), probing(some, 4, text, trees=False)
    assert tree.tokens == chain.tokens == [5, 6, 3 % vocab, 10 % vocab]
    assert (tree.parents, chain.parents) == ([-1, 0, -1, -1], [-1, 0, 1, 2])
    assert (tree.p, tree.by) == ([0.5, 0.25, 0.0, 0.0], ["a", "b", "", ""])
    assert list(probing(Draft(), 2, text, trees=False).parents) == [-1, 0]
    assert list(probing(Draft(), 2, text, trees=True).parents) == [-1, -1]


def test_prices_by_the_number_of_nodes() -> None:
    found = watched(Prices(1.0, 9.0, [0.0, 0.1, 0.3, 0.9], 0.05, 1, 0.0), 2, 0.7)
    assert found.seconds == pytest.approx([0.0, 1.0, 1.15, 1.35])
    assert found.trust == 0.7


def test_what_guesses_bring_at_the_ends_of_prices() -> None:
    free = Prices(2.0, 2.0, [0.0, 0.0], 0.0, 1, 0.0)
    assert expected_of(free, [0.5], 1.0) == pytest.approx(500), "a row costs a thousandth of a token at least"
    dear = Prices(1.0, 1.0, [0.0, 2.0], 0.0, 1, 0.0)
    assert expected_of(dear, [0.7], 1.0) == pytest.approx(0.35)
    with_draft = Prices(1.0, 1.0, [0.0, 0.5], 0.2, 1, 0.0)
    assert expected_of(with_draft, [0.7], 1.0) == pytest.approx(1.0)
    assert expected_of(Prices(1.0, 1.0, [0.0], 0.0, 1, 0.0), [0.7], 1.0) is None, "no cost of a row is known"


def test_guesses_beside_drawn_tokens() -> None:
    """Drawn 4, 5. Guessed: the same, 6 below the 4, and 9 with 4 below it, which is not the drawn 4."""
    drawn = Draft([4, 5], [-1, 0], [0.9, 0.8])
    merger = merged(Draft([4, 5, 6, 9, 4], [-1, 0, 0, -1, 3], [0.75, 0.5, 0.25, 0.5, 0.5]))
    order = merger.best_first()
    assert order == [0, 3, 1, 4, 2]
    assert beyond(drawn, merger, order) == [3, 4, 2]
    found = with_guesses(drawn, merger, [4, 2, 3], ["a"], "d")
    assert list(found.tokens) == [4, 5, 6, 9, 4]
    assert list(found.parents) == [-1, 0, 0, -1, 3]
    assert list(found.p) == [0.9, 0.8, 0.1875, 0.5, 0.25]
    assert (list(found.by), found.why) == (["d", "d", "a", "a", "a"], "2 drawn, 3 guesses")


def test_of_two_drawn_drafts_the_first_is_drawn() -> None:
    """The second one is guesses; a tree of drawn tokens is left out where there are only chains."""

    def of(tokens: Sequence[int], parents: Sequence[int]) -> Draft:
        law = Probs(np.array([int(tokens[0])]), np.ones(1))
        return Draft(tokens, parents, [0.5] * len(tokens), sampled=Sampled("token", [law] * len(tokens)))

    chain, second, forked, plain = of([4, 5], [-1, 0]), of([6], [-1]), of([7, 8], [-1, -1]), Draft([9], [-1], [0.5])

    def collected(temperature: float, trees: bool) -> tuple[Proposals, list[DrafterRecord]]:
        members, found, text = [member(d) for d in (forked, chain, second, plain, plain)], Proposals(), context()
        text.sampling = Sampling(temperature=temperature)
        room = {id(one): n for one, n in zip(members, (9, 8, 7, 6, 0), strict=True)}
        list(found.collect(list(enumerate(members)), lambda one: room[id(one)], text, 0.0, trees))
        assert [one.drafter.nodes for one in members] == [[9], [8], [7], [6], []]  # type: ignore[attr-defined]
        assert found.asked == [0, 1, 2, 3]
        return found, members

    found, members = collected(1.0, trees=False)
    assert (found.drawn, found.drawn_by, found.drawn_rows) == (chain, members[1], 2)
    assert found.merger.tokens == [6, 9]
    assert [one.draws for one in members] == [True, True, True, False, False]
    found, members = collected(1.0, trees=True)
    assert (found.drawn, found.merger.tokens) == (forked, [4, 5, 6, 9])
    found, members = collected(0.0, trees=True)
    assert found.drawn is None, "greedy: all are guesses"
    assert not any(one.draws for one in members)


def test_a_draft_whose_first_blocks_have_run_saves_its_share_of_their_call() -> None:
    found = Proposals(seconds=[0.0, 1.0, 2.0, 4.0, 9.0])
    begun = Draft.chain([4, 5, 6, 7, 8])
    assert found.prepaid(begun, 2) == 0.0
    begun = replace(begun, hidden=np.zeros((6, 4), np.float32), done=0.25)
    assert found.prepaid(begun, 2) == 0.25 * 4.0, "the pending token has a row too"
    assert found.prepaid(begun, 5) == 0.25 * 9.0, "no longer call is known"
    assert Proposals(seconds=[0.0]).prepaid(begun, 2) == 0.0, "no call is known"


def test_rows_besides_guesses_are_drawn_tokens_and_prompt_rows() -> None:
    assert Proposals(drawn=Draft.chain([4, 5]), prompts=3).own_rows == 5
    assert Proposals(prompts=3).own_rows == 3
    assert Proposals().own_rows == 0


def test_what_guesses_promise_is_of_those_that_are_worth_their_rows() -> None:
    found = Proposals(merged(TREE))
    assert found.promised(Prices(2.0, 2.0, [0.0, 0.8], 0.0, 1, 0.0)) == 0.5 + 0.75
    assert found.promised(Prices(1.0, 1.0, [0.0], 0.0, 1, 0.0)) == 0.25 + 0.5 + 0.75, "nothing is known of rows"


def test_each_drafter_is_credited_with_its_guesses_drawn_tokens_and_prompt_rows() -> None:
    """Guesses 7 of both drafters, and below it 8 of the first; the text goes on with 7 and 3. The second one drew two
    tokens, rows 1 and 2, of which one was accepted; below the draft are three prompt rows of the first."""
    members = [member(name="a"), member(name="b")]
    merger = merged(Draft([7, 8], [-1, 0], [0.5, 0.5]), Draft([7], [-1], [0.25]))
    found = Proposals(merger, Draft.chain([4, 4]), members[1], prompts=3, prompting=0)
    step, bank = StepResult(Rows.chain([1], 0), 0, [0, 2, 3], [7, 3], CallResult(), 0.1), Bank(NAMED)
    tokens, rows = judge(found, [0, 1], step, members, bank)
    assert tokens == [0.75, 1], "a node counts for the first of its drafters"
    assert rows == [2 + 3, 2]
    assert (members[0].proposed, members[0].accepted) == (2, 1)
    assert (members[1].proposed, members[1].accepted) == (1 + 2, 1 + 1)
    assert (bank.expected, bank.accepted) == (0.75, 1)
    assert members[1].drawn_rate == pytest.approx(SURE + (1 / 2 - SURE) * 0.05), "one right, then one wrong"
    whole = StepResult(Rows.chain([1], 0), 0, [0, 1, 2, 3], [7, 8], CallResult(), 0.1)
    tokens, _ = judge(found, [0, 1], whole, members, bank)
    assert tokens == [0.75, 2]


def test_fewer_tokens_are_drawn_where_few_are_accepted() -> None:
    """As many as pay at the rate; at every 64th draft more, as the rate may have risen."""
    costs, text = Costs({1: 1.0, 8: 1.7, 64: 9.0}), context()
    one = member()
    text.sampling = Sampling(temperature=1.0)
    assert drawn_limit(one, costs, 1, text, 9) == 9, "nothing is known of drawn tokens"
    one.draws, one.drawn_rate = True, 0.4
    few = chain_length(0.4, costs, 1)
    assert 0 < few < 9
    assert [drawn_limit(one, costs, 1, text, 9) for _ in range(64)] == [few] * 63 + [9]
    assert drawn_limit(one, costs, 1, text, 1) == 1
    text.sampling = Sampling()
    assert drawn_limit(one, costs, 1, text, 9) == 9
    for _ in range(400):
        one.add_drawn(4, 4)
    assert one.drawn_rate == pytest.approx(0.97), "they are never sure"
