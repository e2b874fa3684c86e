"""Mirostat and adaptive-p: their rules by hand, the state along drafted paths, and that drafts change no text."""

from __future__ import annotations

from math import log2
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.decoding.shaping import Shaping, chance_at
from edgedec.kernels.cpu.loader import why_not
from edgedec.sampling import Sampling
from edgedec.sampling.ordered import Candidates
from edgedec.sampling.steering import State, after, shape, start

HALF = Candidates(np.array([2, 5, 7, 9]), np.log([0.5, 0.25, 0.125, 0.125]))
M2 = Sampling(temperature=1.0, mirostat=2, mirostat_tau=2.0, mirostat_eta=0.5)
ADAPTIVE = Sampling(temperature=1.0, adaptive_target=0.4, adaptive_decay=0.5)


@pytest.mark.parametrize(("most", "kept"), [(4.0, 4), (3.0, 4), (2.9, 2), (2.0, 2), (1.9, 1), (0.5, 1), (-3.0, 1)])
def test_mirostat_2_keeps_tokens_of_no_more_surprise(most: float, kept: int) -> None:
    """Surprises 1, 2, 3, 3 bits."""
    found = shape(HALF, State(most), M2, 10).probs
    assert list(found.ids) == [2, 5, 7, 9][:kept]
    assert found.p.sum() == pytest.approx(1)
    assert found.p[0] == pytest.approx(0.5 / sum([0.5, 0.25, 0.125, 0.125][:kept]))


def test_mirostat_moves_towards_the_surprise_to_keep() -> None:
    assert start(M2) == State(4.0)
    shaped = shape(HALF, State(4.0), M2, 10)
    assert after(State(4.0), shaped, 2, M2) == State(4.0 - 0.5 * (1 - 2))
    assert after(State(4.0), shaped, 7, M2) == State(4.0 - 0.5 * (3 - 2))
    assert after(State(4.0), shaped, 3, M2) == State(4.0), "a token without a probability tells nothing"


def test_mirostat_1_takes_as_many_tokens_as_zipf_s_law_says() -> None:
    """Probabilities that follow the law exactly: its exponent is found, and k follows from the surprise."""
    s, n, mu = 1.4, 200, 6.0
    p = np.arange(1, n + 1, dtype=float) ** -s
    found = Candidates(np.arange(n), np.log(p / p.sum()))
    e = s - 1
    k = int((e * 2**mu / (1 - n**-e)) ** (1 / s))
    assert 1 < k < n
    m1 = Sampling(temperature=1.0, mirostat=1, mirostat_tau=3.0)
    assert list(shape(found, State(mu), m1, n).probs.ids) == list(range(k))
    assert list(shape(found, State(-9.0), m1, n).probs.ids) == [0]
    one = Candidates(np.array([4]), np.zeros(1))
    assert list(shape(one, State(mu), m1, n).probs.ids) == [4]


def test_adaptive_p_prefers_tokens_near_the_target() -> None:
    """a = 2 · 0.4 - mean of the chosen; the logit of a token 5 - 10 d² / (1 + d), d = |p - a| / 0.3."""
    assert start(ADAPTIVE) == State(0.8, 2.0)
    for state, target in (
        (start(ADAPTIVE), 0.4),
        (State(1.0, 2.0), 0.3),
        (State(4.0, 2.0), 0.0),
        (State(-2.0, 2.0), 1.0),
    ):
        d = np.abs(np.array([0.5, 0.25, 0.125, 0.125]) - target) / 0.3
        weights = np.exp(5 - 10 * d**2 / (1 + d))
        assert np.allclose(shape(HALF, state, ADAPTIVE, 10).probs.p, weights / weights.sum())


def test_adaptive_p_averages_the_unchanged_probabilities() -> None:
    shaped = shape(HALF, start(ADAPTIVE), ADAPTIVE, 10)
    found = after(start(ADAPTIVE), shaped, 5, ADAPTIVE)
    assert (found.first, found.second) == (pytest.approx(0.25 + 0.5 * 0.8), 2.0)


# ---- along a path ----


def context(n: int) -> Any:
    return SimpleNamespace(ids=[0] * n, rng=np.random.default_rng(3))


