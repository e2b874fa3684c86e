"""Which texts continue from others' caches: how long a common beginning must be, and what is held and let go."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.cache import HostCache
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Token
from edgedec.decoding.sharing import FoundPrefix, ModelPrefixes, SharedPrefixes
from edgedec.runtime import Call, Capabilities, Rows, forward_one
from edgedec.testing.fakes import FakeRuntime, tiny_spec

TEXT = [i * i % 13 for i in range(100)]
COPIED, SHARED = Capabilities((), ()), Capabilities((), (), page_slots=16)


class Paged(HostCache):
    """Says that it has pages, those of a fork first its original's."""

    pages: tuple[int, ...] = ()

    def page_ids(self) -> Any:
        return np.array(self.pages[: -(-self.length // 16)], np.int64)

    def fork(self, length: int | None = None, capacity: int | None = None) -> Any:
        twin = super().fork(length, capacity)
        twin.__class__, twin.pages = Paged, self.pages
        return twin


def context_of(n: int = 0, ids: list[int] = TEXT, pages: tuple[int, ...] = (), key: str = "") -> Context:
    """A text of which the first n tokens are read."""
    runtime = FakeRuntime(tiny_spec(context_length=256))
    cache: Any = runtime.new_cache(200)
    cache.__class__, cache.pages = Paged, pages
    context = Context(list(ids), len(ids), cache)
    context.adapter = SimpleNamespace(digest=key) if key else None  # type: ignore[assignment]
    if n:
        forward_one(runtime, Call(Rows.chain(ids[:n], 0), cache))
        cache.commit(range(n))
    return context


@pytest.mark.parametrize(("can", "least"), [(COPIED, 64), (SHARED, 8)])
def test_how_long_a_common_beginning_must_be(can: Capabilities, least: int) -> None:
    prefixes = SharedPrefixes(can)
    assert not prefixes.keep(context_of(80), least - 1)
    assert len(prefixes) == 0
    assert prefixes.keep(context_of(80), least)
    assert [cache.length for cache in prefixes.caches()] == [least]
    assert prefixes.find(context_of()).n == least
    assert prefixes.find(context_of(ids=TEXT[:least])).n == least - 1, "the last token must run"
    for cached, expected in ((0, least), (1, 1)):
        text = context_of(cached)
        prefixes.reuse(text)
        assert text.cache.length == expected
    other = context_of(key="adapter")
    prefixes.reuse(other)
    assert other.cache.length == 0


def test_what_is_held_counts_each_page_once() -> None:
    prefixes = SharedPrefixes(SHARED)
    assert prefixes.held() == 0
    prefixes.keep(context_of(40, pages=(0, 1, 2)), 40)
    prefixes.keep(context_of(40, [*TEXT[:20], *[1] * 20], pages=(0, 3, 4)), 40)
    assert prefixes.held() == 5 * 16
    copied = SharedPrefixes(COPIED)
    copied.keep(context_of(80), 70)
    copied.keep(context_of(80, TEXT[::-1]), 80)
    assert copied.held() == 150
    copied.evict(lambda: copied.held() <= 80)
    assert [cache.length for cache in copied.caches()] == [80], "the older one goes first"
    copied.evict(lambda: False)
    assert len(copied) == 0


class Offload:
    """Stored prefixes by hand."""

    def __init__(self, n: int) -> None:
        self.n, self.kept, self.loaded = n, list[Any](), list[int]()

    def find(self, ids: Any, key: str) -> Any:
        return ("stored", self.n) if self.n else (None, 0)

    def keep(self, ids: Any, cache: Any, key: str) -> None:
        self.kept.append(list(ids))

    def load(self, stored: Any, n: int, like: Any) -> Any:
        self.loaded.append(n)
        return context_of(n).cache


@pytest.mark.parametrize(("stored", "expected"), [(0, 30), (37, 30), (38, 38)])
def test_a_stored_prefix_must_be_so_much_longer(stored: int, expected: int) -> None:
    offload: Any = Offload(stored)
    prefixes = SharedPrefixes(SHARED, offload)
    prefixes.keep(context_of(30), 30)
    found, text = prefixes.find(context_of()), context_of()
    assert (found.n, found.stored is not None) == (expected, stored == 38)
    prefixes.reuse(text)
    assert text.cache.length == expected
    assert offload.loaded == ([38] if stored == 38 else [])
    prefixes.evict(lambda: False)
    assert offload.kept == [TEXT[:30]]


def test_a_beginning_that_memory_is_short_for_is_read() -> None:
    prefixes, text = SharedPrefixes(SHARED), context_of(40)

    def short(*_: Any) -> Any:
        raise MemoryError

    prefixes.keep(text, 30)
    (held,) = prefixes.caches()
    held.fork = short  # type: ignore[method-assign]
    fresh = context_of()
    prefixes.reuse(fresh)
    assert fresh.cache.length == 0
    prefixes.reuse(fresh, FoundPrefix(None, 30))
    assert fresh.cache.length == 0
    text.cache.fork = short  # type: ignore[method-assign]
    assert not prefixes.keep(text, 40)


# ── of a model's sessions ──


def told(context: Context, n: int, ended: list[str]) -> Generator[Token]:
    """Reads the prompt and goes on with n tokens."""
    runtime = FakeRuntime(tiny_spec(context_length=256))
    try:
        for token in range(n):
            cache = context.cache
            rows = Rows.chain(context.ids[cache.length :], cache.length)
            forward_one(runtime, Call(rows, cache))
            cache.commit(range(len(rows)))
            context.ids.append(token)
            yield Token(token)
    finally:
        ended.append("closed")


def test_a_prompt_is_shared_once_read_and_the_text_at_its_end() -> None:
    prefixes, ended = ModelPrefixes(SHARED, 1000), list[str]()
    context = context_of(ids=TEXT[:40])
    tokens = prefixes.share(context, told(context, 12, ended))
    assert len(prefixes.shared) == 0
    next(tokens)
    assert [cache.length for cache in prefixes.shared.caches()] == [32], "whole pages"
    assert len(list(tokens)) == 11
    assert [cache.length for cache in prefixes.shared.caches()] == [48]
    assert ended == ["closed"]
    second = context_of(ids=TEXT[:40])
    assert len(list(prefixes.share(second, told(second, 2, ended)))) == 2
    assert second.ids[40:] == [0, 1]
    third = context_of(ids=TEXT[:36])
    prefixes.share(third, told(third, 1, ended))
    assert third.cache.length == 35, "its last token runs"


@pytest.mark.parametrize(("have", "n", "reused"), [(0, 16, False), (0, 17, True), (10, 26, False), (10, 27, True)])
def test_a_text_looks_for_a_beginning_if_a_page_of_it_is_pending(have: int, n: int, reused: bool) -> None:
    prefixes, looked = ModelPrefixes(SHARED, 1000), list[int]()
    prefixes.shared.reuse = lambda context, match=None: looked.append(len(context.ids))  # type: ignore[method-assign]
    context = context_of(have, TEXT[:n])
    prefixes.share(context, told(context, 1, []))
    assert looked == ([n] if reused else [])


def test_no_more_is_held_than_allowed() -> None:
    def held(most: int, *texts: int) -> list[int]:
        prefixes = ModelPrefixes(SHARED, most)
        for i, n in enumerate(texts):
            context = context_of(ids=[i, *TEXT[: n - 1]], pages=tuple(range(9 * i, 9 * i + 9)))
            list(prefixes.share(context, told(context, 1, [])))
        return sorted(cache.length for cache in prefixes.shared.caches())

    assert held(1000, 40, 50) == [32, 48]
    assert held(80, 40, 50) == [32, 48]
    assert held(79, 40, 50) == [48]
    assert held(47, 40, 50) == [32], "one that is too long is not held"
    assert held(48, 50) == [48]
    assert held(1000, 12) == []
    assert held(0, 40) == []


def test_who_shares_nothing() -> None:
    copied, shared = ModelPrefixes(COPIED, 1000), ModelPrefixes(SHARED, 1000)
    context = context_of(ids=TEXT[:40])
    tokens = told(context, 1, [])
    assert copied.share(context, tokens) is tokens
    context.policy = SimpleNamespace()  # type: ignore[assignment]
    assert shared.share(context, tokens) is tokens
