"""States of recurrent blocks share a device's memory for caches with pages, leave it and come back as they were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import ContextFull
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, logits_of, open_runtime
from edgedec.runtimes._device.budget import MemoryBudget
from edgedec.runtimes._device.frames import PageFrames
from edgedec.runtimes._device.pieces import PieceMemory
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

REASON = emulated.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON}")
N = 4  # texts


@pytest.fixture(autouse=True)
def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")


@pytest.fixture(scope="module", params=["hybrid", "state space"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    spec = MODELS[request.param]
    return write_bundle(tmp_path_factory.mktemp("states") / "bundle", spec, random_weights(spec), "int4")


def opened(bundle: Any, memory: int = 0) -> Any:
    return open_runtime("cuda", bundle, RuntimeOptions(kv="int8", device_cache=memory))


def least(runtime: Any, rows: int, pages: int) -> int:
    """Bytes of a call of so many rows of a text of so many pages."""
    states: int = runtime.new_cache(1).piece_bytes(Rows.chain([0] * rows, 0))
    return states + pages * int(runtime._pool.page_bytes)


def texts_of(runtime: Runtime) -> list[bytes]:
    """Texts in turn and together, with trees, forks, texts that are cut and loaded."""
    caches, found = [runtime.new_cache(120) for _ in range(N)], list[bytes]()
    for at in (0, 30):
        for i, cache in enumerate(caches):
            ids = [(7 * j + i) % 101 for j in range(at, at + 30)]
            found.append(logits_of(runtime, Rows.chain(ids, at), cache, 29).tobytes())
            cache.commit(range(30))
    for _ in range(2):
        calls = [Call(Rows.tree([1, 2, 3], [-1, 0, 0], cache.length), cache, outputs=ALL_LOGITS) for cache in caches]
        found += [result.logits.tobytes() for result in runtime.forward(calls) if result.logits is not None]
        for cache in caches:
            cache.commit([0, 2])
    twin, loaded = caches[0].fork(40), runtime.new_cache(120)
    caches[1].truncate(35)
    loaded.load({name: array.copy() for name, array in caches[2].save().items()})
    for cache in (twin, *caches, loaded):
        found.append(logits_of(runtime, Rows.chain([9], cache.length), cache).tobytes())
        cache.commit([0])
        found.append(cache.save()["state"].tobytes())
    return found


def test_texts_are_what_they_are_with_room_for_all(bundle: Any) -> None:
    free = opened(bundle)
    memory = least(free, 30, 4 if free._pool.page_bytes else 0) + 100
    expected = texts_of(open_runtime("native", bundle, RuntimeOptions(kv="int8")))
    runtime, most = opened(bundle, memory), 0
    budget, slab = runtime._pool.budget, runtime._pool.budget.slab

    def watched(size: int, n: int) -> Any:
        nonlocal most
        made = slab(size, n)
        most = max(most, budget.taken)
        return made

    budget.slab = watched
    assert texts_of(runtime) == expected
    assert runtime._pool.states.swapped > 10
    assert 0 < most <= memory
    assert texts_of(free) == expected
    assert free._pool.states.swapped == 0


def test_a_call_whose_states_do_not_fit_is_refused_in_one_line(bundle: Any) -> None:
    free = opened(bundle)
    runtime = opened(bundle, least(free, 4, 3 if free._pool.page_bytes else 0))
    cache = runtime.new_cache(120)
    logits_of(runtime, Rows.chain([1, 2, 3], 0), cache)
    cache.commit(range(3))
    before = cache.save()["state"].tobytes()
    with pytest.raises(
        ContextFull, match=r"its states of [\d,]+ bytes: the device's memory for caches .*device_cache"
    ) as error:
        logits_of(runtime, Rows.chain(np.arange(90) % 101, 3), cache, 89)
    assert "\n" not in str(error.value)
    assert cache.save()["state"].tobytes() == before
    logits_of(runtime, Rows.chain([5], 3), cache)


def test_a_call_holds_no_more_states_than_were_counted(bundle: Any) -> None:
    """After calls of more rows too, and where rows are added to a tree."""
    runtime = opened(bundle)
    cache, counted = runtime.new_cache(120), list[int]()

    def call(rows: Rows) -> None:
        counted.append(cache.piece_bytes(rows))
        logits_of(runtime, rows, cache)
        assert sum(piece.size for piece in cache.pieces()) <= counted[-1]

    for n in (16, 8, 4, 1, 2):
        call(Rows.chain([1] * n, cache.length))
        cache.commit(range(n))
    assert counted == sorted(counted[:4], reverse=True) + counted[4:]
    assert counted[3] < counted[4] < counted[2]
    call(Rows.chain([1] * 8, cache.length))
    call(replace(Rows.chain([1] * 3, cache.length), first=2))


def test_the_longest_text_leaves_room_for_states(bundle: Any) -> None:
    free = opened(bundle)
    rows = min(free.capabilities.largest_call, free.spec.context_length)
    page = free._pool.page_bytes
    assert free.longest is None
    assert opened(bundle, least(free, rows, 6 if page else 0)).longest == (4 * 64 if page else free.spec.context_length)
    assert opened(bundle, least(free, rows, 0) - 1).longest == 0


def test_the_longest_text_is_known_without_a_cache(bundle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read for each call."""
    runtime = opened(bundle, 1 << 20)
    found = runtime.longest
    monkeypatch.setattr(runtime, "new_cache", lambda capacity: pytest.fail("another cache was made"))
    assert runtime.longest == found


