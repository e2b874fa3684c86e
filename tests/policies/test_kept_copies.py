"""Copies of listed slots and sums of runs that the native engine keeps: the bytes that it would compute anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import random_weights, write_bundle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import PAGE, Call, Outputs, Rows, View
from edgedec.spec import Attention, Mlp, ModelSpec, Rope

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")

PAID = Outputs(logits=True, attention=True)
IDS = np.random.default_rng(0).integers(0, 53, 2000)


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("copies")
    rope = Rope(tuple(1e3 ** (-j / 4) for j in range(4)))
    windows = Attention(4, 2, 8, 0.35, window=300, sinks=2)
    spec = ModelSpec(
        "copies", 53, 24, 800, ((Attention(4, 2, 8, 0.35), Mlp(16)), (windows, Mlp(16))), 1e-5, True, (rope,)
    )
    bundle = write_bundle(folder / "b", spec, random_weights(spec, 4))
    return {kv: native.NativeRuntime(bundle, kv, 2, None) for kv in ("f32", "int8")}


def grow(runtime: Any, cache: Any, n: int, view: dict[int, View] | None = None) -> None:
    rows = Rows.chain(IDS[cache.length : cache.length + n], cache.length)
    runtime.forward([Call(rows, cache, views=view)])
    cache.commit(range(n))


def bytes_of(runtime: Any, cache: Any, rows: Rows, views: dict[int, View]) -> list[bytes]:
    result = runtime.forward([Call(rows, cache, outputs=PAID, views=views)])[0]
    cache.rollback()
    return [result.logits.tobytes(), *(part.tobytes() for part in result.attention.values())]


def runs_of(held: int, seed: int, runs: bool, recent: int = 64) -> View:
    """Some slots of both heads; of a longer text these and more."""
    lists, lengths = [], []
    for head in range(2):
        rng = np.random.default_rng(seed * 2 + head)
        slots = np.flatnonzero(rng.random(900) < 0.3)
        slots = slots[slots < held]
        ends = np.minimum(np.append(slots[1:], held), (slots // PAGE + 1) * PAGE)
        lists.append(slots)
        lengths.append(np.maximum(ends - slots, 1))
    return View(sinks=4, recent=recent, slots=lists, runs=lengths if runs else None)


OPS = ("grow", "truncate", "drop", "drop_by_head", "merge", "fork", "load", "view", "runs", "tree", "offload")


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(kv=st.sampled_from(["f32", "int8"]), seed=st.integers(0, 99), ops=st.lists(st.sampled_from(OPS), max_size=12))
def test_as_computed_anew(runtimes: dict[str, Any], tmp_path: Path, kv: str, seed: int, ops: list[str]) -> None:
    """Whatever happens to a cache between steps: what they see is that of a cache that was just loaded."""
    runtime, rng = runtimes[kv], np.random.default_rng(seed)
    cache, others, which, runs = runtime.new_cache(800), list[Any](), seed, True
    for _ in range(3):
        grow(runtime, cache, 120)
    for op in ["view", *ops]:
        held = min(cache.slots(b) for b in (0, 2))
        some = np.sort(rng.choice(held - 70, 9, replace=False)) if held > 90 else np.zeros(0, np.int64)
        if op == "grow" and cache.length < 600:
            views = {b: runs_of(cache.slots(b), which, runs) for b in (0, 2)}
            grow(runtime, cache, int(rng.integers(1, 90)), views)
        elif op == "truncate":
            cache.truncate(max(100, cache.length - int(rng.integers(1, 130))))
        elif op == "drop" and len(some):
            cache.drop(0, some)
        elif op == "drop_by_head" and len(some):
            cache.drop_by_head(0, np.stack([some, some + 1]))
        elif op == "merge" and len(some):
            cache.merge(0, some[:3].tolist(), some[3:6].tolist(), [0.5, 0.25, 0.5])
        elif op == "fork":
            others.append(cache)
            cache = cache.fork()
        elif op == "load":
            cache.load({name: np.array(part) for name, part in cache.save().items()})
        elif op == "view":
            which = int(rng.integers(0, 3))
        elif op == "runs":
            runs = not runs
        elif op == "offload":
            cache.offload(0, [0, 1], str(tmp_path))
        tree = op == "tree"
        rows = Rows.tree([1, 2, 3, 4], [-1, 0, 1, 0], cache.length) if tree else Rows.chain([7], cache.length)
        fresh = runtime.new_cache(800)
        fresh.load(cache.save())
        views = {b: runs_of(cache.slots(b), which, runs) for b in (0, 2)}
        twice = [bytes_of(runtime, each, rows, views) for each in (cache, cache, fresh)]
        assert twice[0] == twice[1] == twice[2], op


def test_rows_that_see_fewer_slots_share_the_copies(runtimes: dict[str, Any]) -> None:
    """A chain over the edge of a page: the later rows list a page more, the earlier ones still read it as a whole."""
    runtime = runtimes["f32"]
    cache = runtime.new_cache(800)
    for n in (128, 128, 126):
        grow(runtime, cache, n)
    views = {b: runs_of(382, 1, True, recent=60) for b in (0, 2)}
    rows = Rows.chain(IDS[382:390], 382)
    together = runtime.forward([Call(rows, cache, outputs=PAID, views=views)])[0].logits
    cache.rollback()
    for i in range(8):
        alone = runtime.forward([Call(Rows.chain(IDS[382 : 383 + i], 382), cache, outputs=PAID, views=views)])[0].logits
        cache.rollback()
        assert alone[-1].tobytes() == together[i].tobytes()


def test_memory_of_copies(runtimes: dict[str, Any]) -> None:
    """As many pages as the lists take, once; less after the text is cut, none in a fork."""
    runtime = runtimes["f32"]
    cache = runtime.new_cache(800)
    for _ in range(3):
        grow(runtime, cache, 120)
    before = cache.nbytes
    view = View(recent=64, slots=[np.arange(0, 250, 2), np.arange(3)])
    page = 2 * PAGE * 8 * 4  # keys and values of a head
    for _ in range(2):
        bytes_of(runtime, cache, Rows.chain([7], cache.length), {0: view})
        assert cache.nbytes == before + 3 * page, "125 slots are two pages, 3 are one"
    assert cache.fork().nbytes == before
    cache.truncate(127)
    assert cache.nbytes == (2 * 2 * 2 + 2) * page, "two pages of two heads in two blocks; 64 slots are one, 2 are one"
    cache.truncate(0)
    assert cache.nbytes == 0


def test_lists_are_checked_once_and_again_where_a_block_holds_less(runtimes: dict[str, Any]) -> None:
    runtime = runtimes["f32"]
    cache = runtime.new_cache(800)
    for _ in range(3):
        grow(runtime, cache, 120)
    for view, held, said in (
        (View(slots=[np.array([3, 299]), np.array([5])]), 299, "slots 3 to 299 of kv head 0: the block holds 299"),
        (View(chosen=[np.array([1]), np.array([3])]), 255, "chosen 3 to 3 of kv head 1: the block holds 3"),
        (View(slots=[np.array([3]), np.array([290])], runs=[np.array([1]), np.array([9])]), 298, "runs of kv head 1"),
    ):
        short = cache.fork(held + 1)
        bytes_of(runtime, short, Rows.chain([7], held + 1), {0: view})
        short.truncate(held)
        with pytest.raises(UsageError, match=said):
            bytes_of(runtime, short, Rows.chain([7], held), {0: view})
