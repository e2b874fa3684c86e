"""Compiles grammars: equal ones once, and small ones soon however many large ones there are.

A grammar is tried for a moment first, which is enough for most. One that needs more is compiled again from the start,
at a low priority and in one of few places: for a short time, and then for as long as it may take; how many may wait for
the last is limited. So large ones take the processor neither from small ones nor from texts that are generated.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from edgedec.constraints.remote import Matcher, MatcherGroup
from edgedec.errors import LimitExceeded, UsageError
from edgedec.runtime.registry import available_cores
from edgedec.sandbox import enabled, stop
from edgedec.sandbox.worker import LOWEST

# Seconds of processor time of the first attempts, the first some times what common schemas take, the priority, and how
# many are made at a time. _MANY: the priority of those that came while others were made: many at once take no core
# from texts.
_TRY, _SECOND = (0.01, 0, max(available_cores() // 2, 1)), (0.05, 10, 2)
_MANY = 10
# Places for grammars that need more, and how many such grammars there may be.
_PLACES, _MOST = 2, 32
# Compiled grammars that are kept, and the most MiB of each; texts that may share one process.
_KEPT, _LARGEST, _TEXTS = 8, 32, 16

_tries = [(seconds, priority, threading.BoundedSemaphore(n)) for seconds, priority, n in (_TRY, _SECOND)]
_places = threading.BoundedSemaphore(_PLACES)
_large = threading.BoundedSemaphore(_MOST)


class ManyGrammars(UsageError):
    """Too many grammars that take long to compile wait already."""


class _Compile:
    """A grammar that is being compiled: others that need it wait for `done`. error: why it cannot be followed."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error = ""


class Grammars:
    """The compiled grammars of one vocabulary. new_group: starts a worker process."""

    def __init__(self, new_group: Callable[[str], MatcherGroup]) -> None:
        self._new_group, self._lock = new_group, threading.Lock()
        self._kept = OrderedDict[object, tuple[MatcherGroup, Matcher]]()
        self._running: dict[object, _Compile] = {}

    def matcher(self, kind: str, text: str, options: dict[str, Any]) -> Matcher:
        """A matcher at the beginning of a text; UsageError for a grammar that cannot be followed."""
        # A forked process must not use its parent's workers.
        key = (os.getpid(), kind, text, json.dumps(options, sort_keys=True))
        while True:
            with self._lock:
                if (found := self._shared(key)) is not None:
                    return found
                other = self._running.get(key)
                if other is None:
                    own = self._running[key] = _Compile()
                    break
            _wait(kind, other.done)
            if other.error:
                raise UsageError(other.error)
        try:
            return self._compiled(key, kind, text, options)
        except UsageError as error:
            own.error = "" if stop.stopped() or isinstance(error, ManyGrammars) else str(error)
            raise
        finally:
            with self._lock:
                del self._running[key]
            own.done.set()

    def _shared(self, key: object) -> Matcher | None:
        """Another matcher of a kept grammar."""
        group, matcher = self._kept.get(key, (None, None))
        if group is None or matcher is None:
            return None
        if group.dead or group.live > _TEXTS:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return matcher.deep_copy()

    def _compiled(self, key: object, kind: str, text: str, options: dict[str, Any]) -> Matcher:
        group, matcher = self._first(kind, text, options)
        if group.size() > _LARGEST:
            return matcher
        with self._lock:
            self._kept[key] = group, matcher
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return matcher.deep_copy()

    def _first(self, kind: str, text: str, options: dict[str, Any]) -> tuple[MatcherGroup, Matcher]:
        """A compiled grammar in a new process."""
        try:
            for seconds, priority, places in _tries:
                try:
                    with stop.turn(places) if enabled() else nullcontext(False) as waited:
                        group = self._new_group(kind)
                        priority = max(priority, _MANY) if waited else priority
                        return group, group.compiled(kind, text, options, seconds, priority)
                except LimitExceeded:
                    if stop.stopped():
                        raise
            if not _large.acquire(blocking=False):
                raise ManyGrammars(f"{kind}: too many grammars that take long are being compiled; try again later")
            try:
                with stop.turn(_places):
                    group = self._new_group(kind)
                    return group, group.compiled(kind, text, options, priority=LOWEST)
            finally:
                _large.release()
        except LimitExceeded as error:
            raise UsageError(f"{kind}: {error}") from None


def _wait(kind: str, done: threading.Event) -> None:
    try:
        stop.wait(done)
    except LimitExceeded as error:
        raise UsageError(f"{kind}: {error}") from None
