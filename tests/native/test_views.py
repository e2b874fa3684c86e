"""Views and attention sums of the native engine: the same bytes whatever shares a call, forks, formats and threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import random_weights, write_bundle

from edgedec.errors import SessionError
from edgedec.kernels.cpu import loader, page_slots
from edgedec.runtime import PAGE, Call, Outputs, Rows, View, forward_one
from edgedec.runtimes.reference import Reference
from edgedec.spec import Attention, Mlp, ModelSpec, Rope

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")

OUTPUTS = Outputs(logits=True, attention=True)
LENGTH = 700
FORMATS = ["f32", "f16", "int8", "int4"]
VIEWS = [
    View(sinks=4, recent=100, pages=3),
    View(recent=70, pages=(1, None)),
    View(sinks=(0, 65), recent=(64, 200)),
    View(recent=64, slots=(np.arange(0, 400, 7), np.array([5]))),
    View(sinks=1, recent=128, theta=1.5, group=1),
    View(recent=64, pages=2, slots=(np.arange(0, 600, 5), np.arange(3, 600, 5)), group=1),
]


def opened(folder: Path, kv: str, threads: int = 1, isa: str | None = None) -> Any:
    rope = Rope(tuple(1e3 ** (-j / 16) for j in range(16)))
    heads = Attention(6, 2, 40, 0.2)
    spec = ModelSpec("views", 53, 24, 800, ((heads, Mlp(16)), (heads, Mlp(16))), 1e-5, True, (rope,))
    bundle = write_bundle(folder / f"{threads}{isa}", spec, random_weights(spec, 4))
    return native.NativeRuntime(bundle, kv, threads, isa)


def read(runtime: Any, n: int = LENGTH) -> Any:
    cache, ids = runtime.new_cache(800), np.random.default_rng(0).integers(0, 53, n)
    for at in range(0, n, 128):
        part = ids[at : at + 128]
        runtime.forward([Call(Rows.chain(part, at), cache)])
        cache.commit(range(len(part)))
    return cache


def both(runtime: Any, cache: Any, rows: Rows, view: View | None) -> tuple[bytes, bytes]:
    """The logits and the first block's attention, as bytes."""
    views = None if view is None else dict.fromkeys((0, 2), view)
    found = runtime.forward([Call(rows, cache, outputs=OUTPUTS, views=views)])[0]
    return found.logits.tobytes(), found.attention[0].tobytes()


def test_pages_are_the_engine_s() -> None:
    assert page_slots() == PAGE


@pytest.mark.parametrize("kv", FORMATS)
def test_a_row_has_the_same_bytes_in_a_tree(tmp_path: Path, kv: str) -> None:
    runtime = opened(tmp_path, kv)
    cache = read(runtime)
    tree = Rows.tree([1, 2, 3, 4, 5, 6], [-1, 0, 0, 2, 3, 1], LENGTH)
    for view in VIEWS:
        together = runtime.forward([Call(tree, cache, outputs=OUTPUTS, views={0: view, 2: view})])[0].logits
        cache.rollback()
        twin = cache.fork()
        for row in (0, 2, 3, 4):
            alone = runtime.forward(
                [Call(Rows.chain(tree.tokens[[row]], twin.length), twin, outputs=OUTPUTS, views={0: view, 2: view})]
            )[0]
            assert alone.logits[0].tobytes() == together[row].tobytes()
            twin.commit([0])


@pytest.mark.parametrize("kv", FORMATS)
def test_threads_instruction_sets_and_saved_content_change_nothing(tmp_path: Path, kv: str) -> None:
    runtime = opened(tmp_path, kv)
    cache = read(runtime)
    for view in VIEWS:
        rows = Rows.chain([1, 2, 3], LENGTH)
        expected = both(runtime, cache, rows, view)
        for other in (opened(tmp_path, kv, threads=3), opened(tmp_path, kv, isa="scalar")):
            loaded = other.new_cache(800)
            loaded.load(cache.save())
            assert both(other, loaded, rows, view) == expected
        cache.rollback()
        assert both(runtime, cache.fork(), rows, view) == expected


