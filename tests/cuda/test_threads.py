"""One model in several threads: one of them at a time uses the device, whatever it does with its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest

from edgedec.bundle import Bundle
from edgedec.kernels.cuda import emulated
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, View, logits_of, open_runtime
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

pytestmark = pytest.mark.skipif(emulated.why_not() is not None, reason=f"emulation: {emulated.why_not()}")
USES = ("allocate", "write", "read", "copy", "launch", "record", "synchronize")


@pytest.fixture(autouse=True)
def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")


@pytest.fixture(scope="module", params=["plain", "hybrid"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    spec = MODELS[request.param]
    made: Bundle = write_bundle(tmp_path_factory.mktemp("threads") / "bundle", spec, random_weights(spec), "int4")
    return made


def opened(bundle: Bundle, pages: int = 0) -> Any:
    """The engine; with room for so many pages on the device, and for the states of a step."""
    runtime = open_runtime("cuda", bundle, RuntimeOptions(kv="int8"))
    if not pages:
        return runtime
    states = runtime.new_cache(1).piece_bytes(Rows.chain([0] * 100, 0))  # type: ignore[attr-defined]
    size = pages * runtime._pool.page_bytes + states + 1  # type: ignore[attr-defined]
    return open_runtime("cuda", bundle, RuntimeOptions(kv="int8", device_cache=size))


def changes(runtime: Runtime) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is done with a cache, by name, one after another."""
    cache, blocks = runtime.new_cache(250), sorted(runtime.spec.attention)
    yield "new_cache", lambda: runtime.new_cache(250)
    ids, views = np.arange(150) % 101, dict.fromkeys(blocks, View(recent=0, pages=1))
    yield "forward", lambda: logits_of(runtime, Rows.chain(ids, 0), cache, 149)
    yield "commit", lambda: cache.commit(range(150))
    yield "views", lambda: runtime.forward([Call(Rows.tree([1, 2, 3], [-1, 0, 0], 150), cache, views=views)])
    yield "commit of a tree", lambda: cache.commit([0, 2])
    yield "fork", lambda: cache.fork(64).save()
    yield "keys", lambda: cache.keys(blocks[0])
    saved = dict[str, Any]()
    yield "save", lambda: saved.update(cache.save())
    yield "merge", lambda: cache.merge(blocks[0], [3], [9], [0.5])
    yield "drop", lambda: cache.drop(blocks[0], [3, 70])
    whole = next((b for b in blocks if runtime.spec.attention[b].window is None), None)
    if whole is not None:
        heads = runtime.spec.attention[whole].n_kv_heads
        yield "drop_by_head", lambda: cache.drop_by_head(whole, np.arange(2 * heads).reshape(heads, 2))
    yield "load", lambda: cache.load(saved)
    yield "truncate", lambda: cache.truncate(100)


def test_every_use_of_the_device_is_of_the_thread_that_holds_it(bundle, monkeypatch):
    uses, doing = list[tuple[str, str, bool]](), "opening"
    for name in USES:
        original = getattr(emulated.Emulated, name)

        def watched(self: Any, *args: Any, name: str = name, original: Any = original) -> Any:
            if doing != "opening":
                uses.append((doing, name, runtime._pool.busy._is_owned()))
            return original(self, *args)

        monkeypatch.setattr(emulated.Emulated, name, watched)
    runtime = opened(bundle)
    for doing, change in changes(runtime):  # noqa: B007
        change()
    assert [use for use in uses if not use[2]] == []
    seen = {name for name, _, _ in uses}
    assert seen >= {"forward", "views", "commit of a tree", "keys", "save", "merge", "drop", "load"}
    assert seen >= ({"commit"} if runtime.spec.recurrent else {"drop_by_head"})


def text_of(runtime: Runtime, number: int, barrier: Barrier | None) -> list[bytes]:
    """A text of three pages, steps between moves of its slots, then many moves; its cache at the end."""
    cache, found = runtime.new_cache(240), list[bytes]()
    ids = (7 * np.arange(130) + number) % 101
    for at in (0, 65):
        logits_of(runtime, Rows.chain(ids[at : at + 65], at), cache, 64)
        cache.commit(range(65))
    for step in range(3):
        rows = Rows.tree([1, number, 3], [-1, 0, 0], cache.length)
        found.append(logits_of(runtime, rows, cache).tobytes())
        cache.commit([0, 2])
        if step == 1:
            twin = runtime.new_cache(240)
            twin.load(cache.save())
            cache = twin
        cache.drop(min(runtime.spec.attention), [3 + step, 70 + step])
    if barrier is not None:
        barrier.wait(60)
    for step in range(16):
        cache.drop(min(runtime.spec.attention), [step, 60 + step])
    return [*found, cache.save()["state"].tobytes()]


@pytest.mark.parametrize("pages", [0, 12], ids=["", "swapped"])
def test_texts_of_several_threads_are_those_of_one(bundle, pages, monkeypatch):
    runtime, n = opened(bundle, pages), 3
    expected, barrier = [text_of(runtime, i, None) for i in range(n)], Barrier(n)
    write = runtime.device.write

    def slowly(address: int, array: Any) -> None:
        """As on a GPU, others run while a copy is under way."""
        write(address, array)
        sleep(1e-4)

    monkeypatch.setattr(runtime.device, "write", slowly)
    with ThreadPoolExecutor(n) as threads:
        assert list(threads.map(lambda i: text_of(runtime, i, barrier), range(n))) == expected
    assert runtime.pages == 0
    assert (runtime._pool.frames.swapped + runtime._pool.states.swapped > 0) == bool(pages)


def test_what_ends_in_another_thread_waits_for_no_step(bundle):
    """A garbage collection may end a cache in any thread, one that a step waits for too."""
    runtime = opened(bundle)
    pool, held = runtime._pool, runtime.new_cache(8)
    logits_of(runtime, Rows.chain([1, 2], 0), held)
    held.commit(range(2))
    pages = [held]
    del held
    with pool.busy:
        other = Thread(target=pages.clear)
        other.start()
        other.join(20)
        assert not other.is_alive()
    assert pool.used == 0


def test_a_commit_waits_for_the_step_that_goes_on(bundle):
    """With a limit, another text's step has its pages pinned: a commit then finds room, and changes all or nothing."""
    runtime = opened(bundle, 12)
    ours, other = runtime.new_cache(200), runtime.new_cache(200)
    for cache in (ours, other):
        logits_of(runtime, Rows.chain(np.arange(100) % 101, 0), cache)
        cache.commit(range(100))
    runtime.forward([Call(Rows.tree([1, 2, 3], [-1, 0, 0], 100), ours, outputs=ALL_LOGITS)])
    run, order = runtime._run, list[str]()

    def slow(*rest: Any) -> Any:
        thread = Thread(target=lambda: (ours.commit([0, 2]), order.append("commit")))
        thread.start()
        thread.join(0.3)
        order.append("step")
        waiting.append(thread)
        return run(*rest)

    waiting, runtime._run = list[Thread](), slow
    logits_of(runtime, Rows.chain([5], 100), other)
    waiting[0].join(20)
    assert order == ["step", "commit"]
    assert ours.length == 102