def read(runtime: Any, n: int) -> Any:
    """A cache of n tokens."""
    cache = runtime.new_cache(300)
    for at in range(0, n, 50):
        rows = min(50, n - at)
        logits_of(runtime, Rows.chain([j % 101 for j in range(at, at + rows)], at), cache, rows - 1)
        cache.commit(range(rows))
    return cache


def test_pages_of_a_text_that_is_replaced_go_at_once(bundle: Any) -> None:
    runtime = opened(bundle)
    cache, short = read(runtime, 200), read(runtime, 20)
    held, saved = runtime.pages, {name: array.copy() for name, array in short.save().items()}
    del short
    assert held == (5 if runtime.spec.attention else 0)
    cache.load(saved)
    assert runtime.pages == held // 5


def test_a_text_that_memory_is_too_short_for_is_not_begun(bundle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = opened(bundle)
    cache, rest, failed = read(runtime, 50), read(runtime, 200).save_rest(50), list[int]()
    before, held = cache.save()["state"].tobytes(), runtime.pages

    def short(*_: object) -> None:
        failed.append(1)
        raise MemoryError

    for owner, name in ((runtime._pool, "write"), (runtime._pool.states, "holding")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, short)
            if name == "write" and not runtime.spec.attention:
                continue
            with pytest.raises(MemoryError):
                cache.append(rest)
        assert cache.save()["state"].tobytes() == before
        assert {cache.length, *map(cache.slots, runtime.spec.attention)} == {50}
        assert runtime.pages == held
    assert failed
    assert cache.append(rest)


def test_memory_that_one_size_does_not_need_goes_to_another() -> None:
    device = emulated.Emulated()
    budget = MemoryBudget(device, 10 * 1024)
    frames, pieces = PageFrames(device, 1024, budget=budget, slab=4096), PieceMemory(device, budget)
    for page in range(10):
        frames.add(page)
    assert (budget.taken, frames.away) == (10 * 1024, 0)
    held = [pieces.take(2048) for _ in range(2)]  # a slab of four pages goes
    with pieces.pinned(held):
        held.append(pieces.take(2048))  # and another one
    assert (frames.away, pieces.swapped) == (8, 0)
    assert budget.taken <= 10 * 1024
    for page in range(10):
        frames.remove(page)
    held += [pieces.take(2048) for _ in range(2)]
    assert pieces.swapped == 0
    assert len({piece.at for piece in held}) == 5
    with pieces.pinned(held[:4]):
        frames.add(20)  # the fifth leaves
        frames.add(21)
    assert pieces.swapped == 1
    with pytest.raises(MemoryError), pieces.pinned(held), frames.pinned([20]):
        pass


def test_a_limit_that_was_found_gives_memory_back() -> None:
    device = emulated.Emulated()
    budget = MemoryBudget(device)
    frames = PageFrames(device, 1024, budget=budget, slab=2048)
    for page in range(8):
        frames.add(page)
        device.write(frames.address(page), np.full(1024, page, np.uint8))
    assert not budget.relieve(4096)  # half of it all
    assert budget.relieve(2048)
    assert (budget.taken, budget.most, frames.away) == (6144, 6144, 2)
    out = np.empty(1024, np.uint8)
    for page in range(8):
        with frames.pinned([page]):
            device.read(frames.address(page), out)
        assert set(out.tolist()) == {page}
    assert budget.taken == 6144
    assert not MemoryBudget(device, 4096).relieve(1)


actions = st.lists(
    st.tuples(st.sampled_from(["take", "drop", "write", "read", "pin", "page"]), st.integers(0, 7)), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(actions=actions)
def test_any_use_of_pieces_and_pages_gives_back_what_was_written(actions: list[tuple[str, int]]) -> None:
    device = emulated.Emulated()
    budget = MemoryBudget(device, 8 * 512)
    frames, pieces = PageFrames(device, 512, budget=budget, slab=1024), PieceMemory(device, budget)
    held, pages = dict[int, tuple[Any, int]](), dict[int, int]()
    for n, (action, at) in enumerate(actions):
        size = 512 if at % 2 else 1024
        if action == "page" and at not in pages:
            frames.add(at)
            device.write(frames.address(at), np.full(512, n, np.uint8))
            pages[at] = n
        if action in ("take", "write"):
            piece = held[at][0] if at in held else pieces.take(size)
            device.write(piece.at, np.full(size, n, np.uint8))
            held[at] = piece, n
        if action == "drop":
            held.pop(at, None)
        if action == "pin" and at in held:
            with pieces.pinned([held[at][0]]), frames.pinned(list(pages)[:2]):
                out = np.empty(size, np.uint8)
                device.read(held[at][0].at, out)
                assert set(out.tolist()) == {held[at][1]}
        assert budget.taken <= 8 * 512
        for piece, value in held.values():
            out = np.empty(piece.size, np.uint8)
            piece.read(0, out)
            assert set(out.tolist()) == {value}
        for page, value in pages.items():
            out = np.empty(512, np.uint8)
            frames.read(page, 0, out)
            assert set(out.tolist()) == {value}


def test_prefixes_whose_states_left_the_device_are_continued(bundle: Any) -> None:
    """More idle texts than the device holds: those that begin alike continue from what had left it."""
    from edgedec.cache.prefixes import PrefixIndex

    free = opened(bundle)
    runtime, index = opened(bundle, least(free, 32, 4 if free._pool.page_bytes else 0)), PrefixIndex[Any]()
    ids = [[(5 * j + i) % 101 for j in range(32)] for i in range(6)]
    for text in ids:
        cache = runtime.new_cache(64)
        logits_of(runtime, Rows.chain(text, 0), cache, 31)
        cache.commit(range(32))
        index.insert(text, cache.fork())
    assert runtime._pool.states.swapped > 0
    for text in ids:
        found = index.match([*text, 1])
        assert found.n == 32
        again, fresh = found.cache.fork(32), free.new_cache(64)
        logits_of(free, Rows.chain(text, 0), fresh, 31)
        fresh.commit(range(32))
        rows = Rows.chain([3], 32)
        assert logits_of(runtime, rows, again).tobytes() == logits_of(free, rows, fresh).tobytes()
