"""Walking a drafted tree gives what decoding without a draft gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.rows import Rows
from edgedec.testing.stats import chi_square
from edgedec.verify import walk

VOCAB = 5


@st.composite
def trees(draw: st.DrawFn) -> Rows:
    """A root, up to 12 drafted rows anywhere below it, tokens from a vocabulary of three."""
    n = draw(st.integers(0, 12))
    parents = [-1] + [draw(st.integers(0, i)) for i in range(n)]
    tokens = draw(st.lists(st.integers(0, 2), min_size=n + 1, max_size=n + 1))
    return Rows.tree(tokens, parents, start=draw(st.integers(0, 3)))


def test_the_worked_example() -> None:
    rows = Rows.tree([7, 8, 5, 9], parents=[-1, 0, 1, 0], start=3)
    says = {(): 8, (8,): 4}
    assert walk(rows, lambda row, path: says[tuple(path)]) == ([0, 1], [8, 4])


@settings(max_examples=300, deadline=None)
@given(rows=trees(), salt=st.integers(0, 1 << 30))
def test_greedy_walk_is_sequential_decoding(rows: Rows, salt: int) -> None:
    """Whatever function of the path the target is: the walk follows it through the tree, and one further."""

    def target(path: Sequence[int]) -> int:
        return hash((salt, *path)) % 3

    def pick(row: int, path: list[int]) -> int:
        assert path == _path(rows, row)
        return target(path)

    accepted, picked = walk(rows, pick)
    sequential: list[int] = []
    for _ in picked:
        sequential.append(target(sequential))
    assert picked == sequential
    assert accepted[0] == 0
    assert [rows.tokens[r] for r in accepted[1:]] == picked[:-1]
    assert all(rows.parents[b] == a for a, b in pairwise(accepted))
    assert picked[-1] not in rows.tokens[rows.children(accepted[-1])]


def test_of_equal_children_the_first_wins_and_prompt_rows_are_skipped() -> None:
    rows = Rows.tree([1, 2, 6, 6, 4], parents=[-1, 0, 1, 1, 3], start=0)
    assert walk(rows, lambda row, path: [6, 4, 0][len(path)], root=1) == ([1, 2], [6, 4])


def test_no_draft_is_plain_decoding() -> None:
    assert walk(Rows.chain([3], start=9), lambda row, path: 4) == ([0], [4])


Walk = Callable[[Rows, Callable[[int, list[int]], int]], tuple[list[int], list[int]]]


def test_sampled_walk_keeps_the_distribution() -> None:
    statistic, critical = chi_square(*_two_tokens(walk))
    assert statistic < critical


def _trusting(rows: Rows, pick: Callable[[int, list[int]], int]) -> tuple[list[int], list[int]]:
    """Wrong: draws twice, and takes the draw that the draft foresaw."""
    accepted, picked = [0], []
    while True:
        draws = [pick(accepted[-1], list(picked)) for _ in range(2)]
        children = {int(rows.tokens[c]): int(c) for c in rows.children(accepted[-1])}
        token = next((t for t in draws if t in children), draws[0])
        picked.append(token)
        if token not in children:
            return accepted, picked
        accepted.append(children[token])


def _skipping(rows: Rows, pick: Callable[[int, list[int]], int]) -> tuple[list[int], list[int]]:
    """Wrong: forgets the path, so the second token is drawn as if it were the first."""
    return walk(rows, lambda row, path: pick(row, []))


@pytest.mark.parametrize("wrong", [_trusting, _skipping])
def test_the_statistics_catch_a_walk_that_is_lossy(wrong: Walk) -> None:
    statistic, critical = chi_square(*_two_tokens(wrong))
    assert statistic > critical


def _two_tokens(walk: Walk, draws: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Tally of the first two tokens decoded under random drafts that favour low ids -> (counts, p) [25]."""
    rng = np.random.default_rng(7)
    first = rng.dirichlet(np.ones(VOCAB))
    second = rng.dirichlet(np.ones(VOCAB), size=VOCAB)

    def pick(path: Sequence[int]) -> int:
        p = first if not path else second[path[0]]
        return int(np.searchsorted(np.cumsum(p)[:-1], rng.random(), side="right"))

    counts = np.zeros((VOCAB, VOCAB))
    for _ in range(draws):
        out: list[int] = []
        while len(out) < 2:
            n = int(rng.integers(0, 5))
            parents = [-1] + [int(rng.integers(0, i + 1)) for i in range(n)]
            tokens = [0, *rng.choice(VOCAB, n, p=[0.4, 0.3, 0.1, 0.1, 0.1]).tolist()]
            known = tuple(out)
            out += walk(Rows.tree(tokens, parents, 0), lambda row, path, known=known: pick([*known, *path]))[1]
        counts[out[0], out[1]] += 1
    return counts.ravel(), (first[:, None] * second).ravel()


def _path(rows: Rows, row: int) -> list[int]:
    """The drafted tokens from the root to `row`."""
    path: list[int] = []
    while row > 0:
        path.insert(0, int(rows.tokens[row]))
        row = int(rows.parents[row])
    return path
