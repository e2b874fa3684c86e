"""Quest (Tang et al. 2024): pages by the highest score that their key bounds allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, Text, policy_of, spec_of

from edgedec.errors import UsageError
from edgedec.runtime import PAGE, View
from edgedec.runtimes.reference.views import ScoredSlots, seen

SPEC = spec_of(layers=4)


def pages_seen(keys: np.ndarray, queries: np.ndarray, view: View) -> list[list[int]]:
    """The full pages that each kv head of one row sees. keys [heads, slots, d], queries [heads, group, d]."""
    scores = queries @ keys.transpose(0, 2, 1)
    n = keys.shape[1]
    found = seen(view, ScoredSlots(queries[:, :, None], keys, scores[:, :, None], n, np.array([n]), lambda q: q))
    return [[p for p in range(n // PAGE) if head[0, p * PAGE : p * PAGE + PAGE].any()] for head in found]


def paged(*pages: list[tuple[float, ...]]) -> np.ndarray:
    """[1, slots, d]: keys of full pages: these, and the last of them again."""
    d = len(pages[0][0])
    found = np.zeros((len(pages), PAGE, d), np.float32)
    for page, given_ in zip(found, pages, strict=True):
        page[: len(given_)], page[len(given_) :] = given_, given_[-1]
    return found.reshape(1, -1, d)


def test_bounds_by_hand() -> None:
    """One query (1, -1), pages 0 to 4, one page is chosen beside the first and the last.

    page                            1           2           3
    keys                            (4,4)(0,0)  (3,3)(1,1)  (2,0)(1,0)
    bound: max x - min y            4 - 0 = 4   3 - 1 = 2   2 - 0 = 2      1
    best score of one key           0           0           2              3
    bound of the largest keys only  0           0           2              3
    score of the mean key           0           0           1+             3
    least bound: min x - max y     -4          -2           1              3
    """
    keys = paged([(0, 0)], [(4, 4), (0, 0)], [(3, 3), (1, 1)], [(2, 0), (1, 0)], [(0, 0)])
    query = np.array([[[1, -1]]], np.float32)
    assert pages_seen(keys, query, View(1, PAGE, 1)) == [[0, 1, 4]]
    assert pages_seen(keys, query, View(1, PAGE, 2)) == [[0, 1, 2, 4]], "of equals the first"
    assert pages_seen(keys, -query, View(1, PAGE, 1)) == [[0, 1, 4]]
    assert pages_seen(keys, query * [1, 0], View(1, PAGE, 2)) == [[0, 1, 2, 4]]
    assert pages_seen(keys, query * [0, 1], View(1, PAGE, 2)) == [[0, 1, 3, 4]]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 999),
    pages=st.integers(3, 8),
    rest=st.integers(0, PAGE - 1),
    count=st.integers(0, 4),
    sinks=st.sampled_from([0, 1, 70]),
    recent=st.sampled_from([0, 64, 100]),
)
def test_as_in_plain_loops(seed, pages, rest, count, sinks, recent) -> None:
    rng = np.random.default_rng(seed)
    n = pages * PAGE + rest
    keys, queries = rng.normal(0, 1, (2, n, 3)).astype(np.float32), rng.normal(0, 1, (2, 2, 3)).astype(np.float32)
    keys = np.round(keys * 16) / 16  # bounds in bfloat16 are exact
    expected = []
    for head in range(2):
        always = {p for p in range(pages) if p * PAGE < sinks or (p + 1) * PAGE > n - recent}
        bounds = {}
        for page in set(range(pages)) - always:
            part = keys[head, page * PAGE : (page + 1) * PAGE].astype(float)
            bounds[page] = max(
                sum(max(q[i] * part[:, i].min(), q[i] * part[:, i].max()) for i in range(3))
                for q in queries[head].astype(float)
            )
        best = sorted(bounds, key=lambda page: (-bounds[page], page))[:count]
        expected.append(sorted(always | set(best)))
    assert pages_seen(keys, queries, View(sinks, recent, count)) == expected


def shown(words: str, n: int, layers: int = 4) -> dict[int, tuple]:
    """Of the views of a step after n tokens: first, latest, pages, rows that share them."""
    runtime = Scripted(spec_of(layers=layers))
    Text(runtime, words, 4000).read(n).step(1)
    views = runtime.calls[-1].views or {}
    return {b: (view.sinks, view.recent, view.pages, view.group) for b, view in views.items()}


def test_views_by_hand() -> None:
    """Of 512 tokens, 8 pages, 1 is of the first, 2 and a part of the latest: 4 are left to be found."""
    assert shown("quest:budget=512", 900) == dict.fromkeys((4, 6), (4, 128, 4, 1))
    assert shown("quest:budget=512,dense=0,recent=64,sinks=65", 900) == dict.fromkeys((0, 2, 4, 6), (65, 64, 4, 1))
    assert shown("quest:budget=512,dense=1", 900).keys() == {2, 4, 6}
    assert shown("quest:budget=512,dense=4", 900) == {}
    assert shown("quest:budget=9,dense=3", 900) == {6: (4, 128, 1, 1)}, "one at least"
    assert shown("quest:budget=1,dense=0", 900) == {}
    with pytest.raises(UsageError, match=r"dense=5: must be from 0 to 4"):
        policy_of("quest:dense=5", SPEC)


def test_shares_are_of_the_length_at_the_next_256() -> None:
    """.5 of 768 tokens is 6 pages; from 768 tokens on .5 of 1024, 8."""
    assert shown("quest:budget=0.5,dense=3", 767)[6][2] == 6 - 4
    assert shown("quest:budget=0.5,dense=3", 768)[6][2] == 8 - 4
    policy = policy_of("quest:budget=0.5", SPEC)
    assert [policy.room(length) for length in (512, 640, 766, 767)] == [128, 127, 1, 0]
    assert policy_of("quest:budget=512", SPEC).room(767) == 128
    assert policy_of("quest:budget=512,recent=200", SPEC).room(767) == 200


def test_views_change_when_shares_do() -> None:
    runtime = Scripted(SPEC)
    text = Text(runtime, "quest:budget=0.5,dense=0", 4000).read(767).step(2)
    before, after = (call.views[0].pages for call in runtime.calls[-2:])  # type: ignore[index]
    assert (before, after) == (2, 4)
    assert all(call.views is None for call in runtime.calls[:-2]), "prompts are read as a whole"
    assert text.policy.state() == {}


def test_report() -> None:
    text = Text(Scripted(SPEC), "quest:budget=512", 4000).read(900)
    report = text.policy.report(text.cache)
    assert (report["looked_at"], report["budget"], report["share"]) == (512, "512 tokens", 1)
    short = Text(Scripted(SPEC), "quest:budget=512").read(100)
    assert short.policy.report(short.cache)["looked_at"] == 100
    whole = Text(Scripted(SPEC), "quest:budget=1").read(100)
    assert whole.policy.report(whole.cache)["looked_at"] == 100
    assert text.cache.slots(0) == 900
