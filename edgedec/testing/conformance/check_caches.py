"""Caches: truncation, forks, saving and loading, capacity."""

from __future__ import annotations

import numpy as np

from edgedec.cache import Cache
from edgedec.errors import ContextFull, SessionError, UsageError
from edgedec.runtime import Outputs, Rows, Runtime
from edgedec.testing.conformance.compare import ROOM, read, run, same, text, tokens
from edgedec.testing.conformance.suite import Subject, check


def _goes_on(subject: Subject, runtime: Runtime, cache: Cache, ids: list[int], what: str) -> None:
    """What the cache lacks of `ids` and three tokens more are what they are in a text read anew."""
    ids = [*ids, *tokens(runtime.spec, 3, seed=len(ids))]
    expected = text(runtime, ids)[1][cache.length :]
    same(subject, read(runtime, ids[cache.length :], cache), expected, what)
    cache.truncate(len(ids) - 3)


@check("truncate: the text up to there stays")
def truncated(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    ids = tokens(runtime.spec, 90)
    cache, _ = text(runtime, ids)
    for length in (90, 77, 40, 33, 1, 0):
        before = cache.length
        cache.truncate(min(length, before))
        exact = cache.length == min(length, before)
        assert exact or (runtime.spec.recurrent and cache.length < length), f"length {cache.length}, asked: {length}"
        read(runtime, ids[cache.length : length], cache)
        _goes_on(subject, runtime, cache, ids[:length], f"tokens after truncate({length})")
    for wrong in (-1, cache.length + 1):
        try:
            cache.truncate(wrong)
        except UsageError:
            continue
        raise AssertionError(f"truncate({wrong}) of {cache.length} tokens is accepted")


@check("fork: what happens to one does not change the other")
def forked(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    ids, others = tokens(runtime.spec, 70), tokens(runtime.spec, 70, seed=1)
    cache, _ = text(runtime, ids)
    run(runtime, Rows.chain(others[:3], 70), cache, Outputs())  # pending rows do not go along
    twins = [cache.fork(), cache.fork(40), cache.fork(33, ROOM // 2), cache.fork(0)]
    lengths = [twin.length for twin in twins]
    exact = lengths == [70, 40, 33, 0] or (runtime.spec.recurrent and lengths[0] == 70 and lengths[1] <= 40)
    assert exact, f"forks of 70, 40, 33 and 0 tokens hold {lengths}"
    assert twins[2].capacity == ROOM // 2, f"capacity {twins[2].capacity}, asked: {ROOM // 2}"
    cache.rollback()
    read(runtime, others[:20], cache)
    for twin, n in zip(twins, (70, 40, 33, 0), strict=True):
        read(runtime, ids[twin.length : n], twin)
        _goes_on(subject, runtime, twin, ids[:n], f"a fork of {n} tokens")
    read(runtime, others[:9], twins[0].fork())
    twins[0].truncate(5)
    _goes_on(subject, runtime, cache, [*ids, *others[:20]], "the cache that was forked")
    child = twins[1].fork()
    twins[1].truncate(0)
    _goes_on(subject, runtime, child, ids[:40] if child.length else [], "a fork of a fork")


@check("fork: pages are shared, not copied")
def pages(subject: Subject, model: str) -> None:
    runtime, slots = subject.runtime(model), subject.capabilities.page_slots
    cache, _ = text(runtime, tokens(runtime.spec, min(2 * slots + 9, ROOM - 8) or 20))
    ids, twin = cache.page_ids().tolist(), cache.fork()
    if not slots or not runtime.spec.attention:
        assert not ids, "page_ids() without pages (page_slots is 0)"
        return
    assert len(ids) == -(-cache.length // slots), f"{len(ids)} pages of {slots} slots hold {cache.length} tokens"
    assert twin.page_ids().tolist() == ids, "a fork has pages of its own before anything was written"
    read(runtime, [1], twin)
    whole = cache.length // slots
    assert twin.page_ids().tolist()[:whole] == ids[:whole], "a fork that goes on has lost its shared pages"
    assert cache.page_ids().tolist() == ids, "a fork that goes on has changed the pages of the other"
    assert whole == len(ids) or twin.page_ids().tolist()[whole] != ids[whole], "a page is written that is shared"


@check("save and load")
def saved(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    for n in (0, 1, 40):
        ids = tokens(runtime.spec, n)
        cache, _ = text(runtime, ids) if n else (runtime.new_cache(ROOM), None)
        arrays = {name: array.copy() for name, array in cache.save().items()}
        assert arrays["length"].tolist() == [n], f'save()["length"] is {arrays["length"].tolist()} of {n} tokens'
        other, _ = text(runtime, tokens(runtime.spec, 50, seed=2))
        other.load(arrays)
        for array in arrays.values():
            array[...] = 0
        assert other.length == n, f"length {other.length} after loading {n} tokens"
        _goes_on(subject, runtime, other, ids, "tokens after load()")


@check("load: arrays of no such cache are refused, and change nothing")
def loaded_wrong(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    ids = tokens(runtime.spec, 20)
    cache, _ = text(runtime, ids)
    good = {name: array.copy() for name, array in cache.save().items()}
    wrong = [{}, {"length": good["length"]}, good | {"more": np.zeros(3)}, good | {"length": np.array([ROOM + 1])}]
    for name, array in good.items():
        wrong += [{key: value for key, value in good.items() if key != name}]
        wrong += [good | {name: array[..., :-1]}, good | {name: array[None]}, good | {name: array.astype(np.complex64)}]
    wrong += [good | {"length": np.array([-1])}]
    target, _ = text(runtime, ids[:9])
    for arrays in wrong:
        try:
            target.load(arrays)
        except SessionError:
            assert target.length == 9, "a refused load changed the cache"
            continue
        names = sorted(set(good) ^ set(arrays)) or [n for n in good if arrays[n].shape != good[n].shape]
        raise AssertionError(f"load() accepts wrong arrays ({', '.join(names) or 'types or values'})")
    _goes_on(subject, runtime, target, ids[:9], "tokens after refused loads")


@check("capacity: more tokens than fit are refused, and change nothing")
def full(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    ids, cache = tokens(runtime.spec, 30), runtime.new_cache(24)
    assert cache.capacity == 24, f"capacity {cache.capacity}, asked: 24"
    read(runtime, ids[:20], cache)
    try:
        run(runtime, Rows.chain(ids[20:25], 20), cache)
    except ContextFull:
        pass
    else:
        raise AssertionError("25 tokens go into a cache of 24 (ContextFull)")
    assert cache.length == 20, f"a refused call changed the length to {cache.length}"
    found = read(runtime, ids[20:24], cache)
    same(subject, found, text(runtime, ids[:24])[1][20:], "the last tokens that fit")
    for wrong in (0, -3):
        try:
            runtime.new_cache(wrong)
        except UsageError:
            continue
        raise AssertionError(f"new_cache({wrong}) is accepted")
