"""Sequential Monte Carlo beside the posterior of a planted law, and beside weighed draws."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search.laws import PROMPT, VOCAB, LawRuntime, beside, fresh, search_of, table

import edgedec
from edgedec import constraints
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Stats
from edgedec.decoding.runner import run_loop
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.sampling import Sampling
from edgedec.search.running import SearchRun
from edgedec.testing.fakes import FakeRuntime, SetConstraint, random_reference

# Tokens 0, 1 and the end 2. After 0 nearly nothing is allowed: masking takes 0 half of the time, the posterior seldom.
LAW = table({(): (0.5, 0.5, 0.0), (0,): (0.9, 0.05, 0.05), (1,): (0.4, 0.4, 0.2), (0, 1): (0.0, 0.0, 1.0)}, (0, 0, 1.0))
RULES = {-1: [0, 1], 0: [1, 2], 1: [0, 1, 2]}
POSTERIOR = {(0, 1): 0.025, (0,): 0.025, (1, 0): 0.2, (1, 1): 0.2, (1,): 0.1}


def config(most: int = 3, **more: Any) -> GenerationConfig:
    rules = SetConstraint({**RULES, 2: []}, 3)
    return GenerationConfig(Sampling(temperature=1.0), max_tokens=most, constraint=rules, **more)


@cache
def planted() -> LawRuntime:
    return LawRuntime(LAW, 3, 3)


def run(words: str, seed: int, given: GenerationConfig | None = None) -> tuple[tuple[int, ...], SearchRun]:
    runtime = planted()
    context = fresh(runtime, runtime.prompt, seed)
    search = search_of(runtime, words, given or config(), frozenset({2}), context)
    return tuple(map(int, run_loop(runtime, search.loop))), search


def test_particles_are_of_the_posterior() -> None:
    """The end is a token like others: a text that ends early has its mass."""
    mass, rounds = sum(POSTERIOR.values()), 12
    shares, masses, resampled = defaultdict[tuple[int, ...], float](float), [], 0
    for seed in range(rounds):
        _, search = run("smc:n=48,threshold=0.8", seed)
        for one in search.room.ranked:
            shares[tuple(map(int, one.tokens))] += one.value / rounds
        masses.append(exp(search._strategy.log_mean))  # type: ignore[attr-defined]
        resampled += search._strategy.resampled  # type: ignore[attr-defined]
    assert resampled == rounds
    assert set(shares) <= set(POSTERIOR)
    for text, p in POSTERIOR.items():
        assert shares[text] == pytest.approx(p / mass, abs=0.06), text
    assert np.mean(masses) == pytest.approx(mass, abs=0.05)


def test_the_answer_is_drawn_by_its_weight() -> None:
    texts = [run("smc:n=8", seed)[0] for seed in range(1000, 1040)]
    shares = {text: texts.count(text) / len(texts) for text in set(texts)}
    assert set(shares) <= set(POSTERIOR)
    assert sum(p for text, p in shares.items() if text[0] == 0) < 0.25  # masking: half
    assert shares[1, 0] == pytest.approx(0.2 / 0.55, abs=0.25)


def test_the_end_has_a_weight_of_its_own() -> None:
    """In the decode loop too: where only the end is allowed, its probability is the weight."""
    runtime, weights = LawRuntime(table({}, (0.5, 0.3, 0.2)), 3, 2), []
    given = config(3, awrs=True)
    given = given.override({"constraint": SetConstraint({-1: [2], 2: []}, 3)})
    for seed in range(150):
        stats = Stats()
        context = fresh(runtime, runtime.prompt, seed)
        given.constraint.reset()  # type: ignore[union-attr]
        loop = decode_loop(context, given, Off(), stats, None, frozenset({2}))
        assert list(run_loop(runtime, loop)) == []
        weights.append(exp(stats.log_weight))
    assert np.mean(weights) == pytest.approx(0.2, abs=0.06)


def test_threshold_zero_never_resamples() -> None:
    _, search = run("smc:n=16,threshold=0", 1)
    assert search._strategy.resampled == 0  # type: ignore[attr-defined]
    assert search.report()["candidates"] == 16
    assert sum(one.value for one in search.room.ranked) == pytest.approx(1)
    assert len({one.value for one in search.room.ranked}) > 1


def test_weights_are_products() -> None:
    """Of 1, then 0, then the end: .5 * .4 * 1."""
    only = config().override({"constraint": SetConstraint({-1: [1], 1: [0], 0: [2], 2: []}, 3)})
    masses = []
    for seed in range(4):
        text, search = run("smc:n=32,threshold=0", seed, only)
        assert text == (1, 0)
        masses.append(exp(search._strategy.log_mean))  # type: ignore[attr-defined]
    assert np.mean(masses) == pytest.approx(0.2, abs=0.06)


def test_beside_other_texts_it_is_the_same() -> None:
    for runtime in (FakeRuntime(), random_reference()):
        rules = SetConstraint(lambda last: [t for t in range(VOCAB) if t % 3 != last % 3], VOCAB)
        given = GenerationConfig(Sampling(temperature=1.0), max_tokens=6, constraint=rules)
        alone = search_of(runtime, "smc:n=4", given, context=fresh(runtime, PROMPT))
        text = list(run_loop(runtime, alone.loop))
        assert beside(runtime, "smc:n=4", given, context=fresh(runtime, PROMPT)) == text
        assert len(text) == 6


def test_dead_ends_are_dropped_and_the_last_is_an_error() -> None:
    open_end = config().override({"constraint": SetConstraint({-1: [0, 1], 0: [], 1: [0, 1, 2], 2: []}, 3)})
    for seed in range(6):
        text, search = run("smc:n=16", seed, open_end)
        assert text[0] == 1
        assert {one.value > 0 for one in search.room.ranked if one.finish == "dead"} <= {False}
    closed = config().override({"constraint": SetConstraint({-1: [0], 0: []}, 3)})
    with pytest.raises(UsageError, match="every text came to a dead end"):
        run("smc:n=4", 1, closed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"constraint": None}, "needs a constraint"),
        ({"temperature": 0.0}, "at temperature 0 nothing is drawn"),
        ({"mirostat": 2}, "draws from the whole law"),
    ],
)
def test_what_smc_refuses(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=f"--search smc: {words}"):
        run("smc", 1, config().override(change))


# ── on a model ──

PASSAGE = "Once upon a time there was a little girl. She lived in a big red house by the sea with a dog and a cat."


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


def test_one_particle_is_a_weighed_draw(model: edgedec.Model) -> None:
    rule = constraints.span(model, PASSAGE)
    given: dict[str, Any] = {"max_tokens": 9, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0}
    for seed in range(3):
        session = model.session()
        text = "".join(session.generate("One day", seed=seed, awrs=True, constraint=rule, **given))
        found = model.session().search("smc:n=1", "One day", seed=seed, constraint=rule, **given)
        assert found.text == text
    assert session.stats.checks > 0


def test_a_session_shows_checks_and_texts(model: edgedec.Model) -> None:
    session = model.session()
    rule = constraints.span(model, PASSAGE)
    found = session.search("smc:n=12", "One day", seed=1, max_tokens=8, temperature=1.0, constraint=rule)
    assert found.text in PASSAGE
    assert all(one.text in PASSAGE for one in found.texts)
    assert len(found.texts) == 12
    assert sum(one.value for one in found.texts) == pytest.approx(1)
    assert found.report["tokens"] <= session.stats.checks <= 5 * found.report["tokens"]
