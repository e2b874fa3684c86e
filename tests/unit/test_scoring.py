"""Scores of given tokens: the log-probabilities of one call of the whole text, however a text is split into calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drafting import finish, saved

from edgedec.cache import Cache
from edgedec.decoding import scoring
from edgedec.decoding.batch_score import Scored, score_all
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.decoding.runner import run_loop
from edgedec.decoding.scoring import next_probs, prefill, score, score_prompt, scored
from edgedec.decoding.sharing import SharedPrefixes
from edgedec.errors import ContextFull, UsageError
from edgedec.runtime import Call, Rows, forward_one, logits_of
from edgedec.sampling import logprob, top_logprobs
from edgedec.testing.fakes import FakeRuntime, tiny_spec

TEXT = [i * i % 13 for i in range(20)]
MORE = [3, 1, 4, 1, 5, 9, 2, 6]


def runtime(**more: Any) -> FakeRuntime:
    return FakeRuntime(tiny_spec(), **{"prefill_chunk": 6} | more)


def context_of(on: FakeRuntime, cached: int = 0, ids: list[int] = TEXT) -> Context:
    context = Context(list(ids), len(ids), on.new_cache(64))
    if cached:
        forward_one(on, Call(Rows.chain(ids[:cached], 0), context.cache))
        context.cache.commit(range(cached))
    return context


def whole_logits(ids: list[int]) -> Any:
    on = FakeRuntime(tiny_spec())
    return logits_of(on, Rows.chain(ids, 0), on.new_cache(64))


def cache_of(ids: list[int]) -> Cache:
    return context_of(FakeRuntime(tiny_spec()), len(ids), ids).cache


@pytest.mark.parametrize("cached", [0, 7, 19, 20])
def test_a_prompt_is_read_up_to_its_last_token(cached: int) -> None:
    on = runtime()
    context = context_of(on, cached)
    on.rows = 0
    prefill(on, context)
    assert on.rows == max(19 - cached, 0)
    assert saved(context.cache) == saved(cache_of(TEXT[:19]))
    p = next_probs(on, context)
    expected = np.exp(whole_logits(TEXT)[-1].astype(np.float64))
    assert p == pytest.approx(expected / expected.sum())
    assert saved(context.cache) == saved(cache_of(TEXT[:19])), "it is put back"
    with pytest.raises(UsageError, match="nothing to continue"):
        prefill(on, context_of(on, ids=[]))


def test_the_distribution_after_large_logits() -> None:
    on = runtime(spread=4000.0)
    assert next_probs(on, context_of(on)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("n", [1, 6, 7, 8])
def test_scores_are_those_of_one_call(n: int) -> None:
    on = runtime()
    context = context_of(on)
    logits = whole_logits(TEXT + MORE)
    found = score(on, context, MORE[:n])
    assert found == pytest.approx([logprob(logits[19 + i], MORE[i]) for i in range(n)])
    assert context.ids == TEXT
    assert saved(context.cache) == saved(cache_of(TEXT[:19]))
    calls = on.calls
    assert score(on, context, []) == []
    assert on.calls == calls


class Stepwise:
    """A policy that keeps everything and lets three rows run at a time. `seen`: the text at each step."""

    name = words = "stepwise"

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.steps: list[int] = []

    def fork(self) -> Stepwise:
        return self

    def follow(self, ids: Any) -> None:
        self.seen.append(list(ids))

    def room(self, length: int) -> int:
        return 2

    def shape(self, call: Call) -> Call:
        return call

    def observe(self, cache: Any, result: Any) -> None:
        self.steps.append(cache.length)

    def settle(self, cache: Any) -> None:
        pass


def test_under_a_policy_the_text_grows_step_by_step() -> None:
    on, policy = runtime(), Stepwise()
    context = context_of(on, 19)
    context.policy = policy  # type: ignore[assignment]
    logits = whole_logits(TEXT + MORE)
    assert score(on, context, MORE) == pytest.approx([logprob(logits[19 + i], MORE[i]) for i in range(8)])
    assert policy.seen[1:] == [TEXT, TEXT + MORE[:3], TEXT + MORE[:6]]
    assert policy.steps == [22, 25, 27]
    assert context.ids == TEXT
    assert context.cache.length == 19, "its fork grew"
    wide = runtime(prefill_chunk=2)
    context = context_of(wide, 19)
    context.policy = policy  # type: ignore[assignment]
    policy.steps.clear()
    assert len(score(wide, context, MORE)) == 8
    assert policy.steps == [21, 23, 25, 27], "no more rows than a call takes"


@pytest.mark.parametrize("cached", [0, 7, 20])
def test_a_prompt_s_own_scores(cached: int) -> None:
    on = runtime()
    context = context_of(on, cached)
    on.forwards.clear()
    found = finish(on, score_prompt(context, 5, 2))
    logits = whole_logits(TEXT)
    assert [int(token) for token in found] == TEXT
    assert (found[0].logprob, found[0].top) == (None, ())
    for i, token in enumerate(found[1:]):
        assert token.logprob == pytest.approx(logprob(logits[i], TEXT[i + 1]))
        assert token.top == tuple(top_logprobs(logits[i], 2))
    assert len(on.forwards) == 4  # 19 rows, 5 at a time, whatever was cached
    assert saved(context.cache) == saved(cache_of(TEXT[:19]))


def test_a_prompt_s_logits_fit_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scoring._MOST_LOGITS * 4 == 32 << 20
    for most, calls in ((13 * 4, 5), (13 * 5 - 1, 5), (13 * 99, 2), (1, 19)):
        monkeypatch.setattr(scoring, "_MOST_LOGITS", most)
        on = runtime()
        assert len(finish(on, score_prompt(context_of(on), 10, 0))) == 20
        assert on.calls == calls


def test_what_has_no_scores_of_its_prompt() -> None:
    on = runtime()
    with pytest.raises(UsageError, match="nothing to score"):
        finish(on, score_prompt(context_of(on, ids=[]), 5, 0))
    context = context_of(on)
    context.policy = Stepwise()  # type: ignore[assignment]
    with pytest.raises(UsageError, match="go without --cache"):
        finish(on, score_prompt(context, 5, 0))


def test_a_loop_comes_after_the_scores_of_its_prompt() -> None:
    on, stats, told = runtime(), Stats(cached=7), list[Any]()
    context = context_of(on)

    def loop() -> Any:
        assert told, "scored first"
        stats.cached = 19  # by the cache that scoring left
        yield from ()

    assert list(run_loop(on, scored(loop(), context, stats, 5, 1, told.append))) == []
    assert [len(tokens) for tokens in told] == [20]
    assert stats.cached == 0


# ── many texts ──


def test_scores_in_a_batch_are_those_of_one_call() -> None:
    on, told = runtime(), list[int]()
    texts = [(TEXT, MORE), (TEXT[:1], MORE[:7]), (TEXT[:7], MORE[:1]), (TEXT[:8], [])]
    texts.append((TEXT, [int(whole_logits(TEXT)[-1].argmax())]))
    second = int(whole_logits([*TEXT, texts[-1][1][0]])[-1].argmax())
    texts += [(TEXT, [texts[-1][1][0], second]), (TEXT, [texts[-1][1][0], (second + 1) % 13])]
    found = score_all(on, texts, 3, progress=lambda: told.append(on.calls))
    for (text, ids), one in zip(texts, found, strict=True):
        logits = whole_logits([*text, *ids])
        rows = logits[len(text) - 1 :]
        assert one.logprob == pytest.approx(sum(logprob(row, token) for row, token in zip(rows, ids, strict=False)))
        assert one.greedy == all(int(row.argmax()) == token for row, token in zip(rows, ids, strict=False))
    assert [one.greedy for one in found[-4:]] == [True, True, True, False]
    assert found[3] == Scored(0.0, True)
    assert len(told) == len(texts), "told once for each"
    assert max(on.forwards) == 3


def test_a_text_of_a_batch_has_the_room_that_it_needs() -> None:
    """The last token is scored, not run."""
    on = FakeRuntime(tiny_spec(context_length=64))
    (one,) = score_all(on, [([1] * 60, [2, 3, 4, 5, 6])])
    assert one.logprob < 0
    sizes: list[int] = []
    make = on.new_cache
    on.new_cache = lambda capacity: (sizes.append(capacity), make(capacity))[1]  # type: ignore[method-assign, func-returns-value]
    score_all(on, [(TEXT, MORE), (TEXT, [1]), (TEXT, [])])
    assert sizes == [27, 20, 20]
    with pytest.raises(UsageError, match="nothing to score after"):
        score_all(on, [([], [1])])


def test_later_texts_continue_from_those_of_a_batch() -> None:
    """From all that was run of them: the text, and the tokens but the last."""
    on = FakeRuntime(tiny_spec(context_length=128))
    prefixes = SharedPrefixes(on.capabilities)
    score_all(on, [(TEXT * 4, MORE)], prefixes=prefixes)
    assert prefixes.find(context_of(on, ids=[*TEXT * 4, *MORE, 1])).n == 80 + 7


def test_an_error_of_a_text_of_a_batch_is_raised() -> None:
    class Refusing(FakeRuntime):
        def forward(self, calls: Any) -> Any:
            raise ContextFull("no room")

    with pytest.raises(ContextFull, match="no room"):
        score_all(Refusing(tiny_spec()), [(TEXT, MORE)])
