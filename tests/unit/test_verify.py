"""Walking a drafted tree gives what decoding without a draft gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.cache.rows import Rows
from edgedec.decoding.verify import FAMILY, verifier, walk
from edgedec.decoding.verify._by_path import verify_path
from edgedec.decoding.verify._drawn import chances, children_of, drawn_of
from edgedec.decoding.verify.multipath import _greedy, _leaves
from edgedec.decoding.verify.spectr import _rho
from edgedec.drafters._models.options import bushy_places
from edgedec.drafters._models.reader import shape
from edgedec.sampling import Probs, draw
from edgedec.testing.stats import chi_square

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


def _path(rows: Rows, row: int, root: int = 0) -> list[int]:
    """The drafted tokens from the root to `row`."""
    path: list[int] = []
    while row > root:
        path.insert(0, int(rows.tokens[row]))
        row = int(rows.parents[row])
    return path


# ---- drafts that were drawn -----------------------------------------------------------------------


class Script:
    """Random numbers as told."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = list(numbers)

    def random(self) -> float:
        return self._numbers.pop(0)


def law(*p: float) -> Probs:
    p_ = np.array(p)
    return Probs(np.flatnonzero(p_), p_[p_ > 0])


def verified(name: str, rows: Rows, p: Probs, q: Probs, *numbers: float) -> tuple[list[int], list[int]]:
    """With the same p and q at every node."""
    return verifier(name)(rows, lambda row, path: p, [q] * (len(rows) - 1), cast(Any, Script(*numbers)), 0)


def star(*tokens: int) -> Rows:
    return Rows.tree([9, *tokens], [-1, *[0] * len(tokens)], 0)


def test_the_example_of_token() -> None:
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.6, 0.2)
    assert verified("token", star(1), p, q, 0.499, 0.9) == ([0, 1], [1, 2])
    assert verified("token", star(1), p, q, 0.501, 0.9) == ([0], [0])
    assert verified("token", star(1, 0), p, q, 0.501, 0.9) == ([0], [0])


def test_the_example_of_recursive() -> None:
    p, q = law(0.4, 0.2, 0.4), law(0.2, 0.6, 0.2)
    assert verified("recursive", star(1, 2), p, q, 0.333, 0.0) == ([0, 1], [1, 0])
    assert verified("recursive", star(1, 2), p, q, 0.334, 0.999, 0.0) == ([0, 2], [2, 0])
    assert verified("recursive", star(1, 1), p, q, 0.334, 0.51) == ([0], [2])


def test_the_example_of_spectr() -> None:
    p, q = law(0.7, 0.3), law(0.3, 0.7)
    assert verified("spectr", star(1, 1), p, q, 2 / 7 - 1e-6, 0.0) == ([0, 1], [1, 0])
    assert verified("spectr", star(1, 1), p, q, 2 / 7 + 1e-6, 2 / 7 - 1e-6, 0.99) == ([0, 2], [1, 1])
    assert verified("spectr", star(1, 1), p, q, 2 / 7 + 1e-6, 2 / 7 + 1e-6, 0.99) == ([0], [0])
    assert verified("spectr", star(0, 1), p, q, 0.999, 0.5) == ([0, 1], [0, 0])
    assert verified("spectr", star(1), p, q, 3 / 7 - 1e-6, 0.5) == ([0, 1], [1, 0])
    assert verified("spectr", star(1), p, q, 3 / 7 + 1e-6, 0.5) == ([0], [0])


