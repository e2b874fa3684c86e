"""Fixed draft trees: paths of ranks, counted, chosen, read and drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import decode

import edgedec
from edgedec import Sampling, UsageError
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.drafters import Draft
from edgedec.drafters.stand import Stand
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.trees.choices import Ranks, accepted_ranks, best_choices, chosen_draft, chosen_nodes, read_choices

VOCAB = 13
CHOICES: tuple[Ranks, ...] = ((0,), (0, 0), (1,), (1, 2), (0, 0, 1))


class Known(NamedTuple):
    tokens: Sequence[int]
    claims: Sequence[float]


def ranks_of(parents: Sequence[int]) -> list[Ranks]:
    """The path of ranks to each node, one after another: the oracle of both directions."""
    children, found = Counter[int](), list[Ranks]()
    for parent in parents:
        found.append((*(found[parent] if parent >= 0 else ()), children[parent]))
        children[parent] += 1
    return found


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    n = draw(st.integers(1, 12))
    return [draw(st.integers(-1, i - 1)) for i in range(n)]


@given(trees(), st.data())
def test_accepted_ranks_are_those_of_the_nodes(parents: list[int], data: st.DataObject) -> None:
    node, path = data.draw(st.integers(0, len(parents) - 1)), list[int]()
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    every = ranks_of(parents)
    assert list(accepted_ranks(parents, path)) == [every[i] for i in path]


def test_accepted_ranks_of_the_example() -> None:
    assert list(accepted_ranks([-1, -1, 1, 1], [1, 3])) == [(1,), (1, 1)]
    assert list(accepted_ranks([-1, -1], [])) == []


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=30), st.integers(1, 12))
def test_the_best_paths_are_a_tree(deepest: list[list[int]], nodes: int) -> None:
    counts = Counter(tuple(path[:n]) for path in deepest for n in range(1, len(path) + 1))
    best = best_choices(counts, nodes)
    assert len(best) == min(nodes, len(counts))
    for i, path in enumerate(best):
        assert path[:-1] in ((), *best[:i])
    rest = set(counts) - set(best)
    assert not rest or max(counts[path] for path in rest) <= min(counts[path] for path in best)


def test_of_paths_accepted_equally_often_the_shorter_comes_first() -> None:
    assert best_choices({(1,): 2, (0,): 2, (0, 0): 2, (2,): 3}, 3) == [(2,), (0,), (1,)]


@given(trees(), st.integers(1, 12), st.integers(0, 3), st.integers(0, 2))
def test_chosen_nodes_have_their_ranks(parents: list[int], nodes: int, known: int, unknown: int) -> None:
    """Followers of a state: `known` tokens, of which the second has no chance, and none after token `unknown`."""
    choices = ranks_of(parents)
    asked = list[int]()

    def followers(node: int, state: tuple[int, ...]) -> Known | None:
        asked.append(node)
        if state and state[-1] == unknown:
            return None
        return Known(range(known), [0.0 if rank == 1 else 0.5 for rank in range(known)])

    root: tuple[int, ...] = ()
    found = chosen_nodes(choices, root, followers, lambda state, token: (*state, token), nodes)
    alive = [
        path
        for path in choices
        if all(rank < known and rank != 1 for rank in path) and all(rank != unknown for rank in path[:-1])
    ][:nodes]
    index = {path: i for i, path in enumerate(alive)}
    assert [(parent, rank) for parent, _, rank in found] == [(index.get(p[:-1], -1), p[-1]) for p in alive]
    assert len(asked) == len(set(asked))


def test_the_draft_of_chosen_nodes() -> None:
    left, right = Known([7, 8], [0.6, 0.3]), Known([5], [0.9])
    assert chosen_draft([(-1, left, 1), (0, right, 0)]) == Draft([8, 5], [-1, 0], [0.3, 0.9])


def test_a_file_keeps_its_order_and_needs_the_path_before(tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    file.write_text("[[1], [0, 0], [0], [1, 0], [1]]")
    assert read_choices(file, "stand") == ((1,), (0,), (0, 0), (1, 0))
    for wrong in ("[[0, 0]]", "{}", "[[-1]]", "[", "[[]]", "[[true]]", '["0"]'):
        file.write_text(wrong)
        with pytest.raises(UsageError, match=r"^drafter stand: choices=.*$"):
            read_choices(file, "stand")


def warm(verify: str, choices: Sequence[Ranks]) -> tuple[Stand, Context]:
    """STAND with tables, and the text that they were learned from."""
    runtime = FakeRuntime(tiny_spec(vocab_size=VOCAB, n_layers=1), spread=2.0)
    drafter, sampling = Stand(VOCAB, len(CHOICES), 5, verify, choices=choices), Sampling(temperature=1.0, seed=3)
    context = Context([3, 1], 2, runtime.new_cache(512), rng=np.random.default_rng(8), sampling=sampling)
    list(decode(runtime, context, GenerationConfig(sampling, max_tokens=300), drafter))
    return drafter, context


@pytest.mark.parametrize("verify", ["match", "recursive"])
def test_stand_proposes_the_chosen_places(verify: str) -> None:
    drafter, context = warm(verify, CHOICES)
    draft = drafter.propose(context, 9, 0.0)
    assert isinstance(draft, Draft)
    assert ranks_of(draft.parents) == [(0,), (0, 0), (1,), (1, 0), (0, 0, 0)]  # as drafted: (1, 2) alone below (1,)
    assert (draft.sampled is not None) == (verify == "recursive")
    fewer = drafter.propose(context, 2, 0.0)
    assert isinstance(fewer, Draft)
    assert list(fewer.parents) == [-1, 0]


def test_a_matched_fixed_tree_takes_the_tokens_of_its_ranks() -> None:
    drafter, context = warm("match", CHOICES)
    draft = drafter.propose(context, 9, 0.0)
    assert isinstance(draft, Draft)
    ids = context.ids
    first = drafter._followers((0, tuple(ids[-3:])))
    assert first is not None
    assert [draft.tokens[0], draft.tokens[2]] == list(first[0][:2])
    assert [draft.p[0], draft.p[2]] == list(first[1][:2])
    second = drafter._followers((1, (*ids[-2:], draft.tokens[2])))
    assert second is not None
    assert draft.tokens[3] == second[0][2]


def test_a_drawn_fixed_tree_takes_the_tokens_in_the_order_of_their_draws() -> None:
    """log p + Gumbel noise, by hand from the same stream; a third rank drawn alone keeps the elder ones out."""
    drafter, context = warm("recursive", [(0,), (1,), (2,)])
    noise = np.random.default_rng(4).gumbel(size=(4, 5))[0]
    order, ids, p = drafter.known(tuple(context.ids[-3:]))
    assert order > 0
    scores = {token: np.log(x) + g for token, x, g in zip(ids, p, noise, strict=True) if x > 1e-9}
    expected = sorted(scores, key=scores.__getitem__, reverse=True)[:3]
    context.rng = np.random.default_rng(4)
    draft = drafter.propose(context, 3, 0.0)
    assert isinstance(draft, Draft)
    assert list(draft.tokens) == expected


def test_choices_of_stand_from_a_file(nano: Path, tmp_path: Path) -> None:
    """The text is that of plain decoding; other options that would have no effect are refused."""
    (tmp_path / "tree.json").write_text("[[0], [1], [0, 0], [0, 1], [0, 0, 0], [7]]")
    model = edgedec.open("nano", engine="native", threads=1)
    ids = model.tokenizer.encode("Once upon a time")
    spec = f"stand:choices={tmp_path / 'tree.json'},fixed=6"

    def text(name: str) -> list[int]:
        session = model.session(speculate=name)
        found = list(session.tokens(ids, max_tokens=40, sampling=Sampling(temperature=0.5, seed=1)))
        assert name == "off" or session.stats.accepted > 0
        return [int(token) for token in found]

    assert text(spec) == text("off")
    with pytest.raises(UsageError, match="rank 7, and k=6 tokens are kept: take k=8"):
        model.session(speculate=spec.replace("fixed", "k=6,fixed"))
    with pytest.raises(UsageError, match="nodes=3: has no effect with choices"):
        model.session(speculate=spec.replace("fixed", "nodes=3,fixed"))