def test_forgotten_slots_leave_no_trace_in_bounds(tmp_path: Path) -> None:
    """Pages that were full, with bounds made, and are filled with something else."""
    runtime = opened(tmp_path, "f32")
    view, row = View(recent=0, pages=2), Rows.chain([3], LENGTH)
    expected = both(runtime, read(runtime), row, view)
    cache = read(runtime)
    both(runtime, cache, row, view)
    for change in (
        lambda: cache.truncate(300),
        lambda: (cache.drop(0, range(0, 400, 3)), cache.truncate(0)),
        lambda: (cache.merge(0, [3, 200], [300, 100], [0.5, 0.5]), cache.truncate(0)),
    ):
        twin = cache.fork()
        change()
        both(runtime, cache, Rows.chain([1] * 70, cache.length), view)  # and rolled back
        cache.rollback()
        ids = np.random.default_rng(0).integers(0, 53, LENGTH)
        while cache.length < LENGTH:
            part = ids[cache.length : min(LENGTH, cache.length // 128 * 128 + 128)]
            runtime.forward([Call(Rows.chain(part, cache.length), cache)])
            cache.commit(range(len(part)))
        assert both(runtime, cache, row, view) == expected
        assert both(runtime, twin, row, view) == expected


def test_bounds_follow_dropped_and_merged_slots(tmp_path: Path) -> None:
    runtime = opened(tmp_path, "f32")
    cache, view = read(runtime), View(recent=0, pages=2)
    both(runtime, cache, Rows.chain([3], LENGTH), view)  # bounds are made
    cache.merge(0, [0, 70], [100, 300], [3.0, -2.0])
    cache.drop(2, range(10, 300, 2))
    loaded = runtime.new_cache(800)
    loaded.load(cache.save())
    row = Rows.chain([3], LENGTH)
    assert both(runtime, cache, row, view) == both(runtime, loaded, row, view)


def test_bounds_go_with_their_cache(tmp_path: Path) -> None:
    runtime = opened(tmp_path, "f32")
    cache = read(runtime)
    held = runtime.pages
    both(runtime, cache, Rows.chain([3], LENGTH), View(pages=1))
    assert runtime.pages == held + 2 * (LENGTH // PAGE)  # one of bounds for each full page of two blocks
    twin = cache.fork()
    assert runtime.pages == held + 2 * (LENGTH // PAGE)
    del cache, twin
    assert runtime.pages == 0


@pytest.mark.parametrize("kv", FORMATS)
def test_attention_sums_have_the_same_bytes_kept_or_made_again(tmp_path: Path, kv: str) -> None:
    """Texts that share pages in one call are not kept weights for: the sums are made of their keys once more."""
    runtime = opened(tmp_path, kv)
    cache = read(runtime)
    twin = cache.fork()
    calls = [Call(Rows.chain([7 + i], LENGTH), each, outputs=OUTPUTS) for i, each in enumerate((cache, twin))]
    alone = [runtime.forward([call])[0] for call in calls]
    together = runtime.forward(calls)
    for one, other in zip(alone, together, strict=True):
        for block, paid in one.attention.items():
            assert paid.tobytes() == other.attention[block].tobytes()
            np.testing.assert_allclose(paid.sum(axis=1), 3, rtol=1e-5)


def test_views_and_whole_caches_in_one_call(tmp_path: Path) -> None:
    runtime = opened(tmp_path, "int8", threads=2)
    cache = read(runtime)
    caches = [cache, cache.fork(), cache.fork(), cache.fork()]
    rows = [Rows.chain([5 + i] * (i + 1), LENGTH) for i in range(4)]
    views = [None, VIEWS[0], None, VIEWS[3]]
    alone = [both(runtime, each, r, v) for each, r, v in zip(caches, rows, views, strict=True)]
    calls = [
        Call(r, each, outputs=OUTPUTS, views=v and {0: v, 2: v}) for each, r, v in zip(caches, rows, views, strict=True)
    ]
    found = runtime.forward(calls)
    assert [(f.logits.tobytes(), f.attention[0].tobytes()) for f in found] == alone


def test_of_pages_that_score_alike_the_first_are_seen(tmp_path: Path) -> None:
    """The same 64 tokens six times, without positions: in the first block all pages have the same bounds."""
    heads = Attention(6, 2, 40, 0.2, rope=None)
    spec = ModelSpec("alike", 53, 24, 800, ((heads, Mlp(16)),), 1e-5, True, ())
    runtime = native.NativeRuntime(write_bundle(tmp_path / "alike", spec, random_weights(spec, 4)), "f32", 1, None)
    cache, ids = runtime.new_cache(800), np.random.default_rng(0).integers(0, 53, PAGE)
    for at in range(0, 6 * PAGE, PAGE):
        runtime.forward([Call(Rows.chain(ids, at), cache)])
        cache.commit(range(PAGE))
    for pages in (1, 3):
        call = Call(Rows.chain([3], 6 * PAGE), cache, outputs=OUTPUTS, views={0: View(recent=0, pages=pages)})
        paid = runtime.forward([call])[0].attention[0]
        seen = paid[:, : 6 * PAGE].reshape(2, 6, PAGE).sum(axis=2) > 0
        assert seen.tolist() == [[page < pages for page in range(6)]] * 2


def same_choices(runtime: Any, cache: Any) -> None:
    """Rows choose the pages that they choose of a cache of the same content whose bounds are made anew."""
    loaded = runtime.new_cache(800)
    loaded.load(cache.save())
    for token in range(8):
        row = Rows.chain([token], cache.length)
        for pages in range(1, 6):
            view = View(recent=0, pages=pages)
            assert both(runtime, cache, row, view) == both(runtime, loaded, row, view)


def test_a_fork_of_a_part_has_bounds_of_its_own(tmp_path: Path) -> None:
    """Of the page in which it goes on, the other cache's bounds are of another text."""
    runtime = opened(tmp_path, "f32")
    cache = read(runtime)
    both(runtime, cache, Rows.chain([3], LENGTH), View(pages=1))  # bounds are made
    for length in (4 * PAGE, 4 * PAGE + 1, 5 * PAGE - 1):
        twin, part = cache.fork(length), np.random.default_rng(length).integers(0, 53, 2 * PAGE)
        runtime.forward([Call(Rows.chain(part, length), twin)])
        twin.commit(range(len(part)))
        same_choices(runtime, twin)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("drop", [range(PAGE + 2, 2 * PAGE)]),
        ("drop", [range(PAGE, 2 * PAGE + 1)]),
        ("drop_by_head", [np.array([range(PAGE + 9, 2 * PAGE), range(PAGE + 2, 2 * PAGE - 7)])]),
        ("merge", [[70, 90], [300, 500], [-9.0, 12.0]]),
        ("truncate", [5 * PAGE + 3]),
    ],
)
def test_bounds_are_of_what_a_page_holds_now(tmp_path: Path, name: str, args: list[Any]) -> None:
    runtime = opened(tmp_path, "f32")
    cache = read(runtime)
    both(runtime, cache, Rows.chain([3], LENGTH), View(pages=1))  # bounds are made
    getattr(cache, name)(*([0, *args] if name != "truncate" else args))
    same_choices(runtime, cache)


@pytest.mark.parametrize("group", [0, 1, 3])
def test_stripes_are_those_of_the_reference(tmp_path: Path, group: int) -> None:
    """Nine rows in groups of three, of one, or all together: of each kv head those slots whose score by the mean query
    is near the mean of the rows' highest scores."""
    heads, rows = Attention(6, 2, 40, 1.5, rope=None), 9
    spec = ModelSpec("stripes", 53, 24, 800, ((heads, Mlp(16)),), 1e-5, True, ())
    bundle = write_bundle(tmp_path / "stripes", spec, random_weights(spec, 4))
    seen = []
    reference = Reference(spec, lambda name, a, b: bundle.rows(name, a, b), "f32")
    for runtime in (native.NativeRuntime(bundle, "f32", 1, None), reference):
        cache, ids = runtime.new_cache(800), np.random.default_rng(3).integers(0, 53, 300 + rows)
        for at in (0, 150):
            forward_one(runtime, Call(Rows.chain(ids[at : at + 150], at), cache))
            cache.commit(range(150))
        for theta in (4.0, 16.0, 32.0, 64.0):
            views = {0: View(sinks=1, recent=PAGE, theta=theta, group=group)}
            found = forward_one(runtime, Call(Rows.chain(ids[300:], 300), cache, outputs=OUTPUTS, views=views))
            cache.rollback()
            seen.append(found.attention[0][:, :300] > 0)
    for ours, theirs in zip(seen[:4], seen[4:], strict=True):
        assert ours.tolist() == theirs.tolist()
    between = [int(each[:, PAGE : 300 - 2 * PAGE].sum()) for each in seen]
    assert between[:4] == sorted(between[:4])
    assert any(0 < n < 2 * (300 - 3 * PAGE) for n in between)


HELD = 5 * PAGE


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, Any]]:
    """The engine and the reference, each with a text of five full pages."""
    heads = Attention(6, 2, 40, 1.5, rope=None)
    spec = ModelSpec("pair", 53, 24, 800, ((heads, Mlp(16)),), 1e-5, True, ())
    bundle = write_bundle(tmp_path_factory.mktemp("pair") / "b", spec, random_weights(spec, 4))
    reference = Reference(spec, lambda name, a, b: bundle.rows(name, a, b), "f32")
    return [(runtime, read(runtime, HELD)) for runtime in (native.NativeRuntime(bundle, "f32", 1, None), reference)]


