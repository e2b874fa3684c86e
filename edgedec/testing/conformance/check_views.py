"""Views, merged slots, keys: the slots that rows see, compared with the reference."""

from __future__ import annotations

import numpy as np

from edgedec.cache import Cache
from edgedec.cache.base import Ints
from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, PAGE, Call, Outputs, Rows, Runtime, View, forward_one
from edgedec.testing.conformance.compare import ROOM, close, logits, read, run, same, text, tokens, tree
from edgedec.testing.conformance.suite import Subject, check, refused_without

_PAID = Outputs(logits=True, attention=True)


@refused_without("views")
def _viewing(runtime: Runtime) -> object:
    cache, _ = text(runtime, tokens(runtime.spec, 5))
    return run(
        runtime,
        Rows.chain([1], 5),
        cache,
        views={block: View() for block in list(runtime.spec.attention)[:1]} or {0: View()},
    )


@refused_without("merge")
def _merging(runtime: Runtime) -> object:
    cache, _ = text(runtime, tokens(runtime.spec, 5))
    cache.merge(next(iter(runtime.spec.attention), 0), [1], [2], [0.5])
    return None


def _some(runtime: Runtime, n: int) -> list[dict[int, View]]:
    """Views of all attention blocks: pages by bounds, streaming heads, lists, stripes."""
    heads = {b: block.n_kv_heads for b, block in runtime.spec.attention.items()}
    rng = np.random.default_rng(3)
    lists = {b: [np.sort(rng.choice(n, 9, replace=False)) for _ in range(count)] for b, count in heads.items()}
    whole = n // PAGE
    return [
        dict.fromkeys(heads, View(sinks=1, recent=8)),
        dict.fromkeys(heads, View(recent=4, pages=1)),
        {b: View(recent=0, pages=(*[0] * (count - 1), None)) for b, count in heads.items()},
        {
            b: View(recent=0, chosen=[np.array([whole - 1 - h % whole]) for h in range(count)])
            for b, count in heads.items()
        },
        {b: View(recent=0, slots=lists[b], pages=1, group=3) for b in heads},
        dict.fromkeys(heads, View(sinks=1, recent=4, theta=1.0, group=0)),
        {b: View(recent=0, slots=lists[b], runs=[_runs(one, n) for one in lists[b]], group=3) for b in heads},
    ]


def _runs(slots: Ints, n: int) -> Ints:
    """Runs from these slots on, up to 5 each, to the next one or the end of a page."""
    room = np.minimum(np.append(slots[1:], n) - slots, PAGE - slots % PAGE)
    return np.minimum(room, 5)


def _sloped(subject: Subject, model: str) -> bool:
    """Whether scores have a part by distance: then views are refused, which this checks."""
    runtime = subject.runtime(model)
    sloped = [b for b, block in runtime.spec.attention.items() if block.slopes]
    for b in sloped:
        try:
            run(runtime, Rows.chain([1], 0), runtime.new_cache(4), views={b: View()})
        except UsageError:
            continue
        raise AssertionError(f"accepted: a view of block {b}, whose scores have a part by distance")
    return bool(sloped)


@check("views: what is seen, beside the reference", needs="views")
def seen(subject: Subject, model: str) -> None:
    n = ROOM - 12
    if _sloped(subject, model):
        return
    ids, found = tokens(subject.runtime(model).spec, n), []
    for runtime in subject.both(model):
        cache, _ = text(runtime, ids)
        rows = (tree(runtime.spec, n), Rows.chain(ids[:7], n), Rows.chain(ids[:1], n))
        found.append(
            [forward_one(runtime, Call(r, cache, outputs=_PAID, views=v)) for v in _some(runtime, n) for r in rows]
        )
    for number, (ours, theirs) in enumerate(zip(*found, strict=True)):
        where = f"rows {number % 3} with view {number // 3}"
        close(logits(ours), logits(theirs), f"logits of {where}")
        for block, paid in theirs.attention.items():
            close(ours.attention[block], paid, f"attention of {where}, block {block}")
            assert ((ours.attention[block] > 0) == (paid > 0)).all(), f"{where}, block {block}: other slots are seen"


