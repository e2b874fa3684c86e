"""The radix index against a list of texts; and batches that continue from the pages of other texts."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from counted import CountedRows
from hypothesis import given, settings
from hypothesis import strategies as st
from python_steps import python_steps

import edgedec
from edgedec.cache import HostCache
from edgedec.cache.prefixes import PrefixIndex, common
from edgedec.decoding.messages import Token
from edgedec.decoding.scheduler.batch import Batch
from edgedec.kernels.cpu import loader
from edgedec.sampling import Sampling
from edgedec.session import Session
from edgedec.testing.fakes import tiny_spec

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
SPEC = tiny_spec()
TEXTS = st.lists(st.integers(0, 2), max_size=7)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3), max_size=300))
def test_common_is_the_longest_common_beginning(a: list[int], b: list[int], begin: list[int]) -> None:
    n = common(a := begin + a, tuple(b := begin + b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


class Naive:
    """Texts in the order of their use; one that another begins with is not held."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, tuple[int, ...]]] = []

    def use(self, entry: tuple[str, tuple[int, ...]]) -> None:
        self.texts.remove(entry)
        self.texts.append(entry)

    def insert(self, key: str, ids: tuple[int, ...]) -> None:
        longer = [entry for entry in self.texts if entry[0] == key and entry[1][: len(ids)] == ids]
        if ids and not longer:
            self.texts = [(k, t) for k, t in self.texts if k != key or ids[: len(t)] != t]
            self.texts.append((key, ids))

    def longest(self, key: str, ids: Sequence[int]) -> int:
        return max((common(ids, text) for k, text in self.texts if k == key), default=0)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["insert", "insert", "match", "evict"]), TEXTS, st.sampled_from(["", "a"]))))
def test_the_index_is_the_list(steps: list[tuple[str, list[int], str]]) -> None:
    index, naive, texts = PrefixIndex(), Naive(), dict[int, tuple[str, tuple[int, ...]]]()
    caches = []
    for what, ids, key in steps:
        if what == "insert":
            caches.append(HostCache(SPEC, 1))
            texts[id(caches[-1])] = key, tuple(ids)
            before = [texts[id(cache)] for cache in index.caches()]
            index.insert(ids, caches[-1], key)
            naive.insert(key, tuple(ids))
            covering = [entry for entry in before if entry[0] == key and entry[1][: len(ids)] == tuple(ids)]
            if ids and covering:
                # The text that covers it was used: which of several is the index's choice.
                assert texts[id(caches[-1])] in before or id(caches[-1]) not in map(id, index.caches())
        elif what == "match":
            cache, n = index.match(ids, key)
            assert n == naive.longest(key, ids)
            assert (cache is None) == (n == 0)
            if cache is not None:
                found = texts[id(cache)]
                assert found[0] == key
                assert found[1][:n] == tuple(ids[:n])
        else:
            keep = len(ids) % 3
            index.evict(lambda keep=keep: len(index) <= keep)
            assert len(index) <= keep or keep >= len(naive.texts)
            held = {texts[id(cache)] for cache in index.caches()}
            naive.texts = [entry for entry in naive.texts if entry in held]
        assert sorted(texts[id(cache)] for cache in index.caches()) == sorted(naive.texts)
        assert len(index) == len(naive.texts)


def test_the_least_recently_used_goes_first() -> None:
    index, caches = PrefixIndex(), {name: HostCache(SPEC, 1) for name in "abcd"}
    for i, name in enumerate("abc"):
        index.insert([1, i, i], caches[name])
    assert index.match([1, 0, 0]).cache is caches["a"]
    index.insert([1, 1, 1], caches["d"])  # held already: used
    index.evict(lambda: len(index) <= 2)
    assert {id(cache) for cache in index.caches()} == {id(caches["a"]), id(caches["b"])}
    index.evict(lambda: len(index) <= 1)
    assert [*index.caches()] == [caches["b"]]
    index.clear()
    assert len(index) == 0
    assert index.match([1, 1, 1]) == (None, 0)


def test_a_text_that_grows_takes_the_place_of_its_beginning() -> None:
    """Thousands of turns of one conversation are one leaf, and no deeper a tree."""
    index, ids = PrefixIndex(), list[int]()
    for turn in range(3000):
        ids += [turn % 7, 1]
        index.insert(list(ids), last := HostCache(SPEC, 1))
    assert [*index.caches()] == [last]
    assert index.match(ids) == (last, 6000)
    branches = [[*ids[:at], 9] for at in range(1, 6000, 2)]
    for branch in branches:
        index.insert(branch, HostCache(SPEC, 1))
    assert len(index) == 1 + len(branches)
    assert index.match(ids).n == 6000