@pytest.mark.parametrize("sampling", [M2, ADAPTIVE], ids=["mirostat", "adaptive"])
def test_each_path_has_its_own_state_and_the_text_that_of_its_tokens(sampling: Sampling) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 2, (5, 12)).astype(np.float32)
    tree, one = Shaping(sampling, context(4)), Shaping(sampling, context(4))
    first = tree.distribution(rows[0], ())
    tokens = [int(t) for t in first.ids[:2]]
    below = {t: tree.distribution(rows[1], (t,)) for t in tokens}
    deep = tree.distribution(rows[2], (tokens[1], int(below[tokens[1]].ids[0])))
    assert not np.array_equal(below[tokens[0]].p, below[tokens[1]].p)
    for row, token in zip(rows, (tokens[1], int(below[tokens[1]].ids[0])), strict=False):
        one.distribution(row, ())
        one.accept(token)
    assert np.array_equal(one.distribution(rows[2], ()).p, deep.p)
    tree.accept(tokens[1])
    assert np.array_equal(tree.distribution(rows[1], ()).p, below[tokens[1]].p)
    assert tree._state == after(start(sampling), shape_of(sampling, rows[0]), tokens[1], sampling)
    assert tree._shaped.keys() <= {(), (int(below[tokens[1]].ids[0]),)}, "other branches are forgotten"


def shape_of(sampling: Sampling, row: Any) -> Any:
    from edgedec.sampling.ordered import candidates

    return shape(candidates(row), start(sampling), sampling, len(row))


def test_the_chance_of_a_place_is_that_of_the_seed_and_no_number_of_the_text() -> None:
    rng = np.random.default_rng(7)
    found = [chance_at(rng, place) for place in range(4000)]
    assert all(0 <= x < 1 for x in found)
    assert abs(np.mean(found) - 0.5) < 0.02
    assert abs(np.mean(np.array(found[:-1]) * found[1:]) - 0.25) < 0.02
    number = rng.random()
    assert number == np.random.default_rng(7).random()
    assert [chance_at(rng, place) for place in range(4000)] == found, "not of how many were drawn"
    assert chance_at(np.random.default_rng(8), 5) != found[5]


# ---- texts ----

SETTINGS: dict[str, dict[str, Any]] = {
    "sigma": {"top_n_sigma": 1.0},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "dynatemp": {"dynatemp_range": 0.5},
    "eta": {"eta_cutoff": 0.01, "epsilon_cutoff": 0.001, "top_h": 0.9},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0},
    "mirostat 1": {"mirostat": 1},
    "adaptive": {"adaptive_target": 0.4},
    "dry": {"dry_multiplier": 0.8},
    "n-grams": {"no_repeat_ngram_size": 3},
    "window": {"repetition_penalty": 1.3, "repeat_last_n": 8},
    "order": {"samplers": "min_p;temperature;top_p", "min_p": 0.02, "top_p": 0.9, "temperature": 1.2},
}


@pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")
@pytest.mark.parametrize("name", SETTINGS)
def test_drafts_change_no_text(nano: Path, name: str) -> None:
    """With a seed the text is that of plain decoding, though some drafted tokens are accepted."""
    model = edgedec.open(nano, engine="native", threads=1)
    options = {"temperature": 1.0, "seed": 5, "max_tokens": 60, **SETTINGS[name]}
    prompt = model.tokenizer.encode("The cat sat. The cat sat. The cat")
    plain = list(model.session(speculate="off").tokens(prompt, **options))
    session = model.session(speculate="copy:fixed=4+recycling:fixed=4")
    assert list(session.tokens(prompt, **options)) == plain
    assert session.stats.accepted > 0
    default = list(model.session(speculate="off").tokens(prompt, temperature=1.0, seed=5, max_tokens=60))
    assert plain != default, "the setting has an effect"


@pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")
def test_greedy_texts_repeat_no_n_gram(nano: Path) -> None:
    model = edgedec.open(nano, engine="native", threads=1)
    prompt = model.tokenizer.encode("The cat sat. The cat sat. The cat")
    plain = list(model.session(speculate="off").tokens(prompt, max_tokens=80))
    text = list(model.session(speculate="off").tokens(prompt, max_tokens=80, no_repeat_ngram_size=3))
    assert plain != text
    grams = list(zip(text, text[1:], text[2:], strict=False))
    assert len(set(grams)) == len(grams)


def test_a_surprise_of_mirostat_is_near_the_one_to_keep() -> None:
    """Over a long text of random laws."""
    rng, sampling = np.random.default_rng(2), Sampling(temperature=1.0, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.1)
    shaping, surprises = Shaping(sampling, context(1)), list[float]()
    for _ in range(600):
        probs = shaping.distribution(rng.normal(0, 2, 300).astype(np.float32), ())
        token = int(rng.choice(probs.ids, p=probs.p))
        surprises.append(-log2(probs.of(token)))
        shaping.accept(token)
    assert abs(np.mean(surprises[100:]) - 3.0) < 0.15