@pytest.mark.parametrize(("name", "mean"), [("block", 11 / 9), ("token", 10 / 9)])
def test_the_example_of_block(name: str, mean: float) -> None:
    """Over all four drafts, and a fine grid of random numbers for the two decisions."""
    p, q, grid = law(1 / 3, 2 / 3), law(2 / 3, 1 / 3), [(i + 0.5) / 24 for i in range(24)]
    found = 0.0
    for tokens in product((0, 1), repeat=2):
        rows = Rows.chain([9, *tokens], 0)
        for a, b in product(grid, grid):
            path, picked = verified(name, rows, p, q, a, b, 0.5)
            assert picked[:-1] == list(tokens[: len(path) - 1])
            assert name == "token" or tokens != (0, 1) or len(path) == 3
            found += (len(path) - 1) * q.of(tokens[0]) * q.of(tokens[1]) / len(grid) ** 2
    assert found == pytest.approx(mean)


def test_the_example_of_multipath() -> None:
    p, q = law(0.7, 0.3), law(0.3, 0.7)
    assert verified("multipath", star(1, 0), p, q, 0.999, 0.5) == ([0, 2], [0, 0])
    assert verified("multipath", star(1, 1), p, q, 0.3 / 0.49 - 1e-6, 0.9) == ([0, 1], [1, 1])
    assert verified("multipath", star(1, 1), p, q, 0.3 / 0.49 + 1e-6, 0.9) == ([0], [0])


def test_a_path_of_many_rows_is_followed_through_the_row_that_goes_on() -> None:
    """Two paths that share no row agree at first; only the second one has the token that is chosen then."""
    rows = Rows.tree([9, 0, 1, 0, 2], [-1, 0, 1, 0, 3], 0)
    laws = {(): law(1.0), (0,): law(0.0, 0.1, 0.9), (0, 2): law(1.0)}
    drafted = [law(1.0), law(0.0, 0.5, 0.5)] * 2
    found = verifier("multipath")(rows, lambda row, path: laws[tuple(path)], drafted, np.random.default_rng(0), 0)
    assert found == ([0, 3, 4], [0, 2, 0])


@st.composite
def distributions(draw: st.DrawFn, n: int = 4) -> Probs:
    weights = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n).filter(any))
    return law(*np.array(weights) / sum(weights))


@settings(max_examples=150, deadline=None)
@given(rows=trees(), data=st.data(), name=st.sampled_from(FAMILY.shipped), seed=st.integers(0, 99))
def test_what_is_accepted_is_a_path_and_what_is_picked_its_tokens(
    rows: Rows, data: st.DataObject, name: str, seed: int
) -> None:
    """Whatever is drafted, even what could not have been drawn so."""
    laws: dict[tuple[int, ...], Probs] = {}
    root = data.draw(st.integers(0, min(2, len(rows) - 1)))
    parents = [-1, *range(root), *[max(int(p), root) for p in rows.parents[root + 1 :]]]
    rows = Rows.tree(rows.tokens.tolist(), parents[: len(rows)], 0)

    def target(row: int, path: list[int]) -> Probs:
        assert path == _path(rows, row, root)
        return laws.setdefault(tuple(path), data.draw(distributions()))

    drafted = [data.draw(distributions()) for _ in range(len(rows) - root - 1)]
    found = [verifier(name)(rows, target, drafted, np.random.default_rng(seed), root) for _ in range(2)]
    assert found[0] == found[1]
    accepted, picked = found[0]
    assert accepted[0] == root
    assert all(rows.parents[b] == a for a, b in pairwise(accepted))
    assert picked[:-1] == [rows.tokens[row] for row in accepted[1:]]
    assert laws[tuple(picked[:-1])].of(picked[-1]) > 0
    assert {type(x) for x in (*accepted, *picked)} == {int}
    for i, token in enumerate(picked):
        assert laws[tuple(picked[:i])].of(token) > 0, "a token the target never says"


@pytest.mark.parametrize("name", FAMILY.shipped)
def test_a_draft_from_the_target_itself_is_accepted(name: str) -> None:
    rng = np.random.default_rng(3)
    for seed in range(200):
        p = Probs(np.arange(6), rng.dirichlet(np.ones(6)))
        tokens = [draw(p, rng) for _ in range(4)]
        accepted, picked = verifier(name)(
            Rows.chain([0, *tokens], 0), lambda row, path, p=p: p, [p] * 4, np.random.default_rng(seed), 0
        )
        assert (accepted, picked[:-1]) == ([0, 1, 2, 3, 4], tokens)


