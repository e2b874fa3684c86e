"""Slots that a fork drops or merges in pages that it shares: its own are those of a cache of its own, and the other
cache keeps what it had. The pages that are taken for it hold another text before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import random_weights, write_bundle

from edgedec.errors import SessionError, UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, Rows, View
from edgedec.spec import Attention, Mlp, ModelSpec, Rope

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")
address = pytest.importorskip("edgedec.runtimes._native_cache").address

LENGTH = 150
ROPE = Rope(tuple(1e3 ** (-j / 12) for j in range(12)))
SPEC = ModelSpec("pages", 53, 24, 300, ((Attention(4, 2, 24, 0.2), Mlp(16)),), 1e-5, True, (ROPE,))


@pytest.fixture(scope="module", params=["f32", "int8"])
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    bundle = write_bundle(tmp_path_factory.mktemp("pages") / "it", SPEC, random_weights(SPEC, 4))
    return native.NativeRuntime(bundle, request.param, 1, None)


def read(runtime: Any, seed: int) -> Any:
    cache, ids = runtime.new_cache(300), np.random.default_rng(seed).integers(0, 53, LENGTH)
    runtime.forward([Call(Rows.chain(ids, 0), cache)])
    cache.commit(range(LENGTH))
    return cache


def taken(runtime: Any, seed: int) -> None:
    """Fill free pages with another text."""
    others = [read(runtime, 100 + seed + i) for i in range(4)]
    del others


def held(cache: Any) -> tuple[bytes, bytes]:
    return cache.save()["state"].tobytes(), cache.positions(0).tobytes()


@pytest.mark.parametrize("first", [1, 10, 63, 64, 65, 130])
def test_dropped_slots(runtime: Any, first: int) -> None:
    cache, gone = read(runtime, first), [first, *range(first + 3, LENGTH, 7)]
    keys, before = cache.keys(0), held(cache)
    alone = runtime.new_cache(300)
    alone.load(cache.save())
    taken(runtime, first)
    twin = cache.fork()
    for each in (twin, alone):
        each.drop(0, gone)
        assert np.array_equal(each.keys(0), np.delete(keys, gone, axis=1))
        assert each.positions(0).tolist() == np.delete(np.arange(LENGTH), gone).tolist()
    assert held(twin) == held(alone)
    assert held(cache) == before


@pytest.mark.parametrize("first", [1, 10, 64, 130])
def test_slots_dropped_by_each_head(runtime: Any, first: int) -> None:
    """Head 1 drops later slots than head 0: a slot is of the latest token that either has there."""
    cache = read(runtime, first)
    gone = np.array([[first, first + 2, first + 3], [first + 4, first + 5, first + 19]])
    keys, before = cache.keys(0), held(cache)
    alone = runtime.new_cache(300)
    alone.load(cache.save())
    taken(runtime, first)
    twin = cache.fork()
    stay = np.stack([np.delete(np.arange(LENGTH), slots) for slots in gone])
    for each in (twin, alone):
        each.drop_by_head(0, gone)
        assert np.array_equal(each.keys(0), np.stack([keys[h, stay[h]] for h in range(2)]))
        assert each.positions(0).tolist() == stay.max(axis=0).tolist()
    assert held(twin) == held(alone)
    assert held(cache) == before
    twin.truncate(first + 4)  # the slots whose latest token is one of the first
    assert twin.slots(0) == int((stay.max(axis=0) < first + 4).sum())


def test_merged_slots_of_each_head(runtime: Any) -> None:
    cache = read(runtime, 7)
    keys, before = cache.keys(0), held(cache)
    alone = runtime.new_cache(300)
    alone.load(cache.save())
    taken(runtime, 7)
    twin, weights = cache.fork(), np.array([[0.25, 0.5, 0.125], [0.5, 0.125, 0.25]], np.float32)
    for each in (twin, alone):
        each.merge(0, [70, 140, 70], [3, 20, 5], weights)
    assert held(twin) == held(alone)
    assert held(cache) == before
    expected = keys.copy()
    for h, (a, b, c) in enumerate(weights):
        expected[h, 70] = (1 - a - c) * keys[h, 70] + a * keys[h, 3] + c * keys[h, 5]
        expected[h, 140] = (1 - b) * keys[h, 140] + b * keys[h, 20]
    np.testing.assert_allclose(twin.keys(0), expected, atol=1e-6 if twin.kv == "f32" else 0.02)


def test_pages_that_another_cache_holds_stay_in_memory(runtime: Any, tmp_path: Path) -> None:
    cache = read(runtime, 11)
    keys, twin = cache.keys(0), cache.fork()
    cache.offload(0, [0, 1], str(tmp_path))
    assert cache.page_ids().tolist() == twin.page_ids().tolist()
    ids = twin.page_ids().tolist()
    del twin
    cache.offload(0, [1], str(tmp_path))
    assert [new == old for new, old in zip(cache.page_ids().tolist(), ids, strict=True)] == [True, False, True]
    assert np.array_equal(cache.keys(0), keys)


def test_pages_that_are_not_full_stay_in_memory(runtime: Any, tmp_path: Path) -> None:
    cache = read(runtime, 12)
    ids = cache.page_ids().tolist()
    with pytest.raises(UsageError):
        cache.offload(0, [2], str(tmp_path))
    assert cache.page_ids().tolist() == ids
    cache.offload(0, [1], str(tmp_path))
    assert [new == old for new, old in zip(cache.page_ids().tolist(), ids, strict=True)] == [True, False, True]


def test_a_slot_that_goes_into_another_takes_none_itself(runtime: Any) -> None:
    cache = read(runtime, 13)
    before, weights = held(cache), np.full((2, 2), 0.25, np.float32)
    into, slots = np.array([70, 3], np.int64), np.array([3, 20], np.int64)
    with pytest.raises(UsageError):
        cache.merge(0, into, slots, weights)
    assert cache.handle.merge(0, address(into), address(slots), address(weights), 2) != 0, "nor without Python's check"
    assert held(cache) == before


def test_a_row_moved_in_a_page_that_a_fork_shares(runtime: Any) -> None:
    """What is taken for the page holds another text: rows that are moved later are copied as well."""
    cache, alone = read(runtime, 14), read(runtime, 14)
    rows = Rows.tree([5, 6, 7, 8, 9], [-1, 0, -1, 2, 3], LENGTH)
    for each in (cache, alone):
        runtime.forward([Call(rows, each)])
    taken(runtime, 14)
    twin = cache.fork()
    for each in (cache, alone):
        each.commit([2, 3, 4])
    assert held(cache) == held(alone)
    assert twin.slots(0) == LENGTH


def test_positions_that_are_not_those_of_slots(runtime: Any) -> None:
    rows, cache = Rows.chain(np.arange(20), 0), runtime.new_cache(300)
    runtime.forward([Call(replace(rows, positions=np.arange(3, 43, 2)), cache)])
    cache.commit(range(20))
    expected = list(range(3, 43, 2))
    assert cache.positions(0).tolist() == expected
    cache.truncate(12)
    assert cache.positions(0).tolist() == expected[:12]
    assert cache.fork(9).positions(0).tolist() == expected[:9]


def test_a_fork_of_what_lies_before_a_dropped_slot_is_that_text(runtime: Any) -> None:
    cache, alone = read(runtime, 15), read(runtime, 15)
    alone.truncate(100)
    cache.drop(0, [140])
    twin = cache.fork(100)
    assert held(twin) == held(alone)
    assert twin.nbytes == alone.nbytes


@pytest.mark.parametrize(("slots", "named"), [(LENGTH - 1, 2), (LENGTH - 1, -1), (LENGTH, 1), (-1, 1)])
def test_a_saved_state_says_what_it_holds(runtime: Any, slots: int, named: int) -> None:
    cache = read(runtime, 16)
    cache.drop(0, [140])
    saved = cache.save()
    state, header = saved["state"].copy(), np.array([LENGTH - 1, 1], np.int64).tobytes()
    at = state.tobytes().find(header)
    assert at >= 0
    runtime.new_cache(300).load({**saved, "state": state})
    state[at : at + 16] = np.frombuffer(np.array([slots, named], np.int64).tobytes(), np.uint8)
    with pytest.raises(SessionError):
        runtime.new_cache(300).load({**saved, "state": state})


def test_the_rest_of_a_text_is_whole(runtime: Any) -> None:
    cache, begun = read(runtime, 17), read(runtime, 17)
    begun.truncate(64)
    rest, before = cache.save_rest(64), held(begun)
    assert not begun.append(rest[:-8])
    assert held(begun) == before
    assert begun.append(rest)
    assert held(begun) == held(cache)


def test_bounds_of_pages_that_changed_take_no_memory(runtime: Any) -> None:
    cache = read(runtime, 18)
    plain = cache.nbytes
    runtime.forward([Call(Rows.chain([3], LENGTH), cache, views={0: View(recent=0, pages=1)})])
    cache.rollback()
    both = cache.nbytes - plain
    assert both > 0
    cache.merge(0, [70], [80], np.full((2, 1), 0.25, np.float32))
    assert cache.nbytes - plain == both // 2, "page 0 keeps its own"


def test_pages_are_counted(runtime: Any) -> None:
    cache = read(runtime, 19)
    assert cache.handle.pages() == (3, 0)
    twin = cache.fork(100)
    assert cache.handle.pages() == (3, 2)
    third = cache.fork(64)
    assert third.handle.pages() == (1, 1)
    assert twin.handle.pages() == (2, 2)
