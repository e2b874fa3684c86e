"""What a view lets rows see, merged slots, keys of a cache: the reference against arithmetic written out here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bundles import random_weights

from edgedec.cache import HostCache
from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, PAGE, Call, Outputs, Rows, View, forward_one
from edgedec.runtimes.reference import Reference
from edgedec.runtimes.reference.views import page_bounds
from edgedec.spec import Attention, Mlp, ModelSpec, Rope

HEADS = Attention(4, 2, 8, 0.35)
PAID = Outputs(logits=True, attention=True)


def runtime(block: Attention = HEADS) -> Reference:
    rope = Rope(tuple(1e3 ** (-j / 4) for j in range(4)))
    spec = ModelSpec("views", 53, 24, 600, ((block, Mlp(16)), (block, Mlp(16))), 1e-5, True, (rope,))
    weights = random_weights(spec, 5)
    return Reference(spec, lambda name, a, b: weights(name)[a:b])


def text(found: Reference, n: int = 5 * PAGE + 20) -> HostCache:
    cache = found.new_cache(600)
    ids = np.random.default_rng(1).integers(0, 53, n)
    for at in range(0, n, 128):
        part = ids[at : at + 128]
        forward_one(found, Call(Rows.chain(part, at), cache))
        cache.commit(range(len(part)))
    return cache


def seen(found: Reference, cache: HostCache, view: View, rows: Rows | None = None) -> np.ndarray:
    """bool [kv_heads, slots]: what the first block's rows pay attention to."""
    rows = rows or Rows.chain([7], cache.length)
    result = forward_one(found, Call(rows, cache, outputs=PAID, views={0: view}))
    assert (result.attention[2] > 0).all()  # the other block has no view
    return result.attention[0] > 0


def pages(mask: np.ndarray, committed: int) -> list[list[int]]:
    """The committed pages of which a head sees something; each is seen whole."""
    found = []
    for head in mask:
        parts = [head[at : min(at + PAGE, committed)] for at in range(0, committed, PAGE)]
        assert all(part.all() or not part.any() for part in parts)
        assert head[committed:].all()
        found.append([i for i, part in enumerate(parts) if part.any()])
    return found


def test_sinks_and_recent_by_head() -> None:
    found = runtime()
    cache = text(found)
    n = cache.length
    assert pages(seen(found, cache, View(sinks=1, recent=20)), n) == [[0, 5], [0, 5]]
    assert pages(seen(found, cache, View(sinks=(0, PAGE + 1), recent=(21, 0))), n) == [[4, 5], [0, 1, 5]]
    assert pages(seen(found, cache, View(pages=(None, 0), recent=0)), n) == [[0, 1, 2, 3, 4, 5], [5]]


def test_pages_by_bounds_are_the_best_of_those_left() -> None:
    found = runtime()
    cache = text(found)
    lows, highs = page_bounds(cache.keys(0))
    keys = cache.keys(0)
    assert (lows <= keys[:, : 5 * PAGE].reshape(2, 5, PAGE, 8).min(axis=2)).all()
    assert (highs >= keys[:, : 5 * PAGE].reshape(2, 5, PAGE, 8).max(axis=2)).all()
    chosen = pages(seen(found, cache, View(sinks=1, recent=0, pages=2)), cache.length)
    for head in chosen:
        assert len(head) == 4
        assert (head[0], head[-1]) == (0, 5)
    assert chosen[0] != chosen[1]
    for count in range(5):  # more pages are the same and one more
        more = pages(seen(found, cache, View(recent=0, pages=count)), cache.length)
        less = pages(seen(found, cache, View(recent=0, pages=max(0, count - 1))), cache.length)
        assert all(set(b) <= set(a) and len(a) == count + 1 for a, b in zip(more, less, strict=True))


def test_lists_of_pages_and_slots() -> None:
    found = runtime()
    cache = text(found)
    n = cache.length
    lists = (np.array([1, 3]), np.array([], np.int64))
    assert pages(seen(found, cache, View(recent=0, chosen=lists)), n) == [[1, 3, 5], [5]]
    mask = seen(found, cache, View(recent=0, slots=(np.array([70, 3, 3]), np.array([200]))))
    assert [np.flatnonzero(head[: 5 * PAGE]).tolist() for head in mask] == [[3, 70], [200]]


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ([1, 2, 9], [1, 2, 9]),
        ([5, 2, 9], [2, 5, 9]),
        ([2, 9, 5], [2, 5, 9]),
        ([9, 5, 2], [2, 5, 9]),
        ([1, 2, 2], [1, 2]),
        ([3], [3]),
        ([], []),
    ],
)
def test_lists_are_ascending_and_each_number_is_there_once(given: list[int], listed: list[int]) -> None:
    assert View(slots=(given, [4])).listed("slots", 0).tolist() == listed
    assert View(slots=(given, [4])).listed("slots", 1).tolist() == [4]