@pytest.mark.parametrize("name", FAMILY.shipped)
def test_nothing_is_accepted_that_the_target_never_says(name: str) -> None:
    p, q = law(0, 0, 0.4, 0.6), law(0.5, 0.5)
    rows = Rows.tree([0, 0, 1, 1, 0], [-1, 0, 0, 1, 1], 0)
    counts = np.zeros(4)
    for seed in range(300):
        accepted, picked = verifier(name)(rows, lambda row, path: p, [q] * 4, np.random.default_rng(seed), 0)
        assert accepted == [0]
        counts[picked] += 1
    statistic, critical = chi_square(counts, [0, 0, 0.4, 0.6])
    assert statistic < critical


@pytest.mark.parametrize("name", FAMILY.shipped)
def test_without_a_draft_one_token_is_drawn(name: str) -> None:
    p, asked = law(0.25, 0.75), list[tuple[int, list[int]]]()

    def target(row: int, path: list[int]) -> Probs:
        asked.append((row, path))
        return p

    rows = Rows.chain([1, 2, 3], 0)
    assert verifier(name)(rows, target, [], cast(Any, Script(0.3)), 2) == ([2], [1])
    assert asked == [(2, [])]


@pytest.mark.parametrize("name", FAMILY.shipped)
def test_a_token_outside_of_what_it_was_drawn_from_is_not_accepted(name: str) -> None:
    p, q = law(0.5, 0.5), law(1.0, 0.0)
    assert verified(name, Rows.chain([9, 1, 1], 0), p, q, 0.7) == ([0], [1])


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_spectr_never_accepts_more_than_there_is(k: int) -> None:
    """rho is the least for which the residual is nowhere negative."""
    rng = np.random.default_rng(k)
    for _ in range(100):
        p, q = (Probs(np.arange(7), rng.dirichlet(np.full(7, 0.5))) for _ in range(2))
        rho, beta = _rho(p, q, k)
        assert 1 <= rho <= k
        assert beta == pytest.approx(np.minimum(q.p, p.p / rho).sum())
        often = (1 - (1 - beta) ** k) / beta
        assert (np.minimum(q.p, p.p / rho) * often <= p.p + 1e-12).all()
        assert often == pytest.approx(rho, abs=1e-6)


# ---- their parts ----------------------------------------------------------------------------------


def path_of(*numbers: float, second: int = 1) -> tuple[int, int]:
    """Two drafted tokens: the weight after the first is 2/3, the gap below it 4/15."""
    targets = [law(0.5, 0.5), law(0.5, 0.3, 0.2), law(0.0, 0.0, 0.0, 1.0)]
    drawn = [(1, law(0.25, 0.75)), (second, law(0.1, 0.8, 0.1))]
    script = Script(*numbers)
    found = verify_path(targets, drawn, cast(Any, script))
    assert not script._numbers
    return found


def test_a_path_s_tokens_stand_by_weight_and_gap() -> None:
    stands = (4 / 15) / (4 / 15 + 1 / 3)
    weight = 2 / 3 * 0.3 / 0.8
    assert path_of(0.99, weight - 1e-9, 0.5) == (2, 3), "the longest counts"
    assert path_of(stands + 1e-9, weight + 1e-9, 0.5) == (0, 0)
    # The residual after the first has the first's weight: 7/30 0 1/30.
    assert path_of(stands - 1e-9, weight + 1e-9, 0.874) == (1, 0)
    assert path_of(stands - 1e-9, weight + 1e-9, 0.876) == (1, 2)
    assert path_of(0.99, 0.999, 0.5, second=0) == (2, 3), "a likely token makes up for an unlikely one"