@check("views: one that leaves everything in view changes nothing", needs="views")
def whole(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    if _sloped(subject, model):
        return
    cache, _ = text(runtime, tokens(runtime.spec, ROOM - 12))
    rows = tree(runtime.spec, cache.length)
    plain = logits(run(runtime, rows, cache))
    for view in (View(pages=None), View(recent=ROOM), View(recent=1, pages=ROOM)):
        views = dict.fromkeys(runtime.spec.attention, view)
        same(subject, logits(run(runtime, rows, cache, views=views)), plain, f"logits with {view}")


@check("views: a row of a tree sees what it would see alone", needs="views")
def alone(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    if _sloped(subject, model):
        return
    ids = tokens(runtime.spec, ROOM - 12)
    cache, _ = text(runtime, ids)
    views = dict.fromkeys(runtime.spec.attention, View(recent=8, pages=1))
    rows = tree(runtime.spec, cache.length)
    together = logits(run(runtime, rows, cache, views=views))
    cache.rollback()
    twin = cache.fork()
    for row in (0, 1, 3):
        step = run(runtime, Rows.chain([int(rows.tokens[row])], twin.length), twin, views=views)
        same(subject, logits(step)[0], together[row], f"row {row} alone")
        twin.commit([0])


@check("views: wrong ones are refused, and change nothing", needs="views")
def wrong(subject: Subject, model: str) -> None:
    runtime = subject.runtime(model)
    cache, _ = text(runtime, tokens(runtime.spec, 20))
    attention = list(runtime.spec.attention)
    given = [{runtime.spec.n_blocks: View()}]
    for block in attention[:1]:
        given += [{block: View(sinks=-1)}, {block: View(recent=(1,) * 9)}, {block: View(pages=-2)}]
        given += [{block: View(slots=[np.array([20])] * runtime.spec.attention[block].n_kv_heads)}]
        given += [{block: View(group=-1)}]
    for views in given:
        try:
            run(runtime, Rows.chain([1], 20), cache, views=views)
        except UsageError:
            continue
        raise AssertionError(f"accepted: {views}")
    same(subject, read(runtime, [1], cache), text(runtime, [*tokens(runtime.spec, 20), 1])[1][20:], "the next token")


@check("merge: slots that are merged into others, beside the reference", needs="merge")
def merged(subject: Subject, model: str) -> None:
    n, found = ROOM - 40, list[Cache]()
    ids = tokens(subject.runtime(model).spec, n)
    for runtime in subject.both(model):
        cache, _ = text(runtime, ids)
        for block in runtime.spec.attention:
            before, fork = cache.keys(block), cache.fork()
            cache.merge(block, [9, 9, 70, 71], [3, 100, 5, 6], [0.5, 0.125, 0.25, 0.75])
            assert not np.array_equal(cache.keys(block), before), "nothing was merged"
            assert np.array_equal(fork.keys(block), before), "a fork was changed"
            cache.drop(block, [3, 5, 6, 100])
            if block != list(runtime.spec.attention)[-1]:
                continue
            try:
                cache.merge(block, [1], [1], [0.5])
            except UsageError:
                continue
            raise AssertionError("a slot is merged into itself")
        found.append(cache)
    ours, theirs = found
    for block in subject.runtime(model).spec.attention:
        close(ours.keys(block), theirs.keys(block), f"keys of block {block}")
    rows = [Rows.chain(ids[:3], n)] * 2
    after = [logits(run(r, rows[i], found[i], ALL_LOGITS)) for i, r in enumerate(subject.both(model))]
    close(after[0], after[1], "logits after merging")


@refused_without("queries")
def _querying(runtime: Runtime) -> object:
    blocks = tuple(runtime.spec.attention)[:1] or (0,)
    return run(runtime, Rows.chain([1], 0), runtime.new_cache(4), Outputs(queries=blocks))


@check("queries: the scores that they give are the reference's", needs="queries")
def queries(subject: Subject, model: str) -> None:
    blocks, found = tuple(subject.runtime(model).spec.attention), []
    for runtime in subject.both(model):
        cache, _ = text(runtime, tokens(runtime.spec, 20))
        rows = tree(runtime.spec, 20)
        found.append(run(runtime, rows, cache, Outputs(queries=blocks)).queries)
    assert found[0].keys() == set(blocks), f"queries of blocks {list(found[0])}, asked: {blocks}"
    for block in blocks:
        close(found[0][block], found[1][block], f"queries of block {block}")
