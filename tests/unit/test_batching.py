"""Texts that step together are what each of them is alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.decoding.batching import Batch, Job
from edgedec.decoding.context import Context
from edgedec.decoding.loop import Ask, Token, steps
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.runtime.core import Begun, Call, Want, compute, compute_all
from edgedec.runtime.rows import Rows
from edgedec.runtimes import native
from edgedec.sampling import Sampling
from edgedec.testing.fakes import FakeRuntime, Limited, RandomDrafter, tiny_spec

needs_native = pytest.mark.skipif(native.why_not() is not None, reason=f"no native engine: {native.why_not()}")
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
@pytest.mark.parametrize("spec", ["off", "auto", "recycling:fixed=5+copy"])
def test_every_text_is_what_it_is_alone(kv: str, spec: str) -> None:
    """30 texts, 7 at a time, each with its own settings; tokens, log-probabilities and caches to the byte."""
    model = edgedec.open("nano", engine="native", kv=kv, threads=2)
    batch = Batch(model.runtime, most=7)
    sessions, told, alone = [], [], []
    for i in range(30):
        prompt, options = model.tokenizer.encode(PROMPTS[i % len(PROMPTS)]), WAYS[i % len(WAYS)]
        session, tokens = model.session(spec=spec), list[Token | None]()
        session.submit(batch, prompt, tokens.append, **options)
        sessions.append(session)
        told.append(tokens)
        single = model.session(spec="off")
        alone.append((list(single.tokens(prompt, **options)), single))
    batch.run()
    for session, tokens, (expected, single) in zip(sessions, told, alone, strict=True):
        assert tokens[-1] is None
        assert tokens[:-1] == expected
        assert [t.logprob for t in tokens[:-1] if t is not None] == [t.logprob for t in expected]
        assert session.finish_reason == single.finish_reason
        np.testing.assert_array_equal(session._context.cache.save(), single._context.cache.save())


@needs_native
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_calls_together_say_what_each_says_alone(data: st.DataObject) -> None:
    runtime = edgedec.open("nano", engine="native", kv="int8", threads=2).runtime
    vocab, calls, alone = runtime.spec.vocab_size, [], []
    for _ in range(data.draw(st.integers(2, 6))):
        n = data.draw(st.integers(1, 9))
        tokens = data.draw(st.lists(st.integers(0, vocab - 1), min_size=n, max_size=n))
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
        want = Want(data.draw(st.booleans()), data.draw(st.sampled_from([0, 1, 8])), data.draw(st.booleans()))
        skip = data.draw(st.integers(0, n - 1))
        for group in (calls, alone):
            cache = runtime.new_cache(64)
            compute(runtime, Rows.chain([5, 6, 7], 0), cache, 2, Want())
            cache.keep(range(3))
            group.append(Call(Rows.tree(tokens, parents, 3), cache, skip, want))
    together = compute_all(runtime, calls)
    for found, call, single in zip(together, calls, alone, strict=True):
        expected = compute(runtime, *single)
        for name in ("logits", "ids", "hidden"):
            a, b = getattr(found, name), getattr(expected, name)
            assert (a is None) == (b is None), name
            if a is not None:
                np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(call.cache.data, single.cache.data)


@needs_native
def test_begun_rows_may_be_among_them() -> None:
    runtime = edgedec.open("nano", engine="native", threads=1).runtime
    calls = []
    for begin in (False, True, False):
        cache, rows = runtime.new_cache(16), Rows.chain([3, 4, 5], 0)
        begun = Begun(runtime.run(runtime.embed(rows.tokens), rows, cache, range(8)), 8) if begin else None
        calls.append(Call(rows, cache, 0, Want(), begun))
    first, second, third = (output.logits for output in compute_all(runtime, calls))
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)


def fake(prompt: list[int], n: int, runtime: FakeRuntime, seed: int = 0) -> tuple[Context, Any]:
    context = Context(list(prompt), len(prompt), runtime.new_cache(60), rng=np.random.default_rng(1))
    return context, steps(context, Ask(Sampling(), n), Limited(RandomDrafter(seed), 4))


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.tuples(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(0, 20)), max_size=9),
    most=st.integers(1, 5),
    room=st.integers(1, 90),
    cancelled=st.sets(st.integers(0, 8)),
)
def test_who_comes_and_goes_changes_nothing_for_the_others(
    texts: list[tuple[list[int], int]], most: int, room: int, cancelled: set[int]
) -> None:
    runtime = FakeRuntime(tiny_spec())
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
        from edgedec.decoding.loop import decode

        expected = list(decode(runtime, context, Ask(Sampling(), n), Off()))
        assert told[i][-1] is None
        assert told[i].count(None) == 1
        mine = told[i][:-1]
        assert mine == (expected[: len(mine)] if i in cancelled else expected)


def test_one_that_fails_says_so_and_the_others_go_on() -> None:
    runtime = FakeRuntime(tiny_spec())
    batch = Batch(runtime)
    told: list[list[Token | None]] = [[], []]
    bad_context = Context([], 0, runtime.new_cache(8))
    bad = batch.add(bad_context, steps(bad_context, Ask(), Off()), told[0].append, 1)
    context, loop = fake([1, 2], 5, runtime)
    good = batch.add(context, loop, told[1].append, 7)
    batch.run()
    assert isinstance(bad.error, UsageError)
    assert told[0] == [None]
    assert good.error is None
    assert len(told[1]) == 6