def test_a_path_ends_at_a_token_that_cannot_be() -> None:
    targets, drawn = [law(1.0), law(1.0), law(1.0)], [(0, law(0.5, 0.5)), (1, law(0.5, 0.5))]
    assert verify_path(targets, drawn, cast(Any, Script(0.5, 0.0))) == (1, 0)
    assert verify_path(targets, [(0, law(0.0, 1.0))], cast(Any, Script(0.0))) == (0, 0)
    assert verify_path(targets, [], cast(Any, Script(0.0))) == (0, 0)


def test_drawn_tokens_are_found_by_their_parents() -> None:
    rows = Rows.tree([5, 6, 1, 2, 1, 3], [-1, 0, 1, 1, 2, 2], 0)
    assert children_of(rows, 1) == {1: [2, 3], 2: [4, 5]}
    laws = [law(0.0, 0.5, 0.5), law(0.0, 0.5, 0.5), law(0.0, 1.0), law(0.0, 1.0)]
    assert drawn_of(rows, [2, 3], laws, 1) == [(2, 1, laws[0]), (3, 2, laws[0])]
    assert drawn_of(rows, [4, 5], laws, 1) == [(4, 1, laws[2])], "a 3 was not drawn from it"
    assert drawn_of(rows, [], laws, 1) == []
    q = Probs(np.array([2, 5]), np.array([0.25, 0.75]))
    assert chances(q, np.array([0, 2, 3, 5, 9])).tolist() == [0.0, 0.25, 0.0, 0.75, 0.0]


def test_the_chosen_of_many_paths() -> None:
    p, q = law(0.7, 0.3), law(0.3, 0.7)
    for tokens, chosen in (([1, 0], 0), ([1, 1], 1)):
        token, chosen_from = _greedy(p, q, tokens, 2)
        assert token == chosen
        assert (chosen_from.ids.tolist(), chosen_from.p) == ([0, 1], pytest.approx([0.51, 0.49]))
    token, chosen_from = _greedy(law(0.0, 0.5, 0.5), law(0.0, 0.5, 0.5), [1, 2], 3)
    assert token == 2, "of equals the largest"
    assert (chosen_from.ids.tolist(), chosen_from.p) == ([1, 2], pytest.approx([1 / 8, 7 / 8]))
    rows = Rows.tree([9, 8, 0, 1, 1, 2, 3], [-1, 0, 1, 1, 2, 2, 4], 0)
    assert _leaves(rows, 1)[1:] == [3, 2, 1, 1, 1, 1]


def test_an_alike_draft_of_spectr_is_always_accepted() -> None:
    """And where nothing of q is possible, nothing is."""
    p = law(0.25, 0.75)
    assert _rho(p, p, 3) == (pytest.approx(1.0), pytest.approx(1.0))
    assert _rho(p, p, 1) == (1.0, 1.0)
    assert _rho(law(1.0), law(0.0, 1.0), 2) == (pytest.approx(1.0), 0.0)
    assert verified("spectr", star(1, 1), law(1.0), law(0.0, 1.0), 0.0, 0.0, 0.5) == ([0], [0])
    some = Probs(np.arange(3), np.array([0.2, 0.2, 0.6]))
    rho, beta = _rho(some, law(0.6, 0.2, 0.2), 2)
    assert 1 - (1 - beta) ** 2 == pytest.approx(rho * beta)
    assert beta == pytest.approx(0.2 / rho + 0.2 / rho + 0.2)


@pytest.mark.parametrize(
    ("verifier", "children"),
    [("recursive", [3, 3, 1, 1, 1]), ("spectr", [3, 3, 1, 1, 1]), ("multipath", [3, 1, 1, 1, 1]), ("block", [1] * 5)],
)
def test_a_draft_has_several_children_where_its_verifier_gains_by_them(verifier: str, children: list[int]) -> None:
    """At the first places; deeper ones are seldom reached."""
    assert shape(5, 3, bushy_places(verifier), 100) == children
