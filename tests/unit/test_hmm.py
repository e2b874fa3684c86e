"""Training of hidden Markov models, beside every path of states."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np

from edgedec.fusion._hmm import _SMOOTH, HMM, _expected, _round, likelihood, train

VOCAB, STATES = 4, 3


def model(seed: int = 0) -> HMM:
    rng = np.random.default_rng(seed)
    ones = np.ones(STATES)
    return HMM(rng.dirichlet(ones), rng.dirichlet(ones, STATES), rng.dirichlet(np.ones(VOCAB), STATES))


def paths(of: HMM, ids: list[int]) -> tuple[np.ndarray, np.ndarray, float]:
    """What `_expected` gives, and the probability of the text: sums over all paths of states."""
    seen, pairs, total = np.zeros((len(ids), STATES)), np.zeros((STATES, STATES)), 0.0
    for path in product(range(STATES), repeat=len(ids)):
        p = of.first[path[0]] * np.prod([of.moves[a, b] for a, b in pairwise(path)])
        p *= np.prod([of.emits[state, token] for state, token in zip(path, ids, strict=True)])
        total += p
        for i, state in enumerate(path):
            seen[i, state] += p
        for a, b in pairwise(path):
            pairs[a, b] += p
    return seen / total, pairs / total, float(total)


def test_what_a_text_shows_is_the_mean_over_all_paths() -> None:
    for seed, ids in enumerate(([2], [0, 3], [1, 1, 2], [3, 0, 0, 2, 1, 3])):
        seen, pairs = _expected(model(seed), np.array(ids))
        expected, moved, total = paths(model(seed), ids)
        np.testing.assert_allclose(seen, expected, rtol=1e-12)
        np.testing.assert_allclose(pairs, moved, rtol=1e-12, atol=1e-15)
        assert np.isclose(likelihood(model(seed), [ids]), np.log(total) / len(ids), rtol=1e-12)


def test_a_round_counts_what_texts_show() -> None:
    """The first token, the moves and the tokens of each state, smoothed, as shares."""
    texts = [[1, 1, 2], [3, 0, 0, 2]]
    first, moves, emits = (np.full(size, _SMOOTH) for size in ((STATES,), (STATES, STATES), (STATES, VOCAB)))
    for ids in texts:
        seen, pairs, _ = paths(model(), ids)
        first += seen[0]
        moves += pairs
        for i, token in enumerate(ids):
            emits[:, token] += seen[i]
    found = _round(model(), [np.array(ids) for ids in texts])
    np.testing.assert_allclose(found.first, first / first.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.moves, moves / moves.sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(found.emits, emits / emits.sum(axis=1, keepdims=True), rtol=1e-12)
    better, known = likelihood(found, texts), likelihood(model(), texts)
    assert better > known


def test_training_starts_at_probabilities() -> None:
    start = train([[1, 2]], VOCAB, STATES, rounds=0)
    for part in (start.first, start.moves, start.emits):
        np.testing.assert_allclose(part.sum(axis=-1), 1.0)
        assert (part > 0).all()