def paid_of(pair: list[tuple[Any, Any]], rows: Rows, view: View) -> np.ndarray:
    """The attention [kv_heads, slots] of these rows together: in the engine as in the reference."""
    found = []
    for runtime, cache in pair:
        found.append(forward_one(runtime, Call(rows, cache, outputs=OUTPUTS, views={0: view})).attention[0])
        cache.rollback()
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    return found[0]


@pytest.mark.parametrize(
    ("recent", "first"), [(0, 5), (1, 4), (PAGE, 4), (PAGE + 1, 3), (4 * PAGE, 1), (4 * PAGE + 1, 0), (999, 0)]
)
@pytest.mark.parametrize("n", [1, 70])
def test_what_is_recent_begins_before_the_first_row(pair: Any, recent: int, first: int, n: int) -> None:
    paid = paid_of(pair, Rows.chain([3] * n, HELD), View(recent=recent, group=0))
    assert (paid[:, :HELD].reshape(2, 5, PAGE) > 0).all(axis=2).tolist() == [[page >= first for page in range(5)]] * 2
    assert (paid[:, HELD:] > 0).all()


def test_the_first_row_of_a_group_is_that_of_the_shortest_path(pair: Any) -> None:
    """Rows 2 and 3 follow two and one drafted tokens: page 3 ends 66 slots before row 3, and 67 before row 2."""
    rows = Rows.tree([3, 4, 5, 6], [-1, 0, 1, 0], HELD)
    paid = paid_of(pair, rows, View(recent=PAGE + 2, group=2))
    assert (paid[:, 3 * PAGE : HELD] > 0).all()
    assert not paid[:, : 3 * PAGE].any()


