"""A common beginning is read once and held once, and no text is another for it."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgedec
from edgedec.cache.prefixes import Loan, Prefixes, common
from edgedec.decoding.batching import Batch
from edgedec.decoding.context import Context
from edgedec.decoding.loop import Token
from edgedec.runtime.core import Call, Output
from edgedec.runtimes import native
from edgedec.sampling import Sampling
from edgedec.session import Session
from edgedec.testing.fakes import FakeRuntime, tiny_spec

needs_native = pytest.mark.skipif(native.why_not() is not None, reason=f"no native engine: {native.why_not()}")


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3), max_size=300))
def test_common_is_the_longest_common_beginning(a: list[int], b: list[int], begin: list[int]) -> None:
    n = common(a := begin + a, tuple(b := begin + b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def text(ids: Sequence[int], cached: int, lent: int = 0) -> Context:
    """A text whose first tokens are cached, some of them lent to another already."""
    context = Context(list(ids), len(ids), FakeRuntime(tiny_spec()).new_cache(1000))
    context.cache.shares = True
    context.cache.append(np.zeros((*context.cache.data.shape[:3], cached, context.cache.data.shape[4]), np.float32))
    context.cache._lend(lent)
    return context


A = list(range(300))


@pytest.mark.parametrize(
    ("own", "others", "reading", "found"),
    [
        ((A, 0), [], (), (None, 0)),
        ((A, 0), [(A, 200)], (), (0, 200)),
        ((A, 0), [(A[:50] + A, 200)], (), (None, 0)),  # 50 tokens in common: not worth it
        ((A, 0), [(A, 100), (A, 200)], (), (1, 200)),
        ((A, 0), [(A, 200, 150)], (), (0, 150)),  # what is lent already costs nothing, and 50 more are not worth it
        ((A, 0), [(A, 250, 150)], (), (0, 250)),
        ((A, 120), [(A, 200, 150)], (), (0, 150)),
        ((A, 220), [(A, 200)], (), (0, 200)),  # read twice, but held once
        ((A, 220, 210), [(A, 200)], (), (None, 0)),
        ((A, 0), [(A, 200), (A, 10)], (0, 1), "later"),  # 290 tokens will be there soon
        ((A, 0), [(A, 200), (A, 10)], (0,), "later"),
        ((A, 0), [(A, 250), ([*A[:200], 0], 10)], (0, 1), "later"),
        ((A, 0), [(A, 290)], (0,), (0, 290)),
        ((A, 0), [(A, 10), (A, 290)], (0, 1), (1, 290)),
        ((A, 0), [(A, 200, 150)], (0,), "later"),
        ((A, 0), [(A[:200], 200, 150)], (0,), (0, 150)),
        ((A, 0), [(A, 0)], (), (None, 0)),  # nobody reads it
    ],
)
def test_who_lends(own: Any, others: list[Any], reading: tuple[int, ...], found: Any) -> None:
    known, mine, contexts = Prefixes(), text(*own), [text(*other) for other in others]
    for context in [mine, *contexts]:
        known.add(context)
    loan = known.find(mine, {id(contexts[i]) for i in reading})
    if found == "later":
        assert loan.later
    else:
        lender, n = found
        assert loan == Loan(None if lender is None else contexts[lender], n)


def test_a_text_that_is_gone_lends_nothing() -> None:
    known, mine = Prefixes(), text(A, 0)
    known.add(text(A, 200))
    gc.collect()
    assert known.find(mine, ()) == Loan()


class Counting:
    """A runtime that counts the rows it computes."""

    def __init__(self, runtime: Any) -> None:
        self._runtime, self.rows = runtime, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def call(self, *args: Any) -> Output:
        self.rows += args[0].count
        return self._runtime.call(*args)

    def call_all(self, calls: Sequence[Call]) -> list[Output]:
        self.rows += sum(call.rows.count for call in calls)
        return self._runtime.call_all(calls)


@needs_native
@pytest.mark.parametrize("kv", ["f32", "int8", "int4"])
@pytest.mark.parametrize("spec", ["off", "copy+recycling:fixed=5", "skip:fixed=3"])
def test_one_copy_for_all_and_the_same_texts(kv: str, spec: str) -> None:
    """12 texts, 5 at a time, behind 300 tokens that all have: to the byte what each is alone."""
    model = edgedec.open("nano", engine="native", kv=kv, threads=2)
    system = [token % 4000 + 3 for token in range(0, 9000, 30)]
    runtime = Counting(model.runtime)
    batch = Batch(runtime, most=5)  # type: ignore[arg-type]
    texts: list[tuple[Session, list[Token | None], list[int], dict[str, Any]]] = []
    for i in range(12):
        ids = system + model.tokenizer.encode(f"Tom has {i} apples")
        options: dict[str, Any] = {"max_tokens": 8 + i, "ignore_eos": True}
        if i % 2:
            options["sampling"] = Sampling(temperature=0.8, seed=i)
        texts.append((model.session(spec=spec), [], ids, options))
        texts[-1][0].submit(batch, ids, texts[-1][1].append, **options)
    together = 0
    while batch.step():
        caches = [job.context.cache for job in batch._running if job.context.cache.n_shared >= 300]
        together = max(together, len(caches) if len({id(cache.shared) for cache in caches}) == 1 else 0)
    assert together >= 4
    if spec == "off":
        assert runtime.rows < 300 + sum(len(ids) - 300 + options["max_tokens"] for *_, ids, options in texts)
    for session, told, ids, options in texts:
        alone = model.session(spec="off")
        assert told[:-1] == list(alone.tokens(ids, **options))
        np.testing.assert_array_equal(session._context.cache.save(), alone._context.cache.save())
    assert [session.stats.cached >= 300 for session, *_ in texts].count(True) == 11


@needs_native
def test_what_is_shared_counts_once_for_the_room() -> None:
    """Room for 3 texts of 320 tokens, 300 of them in common: all 8 run at once."""
    model = edgedec.open("nano", engine="native", threads=1)
    batch, system = Batch(model.runtime, tokens=960), [5] * 150 + [9] * 150
    sessions = [model.session(spec="off") for _ in range(8)]
    for i, session in enumerate(sessions):
        session.submit(batch, [*system, 20 + i], lambda token: None, max_tokens=19, ignore_eos=True)
    running = []
    while batch.step():
        running.append(len(batch._running))
    assert running[0] == 1
    assert max(running) == 8


@needs_native
def test_who_is_waited_for_may_leave() -> None:
    model = edgedec.open("nano", engine="native", threads=1)
    batch, told = Batch(model.runtime), list[Token | None]()
    ids = [5 + i % 900 for i in range(600)]
    first = model.session(spec="off").submit(batch, ids, lambda token: None, max_tokens=5)
    session = model.session(spec="off")
    session.submit(batch, ids, told.append, max_tokens=5)
    assert batch.step()
    assert not told
    batch.cancel(first)
    batch.run()
    assert told[:-1] == list(model.session(spec="off").tokens(ids, max_tokens=5))


@needs_native
def test_forks_hold_one_copy() -> None:
    model = edgedec.open("nano", engine="native", threads=1)
    session = model.session(spec="off")
    list(session.tokens(list(range(5, 305)), max_tokens=4))
    twins = [session.fork() for _ in range(3)]
    assert len({id(twin._context.cache.shared) for twin in [session, *twins]}) == 1
    expected = list(session.tokens(None, max_tokens=6))
    assert all(list(twin.tokens(None, max_tokens=6)) == expected for twin in twins)
