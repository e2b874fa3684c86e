"""LongRoPE on any runtime: which of the two sets of frequencies a text has (`edgedec.spec.rope`).

As in transformers, a text of more than `original` tokens has the long set from its first token on: a text that grows
beyond that length is read again. The caller says how long a text is (`suit`) before it is read; a cache that was not
told has the set of a text that fills it. Runtimes get positions as the spec numbers them and know of nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.base import Arrays, Cache, Ints
from edgedec.errors import UsageError
from edgedec.runtime.call import Call, CallResult, Runtime

_UNLIMITED = 1 << 62


class RopeCache:
    """A cache of a runtime, whose text has the short or the long set; everything else is the cache's own."""

    def __init__(self, inner: Cache, original: int, long: bool) -> None:
        self.inner, self.original, self.long = inner, original, long

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def positions(self, block: int) -> Ints:
        return self.inner.positions(block) - self.start

    @property
    def start(self) -> int:
        """The position, as the spec numbers them, of the text's first token."""
        return self.original if self.long else 0

    def fork(self, length: int | None = None, capacity: int | None = None) -> Cache:
        return cast(Cache, RopeCache(self.inner.fork(length, capacity), self.original, self.long))

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.inner.load(arrays)
        self._look()

    def append(self, rest: Any) -> bool:
        done: bool = self.inner.append(rest)  # type: ignore[attr-defined]
        self._look()
        return done

    def save(self) -> Arrays:
        return self.inner.save()

    def _look(self) -> None:
        """Take the set that the keys of the text have."""
        blocks = [block for block in self.inner.spec.attention if self.inner.slots(block)]
        if blocks:
            self.long = bool(self.inner.positions(blocks[0])[0] >= self.original)


class LongRopeRuntime:
    """A runtime of a bundle whose ropes have two sets."""

    def __init__(self, inner: Runtime) -> None:
        self.inner, self.name, self.spec = inner, inner.name, inner.spec
        # A step of its own would number positions by the cache's length.
        self.capabilities = replace(inner.capabilities, steps=None)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        return self.inner.forward([_shifted(call) for call in calls])

    def new_cache(self, capacity: int) -> Cache:
        original = self.spec.original_length
        return cast(Cache, RopeCache(self.inner.new_cache(capacity), original, capacity > original))

    def load(self) -> None:
        self.inner.load()

    def release(self) -> None:
        self.inner.release()


def with_long_ropes(runtime: Runtime) -> Runtime:
    """The runtime, with the set of each text chosen if its bundle has two."""
    wrapped = isinstance(runtime, LongRopeRuntime) or not runtime.spec.original_length
    return runtime if wrapped else LongRopeRuntime(runtime)


def suits(cache: Cache, length: int) -> bool:
    """Whether the cache's set is that of a text of `length` tokens."""
    return not isinstance(cache, RopeCache) or cache.long == (length > cache.original)


def suit(cache: Cache, length: int) -> None:
    """Give an empty cache the set of a text of `length` tokens; a cache of the other set forgets everything."""
    if isinstance(cache, RopeCache) and not suits(cache, length):
        cache.truncate(0)
        cache.long = length > cache.original


def rope_room(cache: Cache, length: int) -> int:
    """How many tokens a text of `length` may grow before it has to be read again."""
    short = isinstance(cache, RopeCache) and not cache.long
    return max(cache.spec.original_length - length, 0) if short else _UNLIMITED


def rope_key(cache: Cache, length: int | None = None) -> str:
    """What texts that share keys must have in common: the set of a cache, or of a text of `length` tokens in it."""
    if not isinstance(cache, RopeCache):
        return ""
    return "long" if (cache.long if length is None else length > cache.original) else ""


def _shifted(call: Call) -> Call:
    """The call with the runtime's own cache, and positions as the spec numbers them."""
    cache = cast(object, call.cache)
    if not isinstance(cache, RopeCache):
        raise UsageError("a cache of another engine")
    rows = call.rows
    if not cache.long:
        if len(rows) and np.max(rows.positions) >= cache.original:
            raise UsageError(f"a text of more than {cache.original} tokens has other ropes: it must be read anew")
        return call._replace(cache=cache.inner)
    return call._replace(cache=cache.inner, rows=replace(rows, positions=rows.positions + cache.original))
