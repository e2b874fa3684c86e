"""Views on the GPU engines: the native engine's bytes of logits and attention sums, whatever is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_engines import both, tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.kernels.cpu import loader
from edgedec.runtime import ALL_LOGITS, PAGE, Call, Outputs, Rows, Runtime, View

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
PAID = Outputs(logits=True, attention=True)
N = 330


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("views")


def some_views(runtime: Runtime, n: int = N) -> list[dict[int, View]]:
    """Of all attention blocks: streaming heads, pages by their bounds, lists, stripes, slots that stand for others, all
    of it for rows alone and together."""
    rng, found = np.random.default_rng(5), list[dict[int, View]]()
    heads = {b: block.n_kv_heads for b, block in runtime.spec.attention.items()}
    lists = {b: [np.sort(rng.choice(n, 70, replace=False)) for _ in range(count)] for b, count in heads.items()}
    runs = {b: [run_lengths(one, n) for one in many] for b, many in lists.items()}
    found.append(dict.fromkeys(heads, View(sinks=1, recent=8)))
    found.append(dict.fromkeys(heads, View(sinks=3, recent=70, pages=2)))
    found.append({b: View(recent=0, pages=(*range(kv - 1), None), group=2) for b, kv in heads.items()})
    found.append({b: View(recent=0, chosen=[np.array([h % 3, 3]) for h in range(kv)]) for b, kv in heads.items()})
    found.append({b: View(recent=0, slots=lists[b], pages=1, group=3) for b in heads})
    found.append(dict.fromkeys(heads, View(sinks=1, recent=4, theta=1.0, group=0)))
    found.append(dict.fromkeys(heads, View(recent=0, theta=0.1, pages=1, group=4)))
    found.append({b: View(recent=0, slots=lists[b], runs=runs[b], group=3) for b in heads})
    found.append({min(heads): View(sinks=64, recent=0)})
    return found


def run_lengths(slots: np.ndarray, n: int) -> np.ndarray:
    """How many slots each stands for: up to the next one or the end of its page."""
    return np.minimum(np.append(slots[1:], n) - slots, PAGE - slots % PAGE)


def seen(runtime: Runtime, kinds: range) -> list[bytes]:
    """Logits and attention sums of a tree, a chain and one row by each view, beside a shorter text."""
    cache, other, ids = runtime.new_cache(N + 20), runtime.new_cache(200), tokens(N)
    for at in range(0, N, 110):
        calls = [Call(Rows.chain(ids[at : at + 110], at), cache)]
        runtime.forward(calls)
        cache.commit(range(110))
    runtime.forward([Call(Rows.chain(ids[:130], 0), other)])
    other.commit(range(130))
    rows = [Rows.tree([1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 2, 2, 4, 5], N), Rows.chain(ids[:6], N), Rows.chain([9], N)]
    found, views = list[bytes](), some_views(runtime)
    short = dict.fromkeys(runtime.spec.attention, View(recent=0, pages=1))
    for kind in kinds:
        beside = {b: short[b] for b in views[kind]}
        for one in rows:
            calls = [Call(one, cache, outputs=PAID, views=views[kind])]
            calls += [Call(Rows.chain([3, 4], 130), other, outputs=PAID, views=beside)]
            for result in runtime.forward(calls):
                assert result.logits is not None
                found += [part.tobytes() for part in (result.logits, *result.attention.values())]
    return found


@pytest.mark.parametrize(
    ("engine", "model", "kv"),
    [
        ("cuda", "plain", "f32"),
        ("cuda", "windows", "int8"),
        ("cuda", "options", "int4"),
        ("cuda", "layer norms", "f16"),
        ("cuda", "gates of attention", "int8"),
        ("opencl", "plain", "int8"),
        ("opencl", "gates of attention", "int4"),
    ],
)
def test_what_is_seen_is_what_the_native_engine_sees(folders, engine, model, kv, monkeypatch):
    ours, theirs = both(folders, engine, model, kv, monkeypatch)
    found, expected = seen(ours, range(9)), seen(theirs, range(9))
    assert [a == b for a, b in zip(found, expected, strict=True)] == [True] * len(found)
    assert len(set(found)) > len(found) // 3


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Runtime, Any]]:
    """The emulated engine and the native one with a text of 300 tokens each."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        pair = both(tmp_path_factory.mktemp("any"), "cuda", "windows", "int8", monkeypatch)
    found = list[tuple[Runtime, Any]]()
    for runtime in pair:
        cache = runtime.new_cache(384)
        for at in (0, 150):
            runtime.forward([Call(Rows.chain(tokens(300)[at : at + 150], at), cache)])
            cache.commit(range(150))
        found.append((runtime, cache))
    return found


