"""Texts that step together are what each of them is alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import decode

import edgedec
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Token, Waiting
from edgedec.decoding.runner import run_requests
from edgedec.decoding.scheduler.batch import Batch, Job
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import ALL_LOGITS, Call, Outputs, Rows, forward_one
from edgedec.sampling import Sampling
from edgedec.testing.fakes import FakeRuntime, Limited, RandomDrafter, tiny_spec

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
PROMPTS = [
    "Once upon a time",
    "Tom and Lily",
    "Say it again.\n\nThe fox ran to the barn.\n\nAgain:\n\n",
    "One day",
    "the the the the",
    "def add(a, b):\n    return a",
]
WAYS: list[dict[str, Any]] = [
    {"max_tokens": 40},
    {"max_tokens": 25, "sampling": Sampling(temperature=0.8, top_p=0.9, seed=3)},
    {"max_tokens": 33, "sampling": Sampling(repetition_penalty=1.3), "logprobs": 2},
    {"max_tokens": 1},
    {"max_tokens": 50, "ignore_eos": True},
]


@needs_native
@pytest.mark.parametrize("kv", ["f32", "int8", "int4"])
@pytest.mark.parametrize("speculate", ["off", "auto", "recycling:fixed=5+copy"])
def test_every_text_is_what_it_is_alone(kv: str, speculate: str) -> None:
    """30 texts, 7 at a time, each with its own settings; tokens, log-probabilities and caches to the byte."""
    model = edgedec.open("nano", engine="native", kv=kv, threads=2)
    batch = Batch(model.runtime, most=7)
    sessions, told, alone = [], [], []
    for i in range(30):
        prompt, options = model.tokenizer.encode(PROMPTS[i % len(PROMPTS)]), WAYS[i % len(WAYS)]
        session, tokens = model.session(speculate=speculate), list[Token | None]()
        session.submit(batch, prompt, tokens.append, **options)
        sessions.append(session)
        told.append(tokens)
        single = model.session(speculate="off")
        alone.append((list(single.tokens(prompt, **options)), single))
    batch.run()
    if "fixed" in speculate:
        assert sum(session.stats.accepted for session in sessions) > 30
    for session, tokens, (expected, single) in zip(sessions, told, alone, strict=True):
        assert tokens[-1] is None
        assert tokens[:-1] == expected
        assert [t.logprob for t in tokens[:-1] if t is not None] == [t.logprob for t in expected]
        assert session.finish_reason == single.finish_reason
        mine, theirs = session._context.cache.save(), single._context.cache.save()
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


@needs_native
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_calls_together_say_what_each_says_alone(data: st.DataObject) -> None:
    """Whole stacks, slices and resumed rows, of any trees and any outputs: bytes."""
    runtime = edgedec.open("nano", engine="native", kv="int8", threads=2).runtime
    vocab, n_blocks, calls, alone = runtime.spec.vocab_size, runtime.spec.n_blocks, [], []
    for _ in range(data.draw(st.integers(2, 6))):
        n = data.draw(st.integers(1, 9))
        tokens = data.draw(st.lists(st.integers(0, vocab - 1), min_size=n, max_size=n))
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
        stop = data.draw(st.sampled_from([n_blocks, 9]))
        start = data.draw(st.integers(0, stop - 2))
        hidden = np.random.default_rng(n).standard_normal((n, runtime.spec.hidden_size), np.float32) if start else None
        states = (stop - 1,) if data.draw(st.booleans()) and stop > start else ()
        top, skip = data.draw(st.sampled_from([0, 1, 8])), data.draw(st.integers(0, n - 1))
        wanted = Outputs(data.draw(st.booleans()), top, False, states, logits_from=skip)
        for group in (calls, alone):
            cache = runtime.new_cache(64)
            forward_one(runtime, Call(Rows.chain([5, 6, 7], 0), cache))
            cache.commit(range(3))
            group.append(Call(Rows.tree(tokens, parents, 3), cache, range(start, stop), hidden, wanted))
    together = runtime.forward(calls)
    for found, call, single in zip(together, calls, alone, strict=True):
        expected = forward_one(runtime, single)
        for name in ("logits", "ids"):
            a, b = getattr(found, name), getattr(expected, name)
            assert (a is None) == (b is None), name
            if a is not None:
                np.testing.assert_array_equal(a, b)
        assert found.hidden.keys() == expected.hidden.keys()
        for block, values in expected.hidden.items():
            np.testing.assert_array_equal(found.hidden[block], values)
        for each in (call, single):
            each.cache.commit(range(len(each.rows)))
        mine, theirs = call.cache.save(), single.cache.save()
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


@needs_native
def test_resumed_rows_may_be_among_them() -> None:
    runtime = edgedec.open("nano", engine="native", threads=1).runtime
    calls, n = [], runtime.spec.n_blocks
    for begin in (False, True, False):
        cache, rows = runtime.new_cache(16), Rows.chain([3, 4, 5], 0)
        hidden = None
        if begin:
            hidden = forward_one(runtime, Call(rows, cache, range(8), outputs=Outputs(hidden=(7,)))).hidden[7]
        calls.append(Call(rows, cache, range(8, n) if begin else None, hidden, ALL_LOGITS))
    first, second, third = (result.logits for result in runtime.forward(calls))
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)


def fake(prompt: list[int], n: int, runtime: FakeRuntime, seed: int = 0) -> tuple[Context, Any]:
    context = Context(list(prompt), len(prompt), runtime.new_cache(60), rng=np.random.default_rng(1))
    config = GenerationConfig(max_tokens=n)
    return context, decode_loop(context, config, Limited(RandomDrafter(seed), 4), capabilities=runtime.capabilities)


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.tuples(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(0, 20)), max_size=9),
    most=st.integers(1, 5),
    room=st.integers(1, 90),
    cancelled=st.sets(st.integers(0, 8)),
    largest=st.sampled_from([4, 9, 256]),
)
def test_who_comes_and_goes_changes_nothing_for_the_others(
    texts: list[tuple[list[int], int]], most: int, room: int, cancelled: set[int], largest: int
) -> None:
    """However many rows the runtime takes in one forward."""
    runtime = FakeRuntime(tiny_spec(), largest_call=largest, prefill_chunk=min(largest, 128))
    batch = Batch(runtime, tokens=room, most=most)
    told: list[list[Token | None]] = [[] for _ in texts]
    jobs: list[Job] = []
    for i, (prompt, n) in enumerate(texts):
        context, loop = fake(prompt, n, runtime, i)
        jobs.append(batch.add(context, loop, told[i].append, len(prompt) + n))
    step = 0
    while batch.step():
        step += 1
        for i in cancelled:
            if i < len(jobs) and step == i % 4:
                batch.cancel(jobs[i])
    assert len(batch) == 0
    for i, (prompt, n) in enumerate(texts):
        context, _ = fake(prompt, n, runtime)
        expected = list(decode(runtime, context, GenerationConfig(max_tokens=n), Off()))
        assert told[i][-1] is None
        assert told[i].count(None) == 1
        mine = told[i][:-1]
        assert mine == (expected[: len(mine)] if i in cancelled else expected)


def test_texts_are_run_together() -> None:
    runtime = FakeRuntime(tiny_spec())
    batch, told = Batch(runtime), [list[Token | None]() for _ in range(5)]
    for i in range(5):
        context, loop = fake([1, 2, i], 6, runtime, i)
        batch.add(context, loop, told[i].append, 9)
    batch.run()
    assert runtime.forwards[0] == 5
    assert len(runtime.forwards) <= 6


def test_calls_of_more_rows_than_fit_are_run_in_parts() -> None:
    runtime = FakeRuntime(tiny_spec(), largest_call=5, prefill_chunk=5)
    calls = [Call(Rows.chain([1] * n, 0), runtime.new_cache(8), outputs=ALL_LOGITS) for n in (2, 3, 1, 5, 2, 2)]
    done = run_requests(runtime, calls)
    assert runtime.forwards == [2, 1, 1, 2]
    assert [completed.rows for completed in done] == [5, 5, 1, 5, 4, 4]
    for call, completed in zip(calls, done, strict=True):
        alone = forward_one(runtime, call._replace(cache=runtime.new_cache(8))).logits
        assert completed.result.logits is not None
        assert np.array_equal(completed.result.logits, alone)
    with pytest.raises(UsageError, match=r"6 rows in one forward: this runtime takes 5"):
        run_requests(runtime, [Call(Rows.chain([1] * 6, 0), runtime.new_cache(8))])


def test_one_that_fails_says_so_and_the_others_go_on() -> None:
    runtime = FakeRuntime(tiny_spec())
    batch = Batch(runtime)
    told: list[list[Token | None]] = [[], []]
    bad_context = Context([], 0, runtime.new_cache(8))
    bad = batch.add(bad_context, decode_loop(bad_context, GenerationConfig(), Off()), told[0].append, 1)
    context, loop = fake([1, 2], 5, runtime)
    good = batch.add(context, loop, told[1].append, 7)
    batch.run()
    assert isinstance(bad.error, UsageError)
    assert told[0] == [None]
    assert good.error is None
    assert len(told[1]) == 6


def test_one_that_fails_while_it_waits_for_its_constraint_is_let_go_of() -> None:
    """At once: a server does not step a batch of which nobody waits for a text."""
    runtime, told = FakeRuntime(tiny_spec()), list[Token | None]()
    batch, context, ready = Batch(runtime), Context([1], 1, runtime.new_cache(8)), list[int]()

    def failing() -> Any:
        yield Waiting(lambda: bool(ready))
        raise UsageError("its worker was killed")

    job = batch.add(context, failing(), told.append, 1)
    assert batch.step()
    assert (job.parked, batch.running) == (True, 1)
    ready.append(1)
    batch.step()
    assert (str(job.error), told, batch.running) == ("its worker was killed", [None], 0)


def test_idle_prefixes_of_a_runtime_without_pages_count_and_are_evicted() -> None:
    """A text that begins as one that ended continues from a copy; when others need the room it is let go."""
    runtime = FakeRuntime(tiny_spec(context_length=400))
    batch, ids = Batch(runtime, tokens=250), [i % 13 for i in range(100)]

    def finish(prompt: list[int]) -> int:
        context = Context(list(prompt), len(prompt), runtime.new_cache(200), rng=np.random.default_rng(1))
        before = runtime.rows
        batch.add(
            context, decode_loop(context, GenerationConfig(max_tokens=3), Off()), lambda t: None, 110, shares=True
        )
        batch.run()
        alone = Context(list(prompt), len(prompt), FakeRuntime(tiny_spec(context_length=400)).new_cache(200))
        assert context.ids[len(prompt) :] == list(decode(runtime, alone, GenerationConfig(max_tokens=3), Off()))
        return runtime.rows - before - len(prompt) - 2

    assert finish([*ids, 5]) == 101 + 2
    assert finish([*ids, 7]) < 20
    assert batch.held() <= 250
    assert finish([12 - token for token in ids] + [1]) > 90
    assert finish([*[3] * 100, 1]) > 90
    assert batch.held() <= 250
    assert len(batch.prefixes) < 4
