"""Pages that the device has no room for lie in the host's memory: the same bytes, with a limit, under the server."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import serving

import edgedec
from edgedec.decoding.scheduler.batch import Batch
from edgedec.errors import ContextFull, UsageError
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, logits_of, open_runtime
from edgedec.runtimes._device.frames import PageFrames
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

REASON = emulated.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON}")


@pytest.fixture(autouse=True)
def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    spec = MODELS["plain"]
    return write_bundle(tmp_path_factory.mktemp("swap") / "bundle", spec, random_weights(spec), "int4")


def limited(bundle: Any, pages: int) -> Any:
    """The engine with room for so many pages on the device."""
    size = open_runtime("cuda", bundle, RuntimeOptions(kv="int8"))._pool.page_bytes  # type: ignore[attr-defined]
    return open_runtime("cuda", bundle, RuntimeOptions(kv="int8", device_cache=pages * size + 1))


def texts_of(runtime: Runtime) -> list[bytes]:
    """Three texts of three pages, step by step: alone and together, one of them forked, cut, saved and loaded."""
    caches, found = [runtime.new_cache(200) for _ in range(3)], list[bytes]()
    for i, cache in enumerate(caches):
        ids = [(7 * j + i) % 101 for j in range(150)]
        for at in (0, 75):
            logits_of(runtime, Rows.chain(ids[at : at + 75], at), cache, 74)
            cache.commit(range(75))
    for _ in range(2):
        calls = [Call(Rows.tree([1, 2, 3], [-1, 0, 0], cache.length), cache, outputs=ALL_LOGITS) for cache in caches]
        found += [result.logits.tobytes() for result in runtime.forward(calls) if result.logits is not None]
        for cache in caches:
            cache.commit([0, 2])
    twin = caches[0].fork(100)
    caches[1].drop(2, [3, 70, 71])
    loaded = runtime.new_cache(200)
    loaded.load({name: array.copy() for name, array in caches[2].save().items()})
    for cache in (twin, *caches, loaded):
        found.append(logits_of(runtime, Rows.chain([9], cache.length), cache).tobytes())
        cache.commit([0])
        found.append(cache.save()["state"].tobytes())
    return found


@pytest.mark.parametrize("pages", [12, 30])
def test_texts_are_what_they_are_with_room_for_all(bundle, pages):
    runtime = limited(bundle, pages)
    frames: PageFrames = runtime._pool.frames
    assert texts_of(runtime) == texts_of(open_runtime("native", bundle, RuntimeOptions(kv="int8")))
    assert frames.most == pages
    assert (frames.swapped > 0) == (pages == 12)
    assert runtime.pages == 0
    assert frames.away == 0


def test_a_forward_that_does_not_fit_runs_in_parts(bundle):
    runtime = limited(bundle, 9)
    caches, steps = [runtime.new_cache(140) for _ in range(4)], list[int]()
    for cache in caches:
        logits_of(runtime, Rows.chain(np.arange(130) % 101, 0), cache, 129)
        cache.commit(range(130))
    run = runtime._run
    runtime._run = lambda *rest: steps.append(len(rest[2])) or run(*rest)
    runtime.forward([Call(Rows.chain([i], 130), cache, outputs=ALL_LOGITS) for i, cache in enumerate(caches)])
    assert sum(steps) == 4
    assert len(steps) > 1


def test_a_text_that_the_device_cannot_hold_is_refused_in_one_line(bundle):
    runtime = limited(bundle, 4)
    cache = runtime.new_cache(384)
    logits_of(runtime, Rows.chain(np.arange(100) % 101, 0), cache, 99)
    cache.commit(range(100))
    before = cache.save()["state"].tobytes()
    with pytest.raises(ContextFull, match=r"memory for caches holds 4 \(device_cache\)") as error:
        logits_of(runtime, Rows.chain(np.arange(200) % 101, 100), cache, 99)
    assert "\n" not in str(error.value)
    assert cache.save()["state"].tobytes() == before


def test_the_longest_text_is_what_the_device_holds(bundle):
    """It runs to its last token, with a fork that shares its pages; one token more is refused."""
    runtime = limited(bundle, 5)
    assert runtime.longest == 192
    cache = runtime.new_cache(384)
    for at in range(0, 184, 92):
        logits_of(runtime, Rows.chain(np.arange(92) % 101, at), cache, 91)
        cache.commit(range(92))
    twin = cache.fork()
    for at in range(184, 192):
        logits_of(runtime, Rows.chain([9], at), cache)
        cache.commit([0])
    with pytest.raises(ContextFull, match="memory for caches holds 5"):
        logits_of(runtime, Rows.chain([9], 192), cache)
    assert (twin.length, cache.length) == (184, 192)
    assert limited(bundle, 1).longest == 0
    assert open_runtime("cuda", bundle, RuntimeOptions(kv="int8")).longest is None


def test_a_server_does_not_start_where_one_text_does_not_fit(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the text that comes to need more would end all others with it."""
    from edgedec.cli._flags import KV, TemplateFlags
    from edgedec.cli._model_opening import ModelOpening
    from edgedec.server.limits import ServerLimits

    size = edgedec.open(nano, engine="cuda", kv="int8").runtime._pool.page_bytes  # type: ignore[attr-defined]
    opening = ModelOpening("cuda", 1, KV("int8"), "off", TemplateFlags(), device_cache=5 * size + 1)
    words = r"^--device-cache: holds a text of 192 tokens, less than the context of 193; allow more, or take a smaller"
    with pytest.raises(UsageError, match=words):
        opening.only(str(nano), [], ServerLimits(context=193))
    with pytest.raises(UsageError, match="holds a text of 192 tokens, less than the context of "):
        opening.only(str(nano), [], ServerLimits())
    assert opening.only(str(nano), [], ServerLimits(context=192))[1].context == 192
    for context, fits in ((192, True), (193, False)):
        sources = opening.folder(nano.parent, None, [], ServerLimits(context=context))
        (source,) = (one for one in sources if one.name == "nano")
        if fits:
            source.open()
        else:
            with pytest.raises(UsageError, match=words):
                source.open()