def per_head(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return numbers | st.tuples(numbers, numbers)


def lists(most: int) -> st.SearchStrategy[Any]:
    one = st.lists(st.integers(0, most), unique=True, max_size=8).map(lambda some: np.array(sorted(some), np.int64))
    return st.none() | st.lists(one, min_size=2, max_size=2)


@st.composite
def any_view(draw: st.DrawFn) -> View:
    slots, theta = draw(lists(299)), draw(st.none() | st.floats(0, 3, width=32))
    theta = None if slots is not None else theta
    runs = None
    if slots is not None and draw(st.booleans()):
        rooms = [np.minimum(np.append(one[1:], 300) - one, PAGE - one % PAGE) for one in slots]
        runs = [np.array([draw(st.integers(1, int(room))) for room in rooms[h]], np.int64) for h in range(2)]
    numbers = (draw(per_head(st.integers(0, 140))), draw(per_head(st.integers(0, 140))))
    pages = draw(per_head(st.none() | st.integers(0, 4)))
    return View(*numbers, pages, draw(lists(3)), slots, theta, runs, draw(st.integers(0, 5)))


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(views=st.dictionaries(st.sampled_from([0, 2, 4]), any_view(), min_size=1), tree=st.booleans())
def test_any_view_is_seen_as_by_the_native_engine(views, tree, read):
    rows = Rows.tree([1, 2, 3, 4], [-1, 0, 0, 2], 300) if tree else Rows.chain([5, 6, 7, 8, 9], 300)
    found = list[list[bytes]]()
    for runtime, cache in read:
        (result,) = runtime.forward([Call(rows, cache, outputs=PAID, views=views)])
        cache.rollback()
        assert result.logits is not None
        found.append([part.tobytes() for part in (result.logits, *result.attention.values())])
    assert found[0] == found[1]


def test_bounds_are_made_again_when_rows_of_a_page_change(folders, monkeypatch):
    """A page that is searched, then merged into, dropped from and cut: never the bounds of what it was."""
    found = list[list[bytes]]()
    for runtime in both(folders, "cuda", "plain", "f16", monkeypatch):
        cache, told = runtime.new_cache(384), list[bytes]()
        runtime.forward([Call(Rows.chain(tokens(250), 0), cache)])
        cache.commit(range(250))
        twin = cache.fork()
        for change in ("none", "merge", "drop", "cut", "fork"):
            if change == "merge":
                cache.merge(0, [70, 3], [8, 140], [30.0, -9.0])
            if change == "drop":
                cache.drop(2, list(range(3, 60)))
            if change == "cut":
                cache.truncate(200)
                runtime.forward([Call(Rows.chain([7] * 50, 200), cache)])
                cache.commit(range(50))
            one = twin if change == "fork" else cache
            views = dict.fromkeys((0, 2, 4), View(recent=0, pages=1))
            (result,) = runtime.forward([Call(Rows.chain([9], 250), one, outputs=ALL_LOGITS, views=views)])
            one.rollback()
            assert result.logits is not None
            told.append(result.logits.tobytes())
        assert told[0] == told[-1]
        found.append(told)
    assert found[0] == found[1]
    assert len(set(found[0])) == 4


@pytest.mark.parametrize("fails", ["launch", "write"])
def test_bounds_that_could_not_be_made_are_made_the_next_time(folders, fails, monkeypatch):
    """Without memory for it a search fails; the pages are not ranked by what their bounds' memory happened to hold."""
    views, found, failed = dict.fromkeys((0, 2, 4), View(recent=0, pages=1)), list[bytes](), list[str]()
    for n, runtime in enumerate(both(folders, "cuda", "plain", "f16", monkeypatch)):
        cache = runtime.new_cache(384)
        runtime.forward([Call(Rows.chain(tokens(250), 0), cache)])
        cache.commit(range(250))
        call = Call(Rows.chain([9], 250), cache, outputs=ALL_LOGITS, views=views)
        if not n:
            bounds = runtime._pool.bounds  # type: ignore[attr-defined]

            def failing(*_: object) -> None:
                failed.append(fails)
                raise MemoryError("no more")

            with monkeypatch.context() as patch:
                patch.setattr(bounds._device, fails, failing)
                with pytest.raises(MemoryError, match="no more"):
                    runtime.forward([call])
        (result,) = runtime.forward([call])
        assert result.logits is not None
        found.append(result.logits.tobytes())
    assert failed == [fails]
    assert found[0] == found[1]


def test_views_of_all_kinds_share_a_step(read):
    """Stripes, slots that stand for some, lists and searched pages of several texts, in one forward and one by one."""
    found, each = list[list[bytes]](), list[list[bytes]]()
    for runtime, cache in read:
        kinds = [views for views in some_views(runtime, 300) if len(views) > 1]
        calls = [Call(Rows.chain([5, 6], 300), cache.fork(), outputs=PAID, views=views) for views in kinds]
        told = [runtime.forward([call]) for call in calls]
        for call in calls:
            call.cache.rollback()
        told += [[result] for result in runtime.forward(calls)]
        bytes_ = [b"".join(part.tobytes() for part in (r.logits, *r.attention.values())) for (r,) in told]
        found.append(bytes_[: len(kinds)])
        each.append(bytes_[len(kinds) :])
    assert found[0] == each[0] == found[1] == each[1]
    assert len(set(found[0])) == 8


def test_weights_of_views_are_kept_of_one_head_at_a_time(folders, monkeypatch):
    from edgedec.runtimes._device import sums

    ours, theirs = both(folders, "cuda", "options", "f32", monkeypatch)
    monkeypatch.setattr(sums, "_KEPT_BYTES", 1)
    assert seen(ours, range(4, 8)) == seen(theirs, range(4, 8))
