"""Constraints after which nothing may follow: a search goes on with its other texts, and gives none that ended so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from search.laws import LawRuntime, fresh, search_of, searched, table

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.runner import run_loop
from edgedec.errors import UsageError
from edgedec.runtime import CallResult
from edgedec.search.extending import NextOfAll, NextTokens, _best_of_each, log_softmax, next_tokens
from edgedec.testing.fakes import FakeRuntime, SetConstraint

# Of a, b, c and d: after b c nothing may follow; after all else anything may.
FIRST: dict[int, Sequence[int]] = {-1: [0, 1], 0: [0], 1: [2], 2: [], 3: [3]}


def found(words: str, runtime: Any, most: int = 3, **more: Any) -> list[int]:
    config = GenerationConfig(max_tokens=most, constraint=SetConstraint(FIRST, 4), **more)
    return [int(t) for t in searched(runtime, words, config, context=fresh(runtime, runtime.prompt))]


def runtime_of(first: Sequence[float]) -> LawRuntime:
    return LawRuntime(table({(): first}, [0.25] * 4), 4, 3)


def test_other_nodes_are_continued_after_a_dead_end() -> None:
    """A*: b is worth most, and b c; the answer is the only text that goes on."""
    asked = list[str]()

    def worth(prompt: str, text: str) -> float:
        asked.append(text)
        return 0.9 if text[0] == "b" else 0.5

    runtime = runtime_of([0.5, 0.5, 0.0, 0.0])
    assert found("astar:k=6,step=1,budget=40,temperature=1", runtime, scorer=worth) == [0, 0, 0]
    assert {"b", "bc"} <= set(asked)


def test_a_dead_end_of_all_nodes_is_an_error() -> None:
    runtime = runtime_of([0.0, 1.0, 0.0, 0.0])
    with pytest.raises(UsageError):
        found("astar:k=2,step=1,budget=40", runtime, scorer=lambda prompt, text: 0.5)


@pytest.mark.parametrize("first", [[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]])
def test_trials_that_ended_are_kept_where_all_others_come_to_a_dead_end(first: Sequence[float]) -> None:
    """Cautious: a ends the text, b and c come to a dead end. It is an error only if no trial is a."""
    config = GenerationConfig(max_tokens=3, constraint=SetConstraint(FIRST | {-1: [0, 1, 2]}, 4))
    runtime = runtime_of(first)
    words = "cautious:n=12,low=0,high=0.1,temperature=1,top_p=1"
    search = search_of(runtime, words, config, frozenset({0}), fresh(runtime, runtime.prompt))
    if first[0]:
        assert list(run_loop(runtime, search.loop)) == []
        assert search.room.stats.finish == "eos"
    else:
        with pytest.raises(UsageError, match="the largest is -inf"):
            list(run_loop(runtime, search.loop))


def test_a_trial_that_came_to_a_dead_end_is_not_kept() -> None:
    """Cautious: b c is likelier than a a a, and leads nowhere."""
    law = table({(): [0.3, 0.7, 0.0, 0.0], (1,): [0, 0, 1, 0]}, [0.25] * 4)
    for seed in range(6):
        runtime = LawRuntime(law, 4, 3)
        config = GenerationConfig(max_tokens=3, constraint=SetConstraint(FIRST, 4))
        words = "cautious:n=12,low=0,high=0.1,temperature=1,top_p=1"
        search = search_of(runtime, words, config, context=fresh(runtime, runtime.prompt, seed))
        assert list(run_loop(runtime, search.loop)) == [0, 0, 0]


def test_look_ahead_takes_a_token_that_does_not_lead_to_a_dead_end() -> None:
    runtime = runtime_of([0.3, 0.7, 0.0, 0.0])
    assert found("lookahead:threshold=0,top=2,ahead=3", runtime) == [0, 0, 0]
    assert found("lookahead:threshold=1e9", runtime, 2) == [1, 2], "greedy decoding sees none"


@pytest.mark.parametrize("words", ["lookahead", "latent"])
def test_a_dead_end_without_another_text_is_one_line(words: str) -> None:
    runtime = FakeRuntime()
    config = GenerationConfig(max_tokens=9, constraint=SetConstraint(lambda last: [4] if last < 0 else []))
    with pytest.raises(UsageError, match="a dead end: nothing that the constraint allows may follow"):
        searched(runtime, words, config)


def test_a_program_that_came_to_a_dead_end_is_worth_nothing() -> None:
    """Planning by tests: the greedy program is b c, which is not judged."""
    asked = list[str]()

    def worth(prompt: str, text: str) -> float:
        asked.append(text)
        return 0.5

    runtime = runtime_of([0.3, 0.7, 0.0, 0.0])
    assert found("tests:rollouts=4,children=2", runtime, scorer=worth) == [0, 0, 0]
    assert set(asked) == {"aaa"}
    with pytest.raises(UsageError, match="no program was found"):
        found("tests:rollouts=2,children=1", runtime, scorer=worth)


# ── logits that are not finite ──


def test_the_k_best_without_a_finite_logit_are_refused() -> None:
    def of(ids: list[int], scores: list[float]) -> CallResult:
        return CallResult(
            ids=np.array([ids], np.int32), scores=np.array([scores], np.float32), logsum=np.array([1.0], np.float32)
        )

    nexts = next_tokens([], of([3, -1], [0.5, 0.0]), 2)  # type: ignore[arg-type]
    assert (nexts.ids, nexts.logps) == ([3], [-0.5])
    with pytest.raises(UsageError, match="the largest is not finite"):
        next_tokens([], of([-1, -1], [0.0, 0.0]), 2)  # type: ignore[arg-type]
    assert _best_of_each([of([3, 4], [0.5, 0.0]), of([3, -1], [0.5, 0.0])]) is None
    both = _best_of_each([of([3, 4], [0.5, 0.0]), of([4, 3], [2.0, 1.5])])
    assert both is not None
    assert (both.ids.tolist(), both.logps.tolist()) == ([[3, 4], [4, 3]], [[-0.5, -1.0], [1.0, 0.5]])
    part = both.part(1, 2)
    assert (part.ids.tolist(), part.logps.tolist(), part.token(0, 4, None)) == ([[4, 3]], [[1.0, 0.5]], 4)
    padded = NextOfAll.of([NextTokens([3], [-0.5]), NextTokens([4, 3], [-1.0, -2.0])], 2)
    assert padded.ids[:, 0].tolist() == [3, 4]
    assert padded.logps.tolist() == [[-0.5, -np.inf], [-1.0, -2.0]]
    for row in ([np.nan, 1.0], [-np.inf, -np.inf]):
        with pytest.raises(UsageError, match="the largest is not finite"):
            log_softmax(np.array(row, np.float32))
    with pytest.raises(UsageError, match="dead end"):
        _ = NextTokens([], []).best