class Small(emulated.Emulated):
    """A device with memory for two slabs."""

    def allocate(self, size: int) -> int:
        if size == 4 * 256 and len(self.slabs) == 2:
            raise MemoryError("no more")
        at = super().allocate(size)
        if size == 4 * 256:
            self.slabs.append(at)
        return at

    slabs: list[int]


def test_a_device_without_memory_swaps_from_there_on(monkeypatch):
    from edgedec.runtimes._device import frames

    monkeypatch.setattr(frames, "_SLAB", 4 * 256)
    device = Small()
    device.slabs = []
    held = PageFrames(device, 256)
    for page in range(20):
        held.add(page)
        device.write(held.address(page), np.full(256, page, np.uint8))
    assert held.most == 8
    assert held.away == 12
    out = np.empty(256, np.uint8)
    for page in range(20):
        held.read(page, 0, out)
        assert set(out.tolist()) == {page}
    for page in range(20):
        held.remove(page)
    assert held.away == 0


actions = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "write", "read", "pin"]), st.integers(0, 11)), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(actions=actions, most=st.integers(2, 5))
def test_any_use_of_pages_gives_back_what_was_written(actions, most):
    device, written = emulated.Emulated(), dict[int, int]()
    frames, out, peak = PageFrames(device, 256, most), np.empty(256, np.uint8), 0
    for n, (action, page) in enumerate(actions):
        if action == "add" and page not in written:
            frames.add(page)
        if page not in written and action != "add":
            continue
        if action in ("add", "write"):
            device.write(frames.address(page), np.full(256, n, np.uint8))
            written[page] = n
        if action == "pin":
            some = [page, *list(written)[: most - 1]][:most]
            with frames.pinned(some):
                places = [frames.address(one) for one in some]
                assert len(set(places)) == len(set(some))
        frames.read(page, 0, out)
        assert set(out.tolist()) == {written[page]}
        peak = max(peak, len(written))
        assert max(0, len(written) - most) <= frames.away <= len(written)
        assert (frames.swapped > 0) == (peak > most)
        if action == "remove":
            frames.remove(page)
            del written[page]


