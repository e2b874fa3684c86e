"""AnchorAttention (Zhang et al. 2025): stripes of slots that score near the highest of the first and latest ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, Text, policy_of, spec_of

from edgedec.runtime import PAGE, View
from edgedec.runtimes.reference.views import ScoredSlots, seen

SPEC = spec_of()


def stripes(keys: np.ndarray, queries: np.ndarray, view: View) -> list[list[list[int]]]:
    """The committed slots that each row of each kv head sees. keys [heads, slots, d], queries [heads, group, rows, d],
    all rows after all slots."""
    scores = queries @ keys[:, None].transpose(0, 1, 3, 2)
    n, rows = keys.shape[1], queries.shape[2]
    ranks = np.full(rows, n)
    scored = ScoredSlots(queries, keys, scores, n, ranks, lambda q: q @ keys[:, None].transpose(0, 1, 3, 2))
    return [[np.flatnonzero(row).tolist() for row in head] for head in seen(view, scored)]


def test_stripes_by_hand() -> None:
    """Page 0 first, page 3 latest, two rows of one group: q (2) and (4), keys of one dimension.

    Highest of the first and latest: 3 (slot 5), so anchors are 6 and 12, their mean 9; the mean query is 3. With theta
    3 a slot is read from 6 on: keys of 2 and more (70), not 1.9 (75). By rows apart: 6 - 3 over 2 = 1.5 of the first
    (75 too) and (12 - 3) / 4 = 2.25 of the second (not 70). By the anchors' maximum nothing of 2.
    """
    keys = np.zeros((1, 4 * PAGE, 1), np.float32)
    keys[0, 5], keys[0, 70], keys[0, 75], keys[0, 130] = 3, 2, 1.9, 5
    queries = np.array([[[[2.0], [4.0]]]], np.float32)
    always = [*range(PAGE), *range(3 * PAGE, 4 * PAGE)]
    assert stripes(keys, queries, View(1, PAGE, theta=3.0, group=0)) == [[sorted([*always, 70, 130])] * 2]
    apart = stripes(keys, queries, View(1, PAGE, theta=3.0, group=1))
    assert apart == [[sorted([*always, 70, 75, 130]), sorted([*always, 130])]]
    keys[0, 3 * PAGE + 3] = 3.3
    assert stripes(keys, queries, View(1, PAGE, theta=3.0, group=0)) == [[sorted([*always, 130])] * 2]
    assert stripes(keys, queries, View(1, PAGE, theta=-9.0, group=0)) == [[always] * 2]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 999),
    rows=st.integers(1, 7),
    group=st.sampled_from([0, 1, 2, 3]),
    theta=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_as_in_plain_loops(seed: int, rows: int, group: int, theta: float) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.normal(0, 1, (2, 4 * PAGE + 9, 3)).astype(np.float32)
    queries = rng.normal(0, 1, (2, 2, rows, 3)).astype(np.float32)
    found = stripes(keys, queries, View(70, 64, theta=theta, group=group))
    n, step = keys.shape[1], group or rows
    always = [slot for slot in range(n) if slot < 2 * PAGE or slot >= (n - 64) // PAGE * PAGE]
    for head in range(2):
        for start in range(0, rows, step):
            members = range(start, min(start + step, rows))
            near = set(always)
            for query in range(2):
                q = queries[head, query].astype(float)
                anchors = [max(float(q[row] @ keys[head, slot]) for slot in always) for row in members]
                anchor = sum(anchors) / len(anchors)
                mean = sum(q[row] for row in members) / len(members)
                near |= {slot for slot in range(n) if float(mean @ keys[head, slot]) >= anchor - theta}
            assert [found[head][row] for row in members] == [sorted(near)] * len(members)


def test_prompts_are_read_under_it_and_steps_see_all() -> None:
    runtime = Scripted(SPEC)
    text = Text(runtime, "anchor:theta=2.5,sinks=3,recent=70,group=9").read(250, 100)
    assert [len(call.rows) for call in runtime.calls] == [100, 100, 50]
    for call in runtime.calls:
        assert call.views is not None
        assert {b: (v.sinks, v.recent, v.theta, v.group, v.pages) for b, v in call.views.items()} == dict.fromkeys(
            (0, 2), (3, 70, 2.5, 9, 0)
        )
    text.step(2)
    assert all(call.views is None for call in runtime.calls[3:])
    assert policy_of("anchor", SPEC).room(9) == 1 << 30
    assert text.policy.report(text.cache)["looked_at"] == 252


@pytest.mark.parametrize("words", ["anchor:theta=1e9", "anchor"])
def test_states_are_none(words: str) -> None:
    assert policy_of(words, SPEC).state() == {}