def test_stripes_are_near_the_anchor() -> None:
    found = runtime()
    cache = text(found)
    rows = Rows.chain([7, 8, 9, 10], cache.length)
    counts = [
        int(seen(found, cache, View(sinks=1, recent=PAGE, theta=theta, group=0), rows)[:, : 4 * PAGE].sum())
        for theta in (-100.0, 2.0, 4.0, 100.0)
    ]
    assert counts[0] == 2 * PAGE
    assert counts[0] < counts[1] < counts[2] < counts[3] == 2 * 4 * PAGE


def test_everything_in_view_is_as_without() -> None:
    found = runtime(replace(HEADS, window=100, sinks=3, softcap=3.0))
    cache = text(found)
    tree = Rows.tree([1, 2, 3, 4], [-1, 0, 0, 2], cache.length)
    plain = forward_one(found, Call(tree, cache, outputs=ALL_LOGITS)).logits
    for view in (
        View(pages=None),
        View(recent=600),
        View(theta=1e9),
        View(pages=9),
        View(recent=0, pages=None, group=0),
    ):
        np.testing.assert_array_equal(
            forward_one(found, Call(tree, cache, outputs=ALL_LOGITS, views={0: view, 2: view})).logits, plain
        )


def test_a_row_sees_the_same_in_a_tree() -> None:
    found = runtime()
    cache = text(found)
    view = {0: View(1, 32, 1), 2: View(1, 32, (1, 2))}
    tree = Rows.tree([1, 2, 3, 4], [-1, 0, 0, 2], cache.length)
    together = forward_one(found, Call(tree, cache, outputs=ALL_LOGITS, views=view)).logits
    for token, row in zip([1, 3, 4], [0, 2, 3], strict=True):
        alone = forward_one(
            found, Call(Rows.chain([token], cache.length), cache, outputs=ALL_LOGITS, views=view)
        ).logits
        cache.commit([0])
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (View(sinks=-1), "sinks -1"),
        (View(recent=(1,)), r"recent \(1,\)"),
        (View(pages=(1, -3)), "pages"),
        (View(slots=(np.array([0]),)), "slots of 1 kv heads"),
        (View(slots=(np.array([0]), np.array([9999]))), "slots 9999 to 9999 of kv head 1"),
        (View(chosen=(np.array([5]), np.array([0]))), "chosen 5 to 5 of kv head 0: the block holds 5"),
        (View(group=-1), "group -1"),
    ],
)
def test_views_that_cannot_be_are_refused(view: View, said: str) -> None:
    found = runtime()
    cache = text(found)
    with pytest.raises(UsageError, match=f"view of block 0: .*{said}"):
        seen(found, cache, view)


def test_a_view_of_no_attention_block_is_refused() -> None:
    found = runtime()
    cache = text(found, 20)
    row = Rows.chain([1], 20)
    for block, blocks in ((1, None), (9, None), (2, [0, 1])):
        with pytest.raises(UsageError, match=f"view of block {block}"):
            found.forward([Call(row, cache, blocks, views={block: View()})])
    found.capabilities = replace(found.capabilities, views=False)
    with pytest.raises(UsageError, match="declares no views"):
        found.forward([Call(row, cache, views={0: View()})])


@pytest.mark.parametrize("kv", ["f32", "f16", "int8", "int4"])
def test_merged_slots(kv: str) -> None:
    found = runtime()
    scales = {b: np.full((2, 2, 1, 8), 0.05, np.float32) for b in (0, 2)}
    found.kv, found._scales = kv, scales if kv in ("int8", "int4") else {}
    cache = text(found, 90)
    before, other = cache.keys(0), cache.keys(2)
    weights = np.array([[0.25, 0.5, 0.1], [0.5, 0.0, 0.9]], np.float32)
    cache.merge(0, [30, 30, 4], [10, 20, 50], weights)
    after = cache.keys(0)
    within = {"f32": 1e-6, "f16": 2e-3, "int8": 0.026, "int4": 0.026}[kv]
    for head, (a, b, c) in enumerate(weights):
        expected = (1 - a - b) * before[head, 30] + a * before[head, 10] + b * before[head, 20]
        np.testing.assert_allclose(after[head, 30], expected, atol=within)
        np.testing.assert_allclose(after[head, 4], (1 - c) * before[head, 4] + c * before[head, 50], atol=within)
    stay = np.setdiff1d(np.arange(90), [30, 4])
    np.testing.assert_array_equal(after[:, stay], before[:, stay])
    np.testing.assert_array_equal(cache.keys(2), other)
    assert not np.array_equal(after, before)


def test_merges_that_cannot_be_are_refused() -> None:
    found = runtime()
    cache = text(found, 20)
    for into, slots, weights in (
        ([1], [2, 3], [0.5, 0.5]),
        ([1], [2], [[0.5]]),
        ([1, 2], [2, 3], [0.5, 0.5]),
        ([1], [20], [0.5]),
        ([-1], [2], [0.5]),
        ([1], [2], [float("nan")]),
    ):
        with pytest.raises(UsageError, match="merge"):
            cache.merge(0, into, slots, weights)
    with pytest.raises(UsageError, match="block 1"):
        cache.merge(1, [0], [1], [0.5])
