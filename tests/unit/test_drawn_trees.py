"""Trees drawn from a table's distributions, beside a naive drawing of the same noise: q is what sampling makes of the
table's probabilities, children stand in the order of log q + Gumbel noise, and the likeliest open place comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.decoding.messages import StepResult
from edgedec.drafters import Draft
from edgedec.drafters._tables.claims import RankRecord, together
from edgedec.drafters._tables.drawn import DrawnTree, History, deeper
from edgedec.runtime import CallResult, Rows
from edgedec.sampling import Probs, Sampling, distribution
from edgedec.trees.choices import Ranks

VOCAB, K = 6, 4
Table = dict[History, tuple[list[int], list[float]]]


def known_in(table: Table) -> Any:
    """The longest end of a history that a table has."""

    def known(history: History) -> tuple[int, list[int], list[float]]:
        for n in range(min(len(history), 3), 0, -1):
            if (found := table.get(history[-n:])) is not None:
                return n, *found
        return 0, [], []

    return known


@dataclass
class Place:
    """A node of the naive tree with children: their order, claims and q."""

    node: int
    worth: float
    history: History
    depth: int
    order: list[int]
    claims: list[float]
    q: Probs
    taken: int = 0


@dataclass
class Naive:
    """One place after another: of all open places the one whose path is likeliest, the earliest among equals."""

    table: Table
    record: RankRecord
    sampling: Sampling
    noise: np.ndarray[Any, Any]
    nodes: int
    places: list[Place] = field(default_factory=list)

    def open(self, node: int, worth: float, history: History, depth: int) -> None:
        order, ids, p = known_in(self.table)(history)
        if not any(p):
            return
        scores = np.full(VOCAB, -np.inf, np.float32)
        scores[[i for i, x in zip(ids, p, strict=True) if x > 0]] = [log(x) for x in p if x > 0]
        q = distribution(scores, self.sampling)
        drawn = {t: log(q.of(t)) + self.noise[len(self.places)][ids.index(t)] for t in q.ids.tolist()}
        sure, cell = 0.4 + 0.5 * max(q.p), ((4 + min(depth, 3)) * 3 + order - 1) * K
        claims = [sure * (1 - sure) ** rank * self.record.scale[cell + rank] for rank in range(len(drawn))]
        claims = [min(claim, 0.97) for claim in claims]
        claims = [claim / max(sum(claims), 1) for claim in claims]
        self.places.append(
            Place(node, worth, history, depth, sorted(drawn, key=drawn.__getitem__, reverse=True), claims, q)
        )

    def draft(self, history: History, least: float) -> list[tuple[int, int, float, Probs]]:
        found: list[tuple[int, int, float, Probs]] = []
        self.open(-1, 1.0, history, 0)
        while len(found) < self.nodes:
            ready = [place for place in self.places if place.taken < len(place.order)]
            place = max(ready, key=lambda at: at.worth * at.claims[at.taken], default=None)
            if place is None or place.worth * place.claims[place.taken] < least:
                break
            token, claim = place.order[place.taken], place.claims[place.taken]
            place.taken += 1
            found.append((token, place.node, claim, place.q))
            after = (*place.history, token)[-3:]
            self.open(len(found) - 1, place.worth * claim, after, place.depth + 1)
        return found


def tables(rng: np.random.Generator) -> Table:
    """Followers of all tokens, of some pairs and triples; some have fewer than K, of some none is known."""
    found: Table = {}
    keys = [tuple(rng.integers(0, VOCAB, n).tolist()) for n in (1, 1, 1, 1, 1, 2, 2, 2, 3, 3)]
    for key in [*keys, (0, 1, 2)]:
        p = -np.sort(-rng.dirichlet(np.full(K, 0.7))).astype(float)
        ids = rng.permutation(VOCAB)[:K].tolist()
        if few := int(rng.integers(0, 3)) if key != (0, 1, 2) else 0:
            ids[-few:], p[-few:] = [-1] * few, 0.0
        found[key] = ids, p.tolist()
    return found


def records(rng: np.random.Generator) -> RankRecord:
    record = RankRecord(K)
    for at in range(len(record.claimed)):
        record.note(at, float(rng.uniform(0, 9)), bool(rng.integers(0, 2)))
    return record


SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.5),
    Sampling(temperature=1.7, top_k=2),
    Sampling(temperature=0.8, top_p=0.7),
    Sampling(temperature=1.2, min_p=0.3),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_drawn_trees_are_those_of_a_naive_drawing(sampling: Sampling) -> None:
    deep = wide = stopped = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        table, record, nodes, least = tables(rng), records(rng), int(rng.integers(1, 9)), float(rng.choice([0, 0.05]))
        noise = np.random.default_rng(seed).gumbel(size=(nodes + 1, K))
        tree = DrawnTree(known_in(table), record, sampling, np.random.default_rng(seed), nodes)
        draft = tree.draft((0, 1, 2), least)
        expected = Naive(table, record, sampling, noise, nodes).draft((0, 1, 2), least)
        assert list(zip(draft.tokens, draft.parents, strict=True)) == [(t, parent) for t, parent, _, _ in expected]
        assert draft.p == pytest.approx([claim for _, _, claim, _ in expected])
        assert draft.sampled is not None
        assert draft.sampled.verifier == "recursive"
        for q, (_, _, _, right) in zip(draft.sampled.probs, expected, strict=True):
            assert q.ids.tolist() == right.ids.tolist()
            assert q.p == pytest.approx(right.p, rel=1e-5)
        deep += any(parent >= 1 for parent in draft.parents)
        wide += len({*draft.parents}) < len(draft.parents)
        stopped += len(draft.tokens) < nodes
    assert min(deep, wide) > 3
    assert stopped > 1


def test_a_fixed_tree_has_the_drawn_token_of_each_rank() -> None:
    """Rank 1 of the root, then the best after it: the second and the first of their own drawings."""
    rng = np.random.default_rng(3)
    table = {(2,): ([4, 1, 0, 5], [0.4, 0.3, 0.2, 0.1])} | {
        (t,): ([t, 3, 2, 0] if t > 3 else [5, 4, 3, 1], [0.4, 0.3, 0.2, 0.1]) for t in (0, 1, 3, 4, 5)
    }
    choices: list[Ranks] = [(0,), (1,), (1, 0), (1, 0, 0), (0, 2)]
    tree = DrawnTree(known_in(table), RankRecord(K), Sampling(temperature=1.0), rng, len(choices))
    draft = tree.chosen((2,), choices)
    noise, orders, history, opened = np.random.default_rng(3).gumbel(size=(6, K)), dict[Ranks, list[int]](), {(): 2}, 0
    for path in choices:
        ids, p = table[(history[path[:-1]],)]
        if path[:-1] not in orders:
            orders[path[:-1]] = [ids[i] for i in np.argsort(-(np.log(p) + noise[opened]))]
            opened += 1
        history[path] = orders[path[:-1]][path[-1]]
    assert draft.tokens == [history[path] for path in choices]
    assert draft.parents == [-1, -1, 1, 2, 0]
    assert opened == 4


def test_claims_follow_the_surest_of_q_and_its_record() -> None:
    """q 3/4, 1/4: sure at 0.4 + 0.5 * 0.75 = 0.775, then 0.775 * 0.225; in the cell of drawn children, depth 0, order 1
    after 4 claims none of which came true, rank 0 counts 8 / (4 + 8) of that."""
    record = RankRecord(K)
    cell = record.cell(True, 0, 1)
    for _ in range(4):
        record.note(cell, 1.0, False)
    table: Table = {(2,): ([5, 1, -1, -1], [0.6, 0.2, 0.0, 0.0])}
    tree = DrawnTree(known_in(table), record, Sampling(temperature=1.0), np.random.default_rng(0), 2)
    draft = tree.draft((2,), 0.0)
    assert draft.p == pytest.approx([0.775 * 8 / 12, 0.775 * 0.225])
    assert draft.parents == [-1, -1]
    assert draft.sampled is not None
    assert draft.sampled.probs[0].ids.tolist() == [1, 5]
    assert draft.sampled.probs[0].p == pytest.approx([0.25, 0.75])


def test_what_is_hardly_ever_drawn_is_left_out() -> None:
    """Tokens a billion times less likely than the best, at the temperature at hand, and those of no chance."""
    for ratio, kept in ((1.6e-9, 2), (0.4e-9, 1), (0.0, 1)):
        table: Table = {(2,): ([5, 1, -1, -1], [0.8, 0.8 * ratio**0.5, 0.0, 0.0])}
        tree = DrawnTree(known_in(table), RankRecord(K), Sampling(temperature=0.5), np.random.default_rng(0), 4)
        draft = tree.draft((2,), 0.0)
        assert draft.sampled is not None
        assert sorted(draft.tokens) == sorted([5, 1][:kept])
        assert draft.sampled.probs[0].ids.tolist() == sorted([5, 1][:kept])
    tree = DrawnTree(known_in({(2,): ([3], [0.0])}), RankRecord(K), Sampling(1.0), np.random.default_rng(0), 4)
    assert tree.draft((2,), 0.0).tokens == []


def scored(draft: Draft, tree: DrawnTree, kept: int, path: list[int], picked: list[int]) -> None:
    """The call of the first `kept` nodes of a draft, of which a path was accepted, after one pending token."""
    tokens = [9, 7, *draft.tokens[:kept]]
    parents = [-1, 0, *(parent + 2 for parent in draft.parents[:kept])]
    tree.score(StepResult(Rows.tree(tokens, parents, 5), 1, path, picked, CallResult(), 0.0))


def test_the_children_that_were_tried_are_scored() -> None:
    """Four of six nodes were in the call, of which a path of two was accepted: the claims of the root's children by
    rank, those of the first accepted node, and of the nodes below it that were not in the call nothing."""
    table: Table = {(t,): ([1, 2, 3, 4], [0.4, 0.3, 0.2, 0.1]) for t in range(VOCAB)}
    choices: list[Ranks] = [(0,), (1,), (1, 0), (1, 1), (1, 2), (1, 1, 0)]
    record, sampling = RankRecord(K), Sampling(temperature=1.0)
    tree = DrawnTree(known_in(table), record, sampling, np.random.default_rng(1), len(choices))
    draft = tree.chosen((2,), choices)
    root, below = draft.tokens[:2], draft.tokens[2:5]
    assert len({*root}) == 2
    assert len({*below}) == 3
    scored(draft, tree, 4, [0, 2, 4], [root[1], below[1], 0])
    sure = 0.4 + 0.5 * 0.4
    guesses = [sure * 0.4**rank for rank in range(K)]
    claimed, came = np.zeros((2, 2, 4, 3, K))
    claimed[1, 0, 0, :2] = claimed[1, 1, 0, :2] = guesses[:2]
    came[1, 0, 0, 1] = came[1, 1, 0, 1] = 1
    assert np.reshape(record.claimed, record.shape) == pytest.approx(claimed)
    assert np.reshape(record.came, record.shape) == pytest.approx(came)


def test_nothing_below_a_token_that_was_not_drawn_is_scored() -> None:
    table: Table = {(t,): ([1, 2, 3, 4], [0.4, 0.3, 0.2, 0.1]) for t in range(VOCAB)}
    record = RankRecord(K)
    tree = DrawnTree(known_in(table), record, Sampling(temperature=1.0), np.random.default_rng(1), 2)
    draft = tree.chosen((2,), [(0,), (0, 0)])
    scored(draft, tree, 2, [0, 1], [5, 0])
    assert sum(record.came) == 0
    assert np.count_nonzero(record.claimed) == 1


# ---- records of claims -----------------------------------------------------------------------------------


def test_experience_scales_claims_cell_by_cell() -> None:
    """(came + 8) / (claimed + 8); at more than 1,024 claims half of both are forgotten."""
    record = RankRecord(2)
    assert record.shape == (2, 4, 3, 2)
    cells = [record.cell(drawn, depth, order) for drawn in (False, True) for depth in range(4) for order in (1, 2, 3)]
    assert cells == list(range(0, 48, 2))
    assert record.cell(True, 9, 2) == record.cell(True, 3, 2)
    record.note(3, 0.5, True)
    record.note(3, 0.7, False)
    assert (record.claimed[3], record.came[3]) == pytest.approx((1.2, 1))
    assert record.scale[3] == pytest.approx(9 / 9.2)
    assert record.scale.count(1.0) == 47
    record.note(5, 1000.0, True)
    record.note(5, 24.0, True)
    assert (record.claimed[5], record.came[5]) == (1024, 2)
    record.note(5, 2.0, True)
    assert (record.claimed[5], record.came[5]) == (513, 1.5)
    assert record.scale[5] == pytest.approx(9.5 / 521)
    other = RankRecord(2)
    other.take_up(record.claimed, record.came)
    assert other.scale == pytest.approx(record.scale)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=5))
def test_claims_of_siblings_are_at_most_certain_together(claims: Sequence[float]) -> None:
    found = together(list(claims))
    capped = [min(claim, 0.97) for claim in claims]
    assert found == pytest.approx([claim / max(1.0, sum(capped)) for claim in capped])


def test_a_place_deeper_keeps_the_last_three_tokens() -> None:
    assert deeper((2, (4, 5, 6)), 7) == (3, (5, 6, 7))
    assert deeper((0, ()), 7) == (1, (7,))