def test_pages_are_chosen_as_the_reference_does(pair: Any) -> None:
    chosen = set[tuple[int, ...]]()
    for token in range(12):
        for pages in (1, 2, 3, (1, 3)):
            paid = paid_of(pair, Rows.chain([token], HELD), View(recent=0, pages=pages))
            seen = (paid[:, :HELD].reshape(2, 5, PAGE) > 0).any(axis=2)
            assert seen.sum(axis=1).tolist() == [pages] * 2 if isinstance(pages, int) else list(pages)
            chosen |= {tuple(np.flatnonzero(head)) for head in seen}
    assert len(chosen) > 9


@pytest.mark.parametrize("slots", [([70], [9]), ([70], [9, 130, 131]), (range(0, 65), range(100, 229))])
@pytest.mark.parametrize("run", [1, 3])
def test_few_slots_are_seen_for_others(pair: Any, slots: Any, run: int) -> None:
    """Each alone, or for itself and the two after it."""
    lists = [np.array(each)[:: max(1, run)] if len(each) > 3 else np.array(each[:1]) for each in slots]
    lists = [each[each % PAGE <= PAGE - run] for each in lists]
    view = View(recent=0, slots=lists, runs=[np.full(len(each), run) for each in lists] if run > 1 else None)
    paid = paid_of(pair, Rows.chain([3, 4], HELD), view)
    assert [np.flatnonzero(head[:HELD]).tolist() for head in paid] == [each.tolist() for each in lists]


