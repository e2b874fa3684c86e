"""H2O (Zhang et al. 2023): the sum of what all rows so far paid decides; half of the budget is of the latest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Held, slots_of
from scripted import Scripted, Text, any_paid, pays, policy_of, spec_of

from edgedec.policies import TextSize
from edgedec.runtime import Outputs

SPEC = spec_of()


def test_heavy_hitters_by_hand() -> None:
    """16 slots, 12 stay: 4 first, 6 latest, and 2 of slots 4 to 9 by the sums over both heads and all rows.

    slot       4     5     8     9
    all rows   1     3     2.5   2.4      5 and 8
    mean a row .08   .27   .31   .34      9 and 8
    last row   1     0     0     2.4      9 and 4
    head 0     1     3     1     2.4      5 and 9
    """
    entries = {(0, 15, 4): 1, (0, 6, 5): 3, (0, 12, 8): 1, (1, 13, 8): 1.5, (0, 15, 9): 2.4}
    other = {(0, 10, 6): 1, (1, 11, 7): 1}
    text = Text(Scripted(SPEC, {0: pays(2, 16, entries), 2: pays(2, 16, other)}), "h2o:budget=12").read(16)
    assert text.kept() == [[0, 1, 2, 3, 5, 8, *range(10, 16)], [0, 1, 2, 3, 6, 7, *range(10, 16)]]


def test_history_counts_after_a_decision() -> None:
    """Slot 5 was paid in the prompt, slot 8 a little less before the second decision: 5 stays."""
    entries = {(0, 6, 5): 3.0, (0, 15, 8): 1.0, (0, 16, 8): 0.5, (0, 17, 8): 0.5, (0, 17, 12): 0.1}
    text = Text(Scripted(SPEC, {0: pays(2, 24, entries)}), "h2o:budget=12,every=6,observe=5").read(16).step(2)
    assert text.cache.length == 18
    assert text.kept()[0] == [0, 1, 2, 3, 5, 8, *range(12, 18)]


def test_of_equals_the_latest_stay() -> None:
    text = Text(Scripted(SPEC, {}), "h2o:budget=12").read(16)
    assert text.kept()[0] == [0, 1, 2, 3, 8, 9, *range(10, 16)]


def naive(paid, n: int, steps: int, budget: float, every: int, observe: int, most: int, heads=None) -> list[int]:
    held = Held(paid, heads)
    for row in range(n):
        if row and row % (4 * most) == 0:
            keep = slots_of(budget, row)
            held.evict(keep, 4, keep // 2)
        held.add([row])
        held.look([row])
    keep = slots_of(budget, n)
    held.evict(keep, 4, keep // 2)
    for row in range(n, n + steps + 1):
        if every and row % every == 0:
            keep = slots_of(budget, row)
            held.evict(keep, 4, keep // 2)
        if row < n + steps:
            held.add([row])
            if every and every - row % every <= observe:
                held.look([row])
    return held.at


CASES = {
    "seed": st.integers(0, 99),
    "n": st.integers(1, 70),
    "steps": st.integers(0, 20),
    "budget": st.sampled_from([0.3, 0.6, 9, 13, 24]),
    "every": st.sampled_from([0, 5, 7, 16]),
    "observe": st.integers(0, 4),
    "most": st.sampled_from([4, 6, 128]),
}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(**CASES)
def test_as_in_plain_loops(seed, n, steps, budget, every, observe, most) -> None:
    paid = {b: any_paid(seed + b, 2, n + steps) for b in (0, 2)}
    text = Text(Scripted(SPEC, paid), f"h2o:budget={budget},every={every},observe={observe}")
    text.read(n, most).step(steps)
    assert text.kept() == [naive(paid[b], n, steps, budget, every, observe, most) for b in (0, 2)]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(**CASES)
def test_heads_apart_as_in_plain_loops(seed, n, steps, budget, every, observe, most) -> None:
    paid = {b: any_paid(seed + b, 2, n + steps) for b in (0, 2)}
    words = f"h2o:budget={budget},every={every},observe={observe},heads=apart"
    text = Text(Scripted(SPEC, paid, apart=True), words).read(n, most).step(steps)
    for b in (0, 2):
        held = text.cache.data(b)[1][:, : text.cache.slots(b), 0].astype(int).tolist()
        assert held == [naive(paid[b], n, steps, budget, every, observe, most, [head]) for head in range(2)]


def test_chunks_end_where_decisions_are() -> None:
    runtime = Scripted(SPEC)
    Text(runtime, "h2o:budget=8").read(10, 4).read(7, 4)
    assert [len(call.rows) for call in runtime.calls] == [4, 4, 2, 2, 4, 2]
    assert all(call.outputs == Outputs(attention=True) for call in runtime.calls)


@pytest.mark.parametrize(
    ("size", "peak"),
    [
        (TextSize(0, 0, 901, 1000, 128), 64 + 512),
        (TextSize(64, 900, 901, 5000, 128), 64 + 32),
        (TextSize(64, 900, 901, 910, 128), 64 + 10),
        (TextSize(100, 100, 200, 300, 128), 199),
    ],
)
def test_peak(size: TextSize, peak: int) -> None:
    assert policy_of("h2o:budget=64,every=32", SPEC).peak(size) == peak
