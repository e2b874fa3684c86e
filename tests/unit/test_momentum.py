"""Momentum decoding against the rule written slowly, with drafts and forks, and on a model that repeats itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusing import PROMPT, law, logp, naive, run

import edgedec
from edgedec.decoding.context import Context
from edgedec.processors.momentum import Momentum, repeated_length
from edgedec.sampling import Sampling, distribution
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, RandomDrafter

INF = float("inf")


def slow_length(ids: list[int], token: int) -> int:
    """Of all sequences that end with the token: the longest, of at most five, that is in the text."""
    text = [*ids, token]
    lengths = [0]
    for n in range(1, 6):
        if n <= len(text) and any(ids[i : i + n] == text[-n:] for i in range(len(ids) - n + 1)):
            lengths.append(n)
    return max(lengths)


def test_lengths_are_the_slow_ones() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(400):
        ids = rng.integers(0, 3, rng.integers(0, 16)).tolist()
        for token in range(4):
            seen.add(found := repeated_length(np.array(ids, np.int64), token))
            assert found == slow_length(ids, token)
    assert seen == {0, 1, 2, 3, 4, 5}


def test_the_worked_example() -> None:
    made = Momentum(0.2, 5)
    on = FakeRuntime()
    made.attach(Context([0, 1, 2, 0, 1], 5, on.new_cache(8)))
    row = np.log(np.array([0.05, 0.05, 0.6, 0.3], np.float32))
    assert made.process(row, [], {}) == pytest.approx([0.05 - 0.2, 0.05 - 0.2, 0.6 - 0.6, 0.3], abs=1e-6)
    assert made.process(row, [2], {})[0] == pytest.approx(0.05 - 0.2 * 4)  # a drafted token is part of the text
    few = Momentum(0.2, 2)
    few.attach(Context([0, 1, 2, 0, 1], 5, on.new_cache(8)))
    assert np.isinf(few.process(row, [], {})).tolist() == [True, True, False, False]
    row[3] = -INF
    assert made.process(row, [], {})[3] == -INF


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.2)], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("alpha", "k"), [(0.2, 5), (0.05, 3), (1.0, 13)])
def test_a_text_is_that_of_the_rule_with_any_draft(alpha: float, k: int, sampling: Sampling) -> None:
    on = FakeRuntime()

    def after(new: list[int]) -> Any:
        ids = [*PROMPT, *new]
        p = np.exp(logp(law(on, ids)))
        scores = np.full(13, -INF, np.float32)
        for token in np.argsort(-p, kind="stable")[:k].tolist():
            scores[token] = p[token] - alpha * slow_length(ids, token)
        return distribution(scores, sampling)

    wanted = naive(after, sampling.temperature == 0)
    assert run(on, [Momentum(alpha, k)], sampling=sampling) == wanted
    for drafter in (PerfectDrafter([*PROMPT, *wanted], decoys=1), RandomDrafter(1)):
        assert run(on, [Momentum(alpha, k).fork()], drafter, sampling) == wanted
    assert run(on, [Momentum(0.0, k)], sampling=sampling) == run(on, (), sampling=sampling)


def test_a_model_that_repeats_itself_does_not(nano: Path) -> None:
    """Greedy, nano ends up in a loop; with momentum it does not."""
    model = edgedec.open(nano, threads=1)

    def repeats(**options: Any) -> float:
        session = model.session(context=512)
        new = [t.token for t in session.tokens(model.tokenizer.encode("Once upon"), max_tokens=200, **options)]
        grams = [tuple(new[i : i + 6]) for i in range(len(new) - 5)]
        return 1 - len(set(grams)) / len(grams)

    plain, moved = repeats(ignore_eos=True), repeats(ignore_eos=True, processors="momentum")
    assert plain > 0.2
    assert moved < 0.02