def test_what_ends_while_a_page_is_looked_for_is_given_back_after_that(bundle):
    """A garbage collection may end a table at any time in the thread that looks for a page."""
    pool = limited(bundle, 3)._pool
    held, done = [pool.take() for _ in range(3)], list[str]()
    read = pool.device.read

    def collecting(address: int, array: np.ndarray) -> None:
        pool.release(held[1:])
        done.append("asked")
        read(address, array)

    pool.device.read = collecting
    page = pool.take()
    assert done == ["asked"]
    assert pool.used == 2
    assert pool.holders(page) == 1
    pool.release([page, held[0]])
    assert (pool.used, pool.frames.away) == (0, 0)


def test_more_pinned_pages_than_fit_are_an_error():
    frames = PageFrames(emulated.Emulated(), 256, 2)
    for page in range(3):
        frames.add(page)
    with pytest.raises(MemoryError, match="the device's 2 pages are all in use"), frames.pinned([0, 1, 2]):
        pass
    with frames.pinned([0, 2]):
        pass


def test_the_scheduler_s_idle_texts_leave_the_device_and_come_back(nano: Path) -> None:
    """Texts end, others need the device's room, and one that begins as the first continues from its pages."""
    told = dict[str, list[list[int]]]()
    prompts = ["Once upon a time there was a " + f"{name}. " * 30 for name in ("dog", "cat", "bear", "dog")]
    for engine in ("native", "cuda"):
        size = 0
        if engine == "cuda":
            probe = edgedec.open(nano, engine=engine, kv="int8").runtime
            size = 5 * probe._pool.page_bytes + 1  # type: ignore[attr-defined]
        model = edgedec.open(nano, engine=engine, kv="int8", device_cache=size)
        batch, texts, reused = Batch(model.runtime, tokens=4096), list[list[int]](), list[int]()
        for prompt in prompts:
            session = model.session(context=200, speculate="off")
            tokens: list[int] = []
            text = model.tokenizer.encode(prompt)[:100]
            session.submit(batch, text, on_token=lambda t, held=tokens: held.append(int(t)) if t is not None else None,
                           max_tokens=3)  # fmt: skip
            batch.run()
            texts.append(tokens)
            reused.append(session.stats.cached)
        told[engine] = texts
    assert told["cuda"] == told["native"]
    assert told["cuda"][0] == told["cuda"][3]
    frames = model.runtime._pool.frames  # type: ignore[attr-defined]
    assert frames.swapped > 0
    assert frames.most == 5
    assert reused[3] >= 64


def test_a_server_of_several_models_swaps_each_ones_pages(nano: Path, tmp_path: Path) -> None:
    from edgedec.server.pool import ModelSource

    sizes = {kv: edgedec.open(nano, engine="cuda", kv=kv).runtime._pool.page_bytes for kv in ("int8", "int4")}  # type: ignore[attr-defined]
    opened = [edgedec.open(nano, engine="cuda", kv=kv, device_cache=4 * size + 1) for kv, size in sizes.items()]
    sources = [ModelSource(f"model-{i}", model.bundle, lambda m=model: (m, {})) for i, model in enumerate(opened)]
    with serving(sources, context=160, slots=2, tokens=2000) as (address, _):
        answers = dict[tuple[int, str], str]()
        for i, word in ((0, "dog"), (0, "cat"), (1, "dog"), (1, "cat"), (0, "dog"), (1, "dog")):
            asked = {"model": f"model-{i}", "prompt": f"A {word} " * 45, "max_tokens": 3, "temperature": 0}
            request = urllib.request.Request(f"{address}/v1/completions", json.dumps(asked).encode())
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = json.load(answer)["choices"][0]["text"]
            assert answers.setdefault((i, word), text) == text
    assert all(model.runtime._pool.frames.swapped > 0 for model in opened)  # type: ignore[attr-defined]
