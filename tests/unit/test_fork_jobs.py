"""A job of a batch that holds several forks of one text: a small beam search beside the same search alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Completed, DecodeLoop, DraftedStep, ForkLoop, Together, Token, Waiting
from edgedec.decoding.runner import _parts, run_loop
from edgedec.decoding.scheduler import batch as batches
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters.off import Off
from edgedec.runtime import ALL_LOGITS, Call, Rows, logits_of
from edgedec.testing.fakes import FakeRuntime

WIDTH, LENGTH, PROMPT = 3, 6, [3, 1, 4, 1, 5]


def logprobs(logits: Any) -> Any:
    row = logits[-1].astype(np.float64)
    return row - np.log(np.exp(row - row.max()).sum()) - row.max()


def beams(context: Context, forks: list[Context]) -> ForkLoop:
    """The WIDTH likeliest texts step by step; yields the tokens of the best at its end."""
    done = yield Call(Rows.chain(context.ids, 0), context.cache, outputs=ALL_LOGITS)
    context.cache.commit(range(len(context.ids)))
    first = logprobs(done.result.logits)
    alive = [(first[t], [int(t)]) for t in np.argsort(-first)[:WIDTH]]
    forks[:] = [context.fork() for _ in alive]
    for _ in range(LENGTH - 1):
        calls = [
            Call(Rows.chain(text[-1:], fork.cache.length), fork.cache, outputs=ALL_LOGITS)
            for (_, text), fork in zip(alive, forks, strict=True)
        ]
        answers: list[Completed] = yield Together(calls)
        assert len(answers) == WIDTH
        found = []
        for i, ((score, text), answer) in enumerate(zip(alive, answers, strict=True)):
            forks[i].cache.commit([0])
            scores = logprobs(answer.result.logits)
            found += [(score + scores[t], [*text, int(t)], i) for t in np.argsort(-scores)[:WIDTH]]
        best = sorted(found, key=lambda item: -item[0])[:WIDTH]
        forks[:] = [forks[i].fork() for _, _, i in best]
        alive = [(score, text) for score, text, _ in best]
    for token in alive[0][1]:
        yield Token(token)


def searched_alone(runtime: FakeRuntime) -> list[int]:
    """The same search without caches: every text is read whole."""
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(LENGTH):
        found = []
        for score, text in alive:
            ids = PROMPT + text
            scores = logprobs(logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(64)))
            found += [(score + scores[t], [*text, int(t)]) for t in np.argsort(-scores)[:WIDTH]]
        alive = sorted(found, key=lambda item: -item[0])[:WIDTH]
    return alive[0][1]


def test_a_search_shares_forwards_with_other_texts() -> None:
    runtime = FakeRuntime()
    batch, context, forks = Batch(runtime), Context(list(PROMPT), len(PROMPT), runtime.new_cache(64)), list[Context]()
    tokens: list[Token | None] = []
    job = batch.add(context, beams(context, forks), tokens.append, need=64)
    job.forks = forks
    plain = Context([2, 7], 2, runtime.new_cache(64))
    config, beside = GenerationConfig(max_tokens=LENGTH), list[Token | None]()
    batch.add(plain, decode_loop(plain, config, Off()), beside.append, need=16)
    runtime.forwards.clear()
    batch.run()
    assert WIDTH + 1 in runtime.forwards  # the forks' calls and the other text's, in one forward
    assert tokens == [*searched_alone(runtime), None]
    alone = Context([2, 7], 2, runtime.new_cache(64))
    assert beside == [*run_loop(runtime, decode_loop(alone, config, Off())), None]
    assert len(job.caches) == WIDTH + 1


def test_a_batch_in_which_all_texts_wait_pauses_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, naps, looks = FakeRuntime(), list[float](), iter([False, False, True])
    monkeypatch.setattr(batches, "sleep", naps.append)
    context, ends = Context([1, 2], 2, runtime.new_cache(8)), list[Token | None]()

    def waits() -> DecodeLoop:
        yield Waiting(lambda: next(looks))

    batch = Batch(runtime)
    batch.add(context, waits(), ends.append, 8)
    batch.run()
    assert ends == [None]
    assert next(looks, None) is None, "it was looked at until it was ready"
    assert naps == [5e-4] * 2, "not once nothing is left to do"


def test_calls_share_a_forward_as_far_as_its_rows_go() -> None:
    native: Any = None

    def parts(rows: list[int], besides: int = 0, most: int = 6) -> list[list[int]]:
        steps = [DraftedStep(native, n) for n in rows]
        return [[step.rows for step in part] for part in _parts(steps, besides, most)]

    assert parts([3, 4, 2, 9, 1, 1]) == [[3], [4, 2], [9], [1, 1]]
    assert parts([1, 2, 3]) == [[1, 2, 3]]
    assert parts([1, 2, 3], besides=2) == [[1, 2], [3]], "rows of other steps are in the first one"
    assert parts([4, 3], besides=5) == [[4], [3]], "whatever is besides, a call runs"
