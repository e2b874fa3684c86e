"""Trees by joint probability against a chain and a fixed tree of as many nodes (EAGLE-2; DySpec).

A drafter is calibrated: its p of a token is the target's. Then the tokens a tree brings are 1 + the sum of its paths'
probabilities; that is also counted, by walking the target's own draws through the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

from edgedec.drafters import Draft
from edgedec.drafters._heads.levels import Levels
from edgedec.drafters.medusa import chosen
from edgedec.trees.grow import grow

VOCAB, DEPTH, BEAM, NODES, WORLDS = 24, 5, 8, 25, 60
# The shape that EAGLE-1 was published with: 25 paths of ranks.
FIXED = [
    *([i] for i in range(4)),
    *([0, i] for i in range(3)),
    *([1, i] for i in range(2)),
    *([2, i] for i in range(2)),
    [3, 0],
    *([0, 0, i] for i in range(3)),
    *([0, 1, i] for i in range(2)),
    *([0, 2, i] for i in range(2)),
    [1, 0, 0],
    *([0, 0, 0, i] for i in range(3)),
    *([0, 0, 0, 0, i] for i in range(2)),
]
Law = Callable[[tuple[int, ...]], np.ndarray]


def world(seed: int) -> Law:
    """The law [vocab] after each path; some places are sure, some are open."""

    @cache
    def law(path: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng((seed, len(path), *path))
        logits = rng.standard_normal(VOCAB) * rng.choice([0.5, 1.5, 3.0, 6.0])
        p: np.ndarray = np.exp(logits - logits.max())
        return p / p.sum()

    return law


def ranked(law: Law, path: tuple[int, ...], k: int = BEAM) -> tuple[list[int], list[float]]:
    p = law(path)
    best = np.argsort(-p, kind="stable")[:k]
    return best.tolist(), p[best].tolist()


def by_levels(law: Law, nodes: int) -> Draft:
    levels, paths = Levels(nodes, BEAM, 0.0), [()]
    for _ in range(DEPTH):
        ids, probs = zip(*(ranked(law, path) for path in paths), strict=True)
        levels.add(ids, probs)
        if not levels.frontier:
            break
        paths = [(*paths[row], token) for row, token in zip(levels.rows, levels.tokens, strict=True)]
    return levels.draft()


def by_best(law: Law, nodes: int) -> Draft:
    def followers(path: tuple[int, ...]) -> list[tuple[int, float, tuple[int, ...]]]:
        return [(token, p, (*path, token)) for token, p in zip(*ranked(law, path, VOCAB), strict=True)]

    return grow((), followers, nodes)


def chain(law: Law, nodes: int) -> Draft:
    tokens: list[int] = []
    for _ in range(nodes):
        tokens.append(ranked(law, tuple(tokens))[0][0])
    return Draft.chain(tokens)


def fixed(law: Law, nodes: int) -> Draft:
    """The ranks of FIXED, each after its own path."""
    place: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {(): (-1, ())}
    tokens: list[int] = []
    parents: list[int] = []
    for shape in sorted(FIXED, key=len)[:nodes]:
        parent, path = place[tuple(shape[:-1])]
        token = ranked(law, path)[0][shape[-1]]
        place[tuple(shape)] = len(tokens), (*path, token)
        tokens.append(token)
        parents.append(parent)
    return Draft(tokens, parents)


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def expected(law: Law, draft: Draft) -> float:
    """Tokens of a call: 1 and the chances of all paths."""
    return 1.0 + sum(np.prod([law(path[:i])[token] for i, token in enumerate(path)]) for path in paths_of(draft))


def counted(law: Law, draft: Draft, rng: np.random.Generator, draws: int = 40) -> float:
    """The same, by drawing."""
    paths, total = set(paths_of(draft)), 0
    for _ in range(draws):
        path: tuple[int, ...] = ()
        while True:
            path = (*path, int(rng.choice(VOCAB, p=law(path))))
            total += 1
            if path not in paths:
                break
    return total / draws


@pytest.fixture(scope="module")
def found() -> dict[str, np.ndarray]:
    trees = {"levels": by_levels, "best": by_best, "chain": chain, "fixed": fixed}
    return {
        name: np.array([expected(world(i), make(world(i), NODES)) for i in range(WORLDS)])
        for name, make in trees.items()
    }


def test_all_have_as_many_nodes() -> None:
    for make in (by_levels, by_best, chain, fixed):
        draft = make(world(1), NODES)
        assert len(draft.tokens) == len(set(paths_of(draft))) == NODES


def test_joint_probability_beats_chain_and_fixed_tree(found: dict[str, np.ndarray]) -> None:
    """On the mean by much, in no world by less; level by level loses little to the best of all trees."""
    for other in ("chain", "fixed"):
        assert (found["best"] >= found[other] - 1e-9).all()
        assert found["levels"].mean() > 1.1 * found[other].mean()
    assert found["levels"].mean() > 0.95 * found["best"].mean()


def test_the_chances_are_what_is_accepted(found: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    for name, make in (("levels", by_levels), ("chain", chain), ("fixed", fixed)):
        seen = np.array([counted(world(i), make(world(i), NODES), rng) for i in range(WORLDS)])
        assert abs(seen.mean() - found[name].mean()) < 0.12, name


def test_ranks_of_medusas_choices() -> None:
    """Independent heads: the ranks of each depth; a path without room or rank is left out."""
    levels: Sequence[tuple[list[int], list[float]]] = [([7, 8], [-0.1, -2.0]), ([5, 6], [-0.2, -1.0])]
    draft = chosen([(0,), (1,), (2,), (0, 0), (1, 1), (2, 0), (0, 0, 0)], levels, 10)
    assert paths_of(draft) == [(7,), (8,), (7, 5), (8, 6)]
    assert np.allclose(draft.p, np.exp([-0.1, -2.0, -0.2, -1.0]))
    assert len(chosen([(0,), (1,), (0, 0)], levels, 2).tokens) == 2
