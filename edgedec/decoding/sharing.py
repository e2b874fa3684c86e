"""Prefix sharing: a text with the same prefix as another one, running or ended, continues from its pages instead of
reading the prefix again. The rules are here; the index is `cache.prefixes`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from threading import RLock
from typing import NamedTuple

import numpy as np

from edgedec.cache import Cache
from edgedec.cache.offload import Offload, StoredPrefix
from edgedec.cache.prefixes import PrefixIndex
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Token
from edgedec.runtime import Capabilities, rope_key

# A common prefix of fewer tokens is read again: where sharing copies a cache, and where it shares pages.
_LEAST_COPIED, _LEAST_SHARED = 64, 8


def adapter_key(context: Context) -> str:
    """The key that texts must have in common, besides their tokens, to share a cache that is found."""
    return _adapter(context) + rope_key(context.cache, len(context.ids))


def _adapter(context: Context) -> str:
    return "" if context.adapter is None else context.adapter.digest


class FoundPrefix(NamedTuple):
    """A cache with the first `n` tokens of a text: in memory, or offloaded (`stored`)."""

    cache: Cache | None = None
    n: int = 0
    stored: StoredPrefix | None = None


class SharedPrefixes:
    """The prefixes that texts of one runtime can continue from; safe for any number of threads. offload: where evicted
    prefixes are stored."""

    def __init__(self, capabilities: Capabilities, offload: Offload | None = None) -> None:
        self._index, self._lock, self.offload = PrefixIndex[Cache](), RLock(), offload
        self._slots = capabilities.page_slots
        self.least = _LEAST_SHARED if self._slots else _LEAST_COPIED

    def __len__(self) -> int:
        """The number of caches that are held."""
        with self._lock:
            return len(self._index)

    def caches(self) -> Iterator[Cache]:
        """The caches that are held."""
        with self._lock:
            return iter(list(self._index.caches()))

    def held(self) -> int:
        """Tokens of cache that are held, each page once."""
        caches = list(self.caches())
        if not self._slots:
            return sum(cache.length for cache in caches)
        pages = [cache.page_ids() for cache in caches]
        return self._slots * len(np.unique(np.concatenate([*pages, np.zeros(0, np.int64)])))

    def find(self, context: Context) -> FoundPrefix:
        """The cache with the longest prefix of a text, and its length: at most all but the last token, which must
        run."""
        ids, key = context.ids[:-1], adapter_key(context)
        with self._lock:
            found = FoundPrefix(*self._index.match(ids, key))
        stored, n = (None, 0) if self.offload is None else self.offload.find(ids, key)
        return FoundPrefix(None, n, stored) if stored is not None and n >= found.n + self.least else found

    def reuse(self, context: Context, match: FoundPrefix | None = None) -> None:
        """Let a text continue from the result of `find`, if that saves enough reading."""
        match = self.find(context) if match is None else match
        if match.n < context.cache.length + self.least:
            return
        forked = self._taken(match, context.cache)
        if forked is not None and forked.length > context.cache.length:
            context.cache = forked

    def _taken(self, match: FoundPrefix, like: Cache) -> Cache | None:
        """A cache that begins with the found prefix; None if memory is short: the text is then read again."""
        try:
            if match.stored is not None and self.offload is not None:
                return self.offload.load(match.stored, match.n, like)
            return None if match.cache is None else match.cache.fork(match.n, like.capacity)
        except MemoryError:
            return None

    def keep(self, context: Context, n: int) -> bool:
        """Hold a text's first `n` tokens, if they are enough; returns whether they are held."""
        try:
            fork = context.cache.fork(n) if n >= self.least else None
        except MemoryError:  # running sequences need the memory more
            return False
        if fork is None or fork.length < self.least:  # a recurrent block may have kept no state there
            return False
        with self._lock:
            self._index.insert(context.ids[: fork.length], fork, _adapter(context) + rope_key(fork))
        return True

    def evict(self, enough: Callable[[], bool], drop: Callable[[Cache], None] = lambda cache: None) -> None:
        """Evict caches, the least recently used first, until `enough()` or none is left; they are offloaded if there is
        an offload store. drop: called with each."""

        def leaving(ids: list[int], cache: Cache, key: str) -> None:
            drop(cache)
            if self.offload is not None:
                self.offload.keep(ids, cache, key)

        with self._lock:
            self._index.evict(enough, leaving)


class ModelPrefixes:
    """The prefixes that sessions of a model continue from, `tokens` at most; only where pages are shared, as a copy
    would take as long as it saves.

    Only whole pages are held, so that a held text continues in a page of its own, without a copy."""

    def __init__(self, capabilities: Capabilities, tokens: int, offload: Offload | None = None) -> None:
        self.shared = SharedPrefixes(capabilities, offload)
        self._page = capabilities.page_slots
        self._tokens = tokens if self._page else 0

    def share(self, context: Context, tokens: Generator[Token]) -> Generator[Token]:
        """The tokens of a text that continues from prefixes of other texts; others can continue from its prompt once
        that is read, and from the whole text at its end."""
        if not self._tokens or not context.shareable:
            return tokens
        if len(context.ids) > context.cache.length + self._page:
            self.shared.reuse(context)
        return self._keeping(context, tokens)

    def _keeping(self, context: Context, tokens: Generator[Token]) -> Generator[Token]:
        with closing(tokens):
            for token in tokens:
                self._keep(context, min(context.cache.length, context.n_prompt))
                yield token
                yield from tokens
            self._keep(context, context.cache.length)

    def _keep(self, context: Context, n: int) -> None:
        """Hold the whole pages of a text's first `n` tokens, and evict others above the limit."""
        whole = n // self._page * self._page
        if 0 < whole <= self._tokens and self.shared.keep(context, whole):
            self.shared.evict(lambda: self.shared.held() <= self._tokens)