@needs_native
@pytest.mark.parametrize("kv", ["f32", "int8", "int4"])
@pytest.mark.parametrize("speculate", ["off", "copy+recycling:fixed=5", "skip:fixed=3"])
def test_one_copy_for_all_and_the_same_texts(kv: str, speculate: str) -> None:
    """12 texts, 5 at a time, after 300 tokens that all have: to the byte what each is alone."""
    model = edgedec.open("nano", engine="native", kv=kv, threads=2)
    system = [token % 4000 + 3 for token in range(0, 9000, 30)]
    python_steps(model.runtime)
    runtime = CountedRows(model.runtime)
    batch, whole = Batch(runtime, most=5), 300 // model.runtime.capabilities.page_slots
    texts: list[tuple[Session, list[Token | None], list[int], dict[str, Any]]] = []
    for i in range(12):
        ids = system + model.tokenizer.encode(f"Tom has {i} apples")
        options: dict[str, Any] = {"max_tokens": 16 + i, "ignore_eos": True}
        if i % 2:
            options["sampling"] = Sampling(temperature=0.8, seed=i)
        texts.append((model.session(speculate=speculate), [], ids, options))
        texts[-1][0].submit(batch, ids, texts[-1][1].append, **options)
    together = 0
    while batch.step():
        pages = [
            tuple(job.context.cache.page_ids()[:whole]) for job in batch._running if job.context.cache.length >= 300
        ]
        together = max(together, len(pages) if len(set(pages)) == 1 else 0)
    assert together >= 4
    if speculate == "off":
        assert runtime.rows < 300 + sum(len(ids) - 300 + options["max_tokens"] for *_, ids, options in texts)
    else:
        assert sum(session.stats.accepted for session, *_ in texts) > 0
    for session, told, ids, options in texts:
        alone = model.session(speculate="off")
        assert told[:-1] == list(alone.tokens(ids, **options))
        mine, theirs = session._context.cache.save(), alone._context.cache.save()
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    assert [session.stats.cached >= 300 for session, *_ in texts].count(True) == 11


@needs_native
def test_what_is_shared_counts_once_for_the_room() -> None:
    """Room for 3 texts of 384 tokens, 320 of them in common: all 8 run at once."""
    model = edgedec.open("nano", engine="native", threads=1)
    batch, system = Batch(model.runtime, tokens=1152), [5] * 160 + [9] * 160
    sessions = [model.session(speculate="off") for _ in range(8)]
    for i, session in enumerate(sessions):
        session.submit(batch, [*system, 20 + i], lambda token: None, max_tokens=60, ignore_eos=True)
    running = []
    while batch.step():
        # Each running text may have written on a page that an idle prefix holds too.
        assert batch.held() <= 1152 + 8 * model.runtime.capabilities.page_slots
        running.append(len(batch._running))
    assert running[0] == 1
    assert max(running) == 8


@needs_native
def test_what_ended_is_continued_from_until_it_is_evicted() -> None:
    """The prefix of a text that ended is not read again; when others need its room it goes."""
    model = edgedec.open("nano", engine="native", threads=1)
    python_steps(model.runtime)
    runtime = CountedRows(model.runtime)
    batch, ids = Batch(runtime, tokens=700), [5 + i % 900 for i in range(320)]
    expected = list(model.session(speculate="off").tokens([*ids, 7], max_tokens=5, ignore_eos=True))

    def finish(tokens: list[int]) -> tuple[int, list[Token | None], Session]:
        before, told, session = runtime.rows, list[Token | None](), model.session(speculate="off")
        session.submit(batch, tokens, told.append, max_tokens=5, ignore_eos=True)
        batch.run()
        return runtime.rows - before, told[:-1], session

    assert finish([*ids, 8])[0] > 320
    rows, told, session = finish([*ids, 7])
    assert rows < 320 // 20
    assert session.stats.cached >= 320
    assert told == expected
    assert len(batch.prefixes) >= 1
    finish([3 + i % 700 for i in range(600)])
    rows, told, _ = finish([*ids, 7])
    assert rows > 320, "evicted when the longer text needed its room"
    assert told == expected


@needs_native
def test_who_is_waited_for_may_leave() -> None:
    model = edgedec.open("nano", engine="native", threads=1)
    batch, told = Batch(model.runtime), list[Token | None]()
    ids = [5 + i % 900 for i in range(600)]
    first = model.session(speculate="off").submit(batch, ids, lambda token: None, max_tokens=5)
    session = model.session(speculate="off")
    session.submit(batch, ids, told.append, max_tokens=5)
    assert batch.step()
    assert not told
    assert batch.running == 1
    batch.cancel(first)
    batch.run()
    assert told[:-1] == list(model.session(speculate="off").tokens(ids, max_tokens=5))


@needs_native
def test_forks_hold_one_copy() -> None:
    model = edgedec.open("nano", engine="native", threads=1)
    session = model.session(speculate="off")
    list(session.tokens(list(range(5, 305)), max_tokens=4))
    twins = [session.fork() for _ in range(3)]
    assert len({tuple(twin._context.cache.page_ids()) for twin in [session, *twins]}) == 1
    expected = list(session.tokens(None, max_tokens=6))
    assert all(list(twin.tokens(None, max_tokens=6)) == expected for twin in twins)


@needs_native
def test_a_batch_that_is_dropped_frees_its_pages_at_once() -> None:
    model = edgedec.open("nano", engine="native", threads=1)
    gc.collect()
    gc.disable()
    try:
        batch = Batch(model.runtime)
        for i in range(3):
            session = model.session(speculate="off")
            session.submit(batch, [*range(5, 205), i + 3], lambda token: None, max_tokens=4, ignore_eos=True)
        batch.run()
        assert len(batch.prefixes) > 0
        assert model.runtime.pages > 0
        del batch, session
        assert model.runtime.pages == 0
    finally:
        gc.enable()