def test_slots_that_stand_for_others_beside_chosen_pages(pair: Any) -> None:
    """Rows that choose different pages list different slots: no two of them can share what is kept for runs."""
    lists = [np.arange(head, HELD - 4, 5) for head in range(2)]
    lists = [each[each % PAGE < PAGE - 4] for each in lists]
    view = View(recent=0, pages=1, slots=lists, runs=[np.full(len(each), 4) for each in lists], group=1)
    rows = Rows.tree(list(range(6)), [-1] * 6, HELD)
    whole = set[int]()
    for row in range(6):
        alone = paid_of(pair, Rows.chain([row], HELD), view)[0, :HELD].reshape(5, PAGE)
        whole |= set(np.flatnonzero((alone > 0).all(axis=1)).tolist())
    assert len(whole) > 1, "not all of them choose the same page"
    found = []
    for runtime, cache in pair:
        found.append(forward_one(runtime, Call(rows, cache, outputs=OUTPUTS, views={0: view})).logits)
        cache.rollback()
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


@pytest.mark.parametrize("first", [1, 5, PAGE - 1, PAGE, PAGE + 7])
def test_dropping_from_shared_pages_leaves_both_texts_whole(pair: Any, first: int) -> None:
    cache = pair[0][1]
    before, slots = cache.keys(0), [first, first + 1, first + 90]
    twin = cache.fork()
    twin.drop(0, slots)
    np.testing.assert_array_equal(twin.keys(0), np.delete(before, slots, axis=1))
    np.testing.assert_array_equal(cache.keys(0), before)


@pytest.mark.parametrize("wrong", [{0: -1}, {3: 2}])
def test_tokens_of_a_saved_text_ascend(pair: Any, wrong: dict[int, int]) -> None:
    """Slots are followed by the tokens that they are of: 0, 2, 3, and so on."""
    runtime, whole = pair[0]
    cache = whole.fork()
    cache.drop(0, [1])
    saved = {name: np.array(part) for name, part in cache.save().items()}
    held = cache.slots(0)
    names = np.r_[0, 2 : held + 1].astype(np.int64).tobytes()
    found = 0
    for part in saved.values():
        raw = part.reshape(-1).view(np.uint8)
        at = raw.tobytes().find(names)
        if at >= 0:
            found += 1
            for slot, token in wrong.items():
                raw[at + 8 * slot : at + 8 * slot + 8] = np.frombuffer(np.int64(token).tobytes(), np.uint8)
    assert found == 1
    runtime.new_cache(800).load(cache.save())
    with pytest.raises(SessionError, match="cached values"):
        runtime.new_cache(800).load(saved)
