"""The slots that a view leaves visible, in numpy: pages by their bounds, lists, and stripes by their difference to an
anchor."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime import PAGE, View
from edgedec.runtimes.reference.numeric import Array

Mask = NDArray[np.bool_]


class ScoredSlots(NamedTuple):
    """q [kv_heads, group, n, d]; keys [kv_heads, total, d]; scores [kv_heads, group, n, total], -inf where hidden;
    committed: how many slots come before the pending rows; ranks [n]: how many slots a row sees before its own;
    score: scores of other queries of that shape; sink [kv_heads, group, 1]: a score of no token."""

    q: Array
    keys: Array
    scores: Array
    committed: int
    ranks: NDArray[np.int64]
    score: Callable[[Array], Array]
    sink: Array | None = None


def seen(view: View, s: ScoredSlots) -> Mask:
    """The visible slots, bool [kv_heads, n, total]: committed slots in the view, and all pending ones."""
    heads, _, n, _ = s.q.shape
    out = np.ones((heads, n, s.keys.shape[1]), bool)
    lows, highs = page_bounds(s.keys[:, : s.committed])
    for rows in view.groups(n):
        for head in range(heads):
            pages = _always(view, s, head, rows)
            pages |= _retrieved(view, s.q[head, :, rows], lows[head], highs[head], ~pages, head)
            slots = np.repeat(pages, PAGE)[: s.committed]
            slots[view.listed("slots", head)] = True
            out[head, rows, : s.committed] = slots
    return out if view.theta is None else _striped(view, s, out)


def standing_for(view: View, masked: Array, visible: Mask) -> tuple[Array, NDArray[np.int64]]:
    """Scores [kv_heads, group, n, total] in which the slots of a run have that of its first, and whose each slot's
    weight is counted as [kv_heads, total]. visible: what is seen without runs."""
    out, owner = masked.copy(), np.tile(np.arange(masked.shape[-1]), (len(masked), 1))
    for head in range(len(masked)):
        first = view.listed("slots", head)
        for slot, run in zip(first.tolist(), view.stands_for(head).tolist(), strict=True):
            alone = ~visible[head, :, slot + 1 : slot + run].any(axis=1)  # rows that do not see the page
            out[head][:, alone, slot : slot + run] = masked[head][:, alone, slot, None]
            owner[head, slot : slot + run] = slot if alone.all() else owner[head, slot : slot + run]
    return out, owner


def page_bounds(keys: Array) -> tuple[Array, Array]:
    """The least and the largest key of each full page [kv_heads, pages, d], rounded outward to bfloat16. keys
    [kv_heads, slots, d]."""
    heads, slots, d = keys.shape
    pages = keys[:, : slots // PAGE * PAGE].reshape(heads, -1, PAGE, d)
    return -_up(-pages.min(axis=2)), _up(pages.max(axis=2))


def _up(x: Array) -> Array:
    """x rounded up to a bfloat16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    found: Array = ((bits + np.where(x > 0, np.uint32(0xFFFF), np.uint32(0))) & np.uint32(0xFFFF0000)).view(np.float32)
    return found


def _always(view: View, s: ScoredSlots, head: int, rows: slice) -> Mask:
    """Pages visible without a search, bool [pages], the last partial page included."""
    heads, first = len(s.keys), int(s.ranks[rows].min())
    sinks, recent = view.numbers("sinks", heads)[head], view.numbers("recent", heads)[head]
    starts = np.arange(0, s.committed, PAGE)
    pages: Mask = (starts < sinks) | (starts + PAGE > first - recent) | (starts + PAGE > s.committed)
    pages[view.listed("chosen", head)] = True
    return pages


def _retrieved(view: View, q: Array, low: Array, high: Array, left: Mask, head: int) -> Mask:
    """The pages with the highest bounds among the others, bool [pages]. q [group, rows, d]; low, high [full
    pages, d]."""
    heads_numbers = view.pages if isinstance(view.pages, tuple) else None
    count = view.pages if heads_numbers is None else heads_numbers[head]
    assert not isinstance(count, tuple)
    if count is None:
        return left
    queries = q.reshape(-1, q.shape[-1])
    bounds = np.maximum(queries, 0) @ high.T + np.minimum(queries, 0) @ low.T
    best = np.where(
        left[: len(low)], np.nan_to_num(bounds.max(axis=0), nan=-np.inf, posinf=np.inf, neginf=-np.inf), -np.inf
    )
    order = np.lexsort((np.arange(len(best)), -best, ~left[: len(low)]))
    found = np.zeros(len(left), bool)
    found[order[: min(count, int(left[: len(low)].sum()))]] = True
    return found


def _striped(view: View, s: ScoredSlots, base: Mask) -> Mask:
    """`base`, and of each group the slots whose score by the mean query is at most theta below the mean anchor."""
    anchors = np.where(base[:, None], s.scores, -np.inf).max(axis=-1)  # [kv_heads, group, n]
    anchors = anchors if s.sink is None else np.maximum(anchors, s.sink)
    out = base.copy()
    for rows in view.groups(base.shape[1]):
        mean = s.q[:, :, rows].mean(axis=2, keepdims=True)
        scores = s.score(mean)[:, :, 0, : s.committed]
        near = scores >= anchors[:, :, rows].mean(axis=2)[..., None] - np.float32(view.theta or 0)
        out[:, rows, : s.committed] |= near.any(axis=1)[:, None]
    return out
