"""StreamingLLM (Xiao et al. 2023): the first tokens and the latest ones, whatever anything is paid."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import slots_of
from scripted import Scripted, Text, policy_of, spec_of

from edgedec.policies import TextSize

SPEC = spec_of()


def test_first_and_latest_by_hand() -> None:
    text = Text(Scripted(SPEC), "streaming:budget=10,sinks=3,every=5").read(18)
    assert text.kept() == [[0, 1, 2, *range(11, 18)]] * 2
    assert text.step(1).kept()[0] == [0, 1, 2, *range(11, 19)]
    assert text.step(1).kept()[0] == [0, 1, 2, *range(13, 20)]
    assert Text(Scripted(SPEC), "streaming:budget=10,sinks=0").read(18).kept()[0] == list(range(8, 18))
    assert Text(Scripted(SPEC), "streaming:budget=10,sinks=30").read(18).kept()[0] == list(range(10))


def naive(n: int, steps: int, budget: float, sinks: int, every: int, most: int) -> list[int]:
    held = list[int]()

    def cut(length: int) -> None:
        keep = slots_of(budget, length)
        first = min(sinks, keep)
        if len(held) > keep:
            held[:] = held[:first] + held[len(held) - (keep - first) :]

    for row in range(n):
        if row % (4 * most) == 0:
            cut(row)
        held.append(row)
    cut(n)
    for row in range(n, n + steps + 1):
        if row % every == 0:
            cut(row)
        if row < n + steps:
            held.append(row)
    return held


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 90),
    steps=st.integers(0, 20),
    budget=st.sampled_from([0.3, 9, 13, 24]),
    sinks=st.sampled_from([0, 3, 11, 40]),
    every=st.sampled_from([1, 4, 16]),
    most=st.sampled_from([3, 6, 128]),
)
def test_as_in_plain_loops(n, steps, budget, sinks, every, most) -> None:
    text = Text(Scripted(SPEC), f"streaming:budget={budget},sinks={sinks},every={every}").read(n, most).step(steps)
    assert text.kept() == [naive(n, steps, budget, sinks, every, most)] * 2


def test_chunks_end_where_decisions_are() -> None:
    runtime = Scripted(SPEC)
    Text(runtime, "streaming:budget=8").read(10, 4).read(7, 4)
    assert [len(call.rows) for call in runtime.calls] == [4, 4, 2, 2, 4, 2]
    assert not any(call.outputs.attention for call in runtime.calls)


@pytest.mark.parametrize(
    ("size", "peak"),
    [
        (TextSize(0, 0, 901, 1000, 128), 64 + 512),
        (TextSize(64, 900, 901, 5000, 128), 64 + 32),
    ],
)
def test_peak(size: TextSize, peak: int) -> None:
    policy = policy_of("streaming:budget=64,every=32", SPEC)
    assert policy.peak(size) == peak
    assert policy.room(32) == 31
    assert policy.room(63) == 0
