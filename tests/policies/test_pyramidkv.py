"""PyramidKV (Cai et al. 2024): budgets fall in a line from the first block to the last."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Held, slots_of
from scripted import Scripted, Text, any_paid, pays, policy_of, spec_of

from edgedec.policies import TextSize
from edgedec.policies.pyramidkv import level

SPEC = spec_of(layers=3)


def test_budgets_by_hand() -> None:
    """Mean 20, slope 1.5: 30, 20 and 10 slots, the first block the most; slope 1: 20 each."""
    text = Text(Scripted(SPEC), "pyramidkv:budget=20,slope=1.5,window=2").read(60)
    assert [len(slots) for slots in text.kept()] == [30, 20, 10]
    text = Text(Scripted(SPEC), "pyramidkv:budget=20,slope=1,window=2").read(60)
    assert [len(slots) for slots in text.kept()] == [20, 20, 20]
    text = Text(Scripted(SPEC), "pyramidkv:budget=20,slope=2,window=2").read(60)
    assert [len(slots) for slots in text.kept()] == [36, 16, 8], "the last one keeps eight, the others give them"


def test_what_stays_is_chosen_as_by_snapkv() -> None:
    entries = {(0, 29, 7): 4.0, (1, 28, 12): 3.0, (0, 29, 20): 2.0, (0, 27, 9): 9.0}
    paid = {b: pays(2, 30, entries) for b in (0, 2, 4)}
    words = "pyramidkv:budget=9,slope=1.1,window=2,pool=1"
    assert Text(Scripted(SPEC, paid), words).read(30).kept() == [
        [0, 1, 2, 3, 7, 12, 20, 28, 29],
        [0, 1, 2, 3, 7, 12, 20, 28, 29],
        [0, 1, 2, 3, 7, 12, 28, 29],
    ]


@pytest.mark.parametrize(
    ("wanted", "most", "found"),
    [
        ([30, 20, 10], 25, [25, 22, 12]),
        ([30, 20, 10], 60, [30, 20, 10]),
        ([60, 30, 0], 100, [56, 26, 8]),
        ([60, 30, 0], 45, [45, 33, 11]),
        ([9, 9, 9], 9, [9, 9, 9]),
        ([5, 5, 5], 20, [8, 8, 8]),
        ([50, 50], 20, [20, 20]),
    ],
)
def test_levels(wanted: list[float], most: int, found: list[int]) -> None:
    assert level(np.array(wanted, float), most) == found


def naive_level(wanted: list[float], most: int) -> list[int]:
    """Clip; give each that is free the same part of what is missing or too much, until the sum is right."""
    total, found = sum(wanted), [min(max(x, 8.0), float(most)) for x in wanted]
    for _ in wanted:
        missing = total - sum(found)
        free = [i for i, x in enumerate(found) if (x < most if missing > 0 else x > 8)]
        if abs(missing) < 1 or not free:
            break
        for i in free:
            found[i] = min(max(found[i] + missing / len(free), 8.0), float(most))
    return [int(x) for x in found]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 80), min_size=1, max_size=6), st.integers(8, 90))
def test_levels_as_in_plain_loops(wanted: list[float], most: int) -> None:
    found = level(np.array(wanted), most)
    assert np.abs(np.array(found) - naive_level(wanted, most)).max() <= 1  # where a sum rounds to below a number
    assert all(8 <= x <= most for x in found)
    if 8 * len(wanted) <= sum(wanted) <= most * len(wanted):
        assert sum(found) <= sum(wanted) + 1
        assert sum(found) > sum(wanted) - len(wanted) - 1


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    n=st.integers(1, 70),
    steps=st.integers(0, 12),
    budget=st.sampled_from([0.3, 10, 20]),
    slope=st.sampled_from([1, 1.25, 1.5]),
    every=st.sampled_from([0, 6]),
)
def test_as_in_plain_loops(seed, n, steps, budget, slope, every) -> None:
    paid = {b: any_paid(seed + b, 2, n + steps) for b in (0, 2, 4)}
    words = f"pyramidkv:budget={budget},slope={slope},window=3,pool=3,every={every},observe=4"
    text = Text(Scripted(SPEC, paid), words).read(n).step(steps)
    blocks = {b: Held(paid[b]) for b in paid}

    def decide(length: int) -> None:
        keep = slots_of(budget, length)
        if keep < length:
            line = [keep * (slope + (2 - 2 * slope) * i / 2) for i in range(3)]
            for held, most in zip(blocks.values(), naive_level(line, length), strict=True):
                held.evict(most, 4, 3)
        for held in blocks.values():
            held.forget()

    for held in blocks.values():
        held.add(range(n))
        held.look(range(max(0, n - 3), n), 3)
    decide(n)
    for row in range(n, n + steps + 1):
        if every and row % every == 0:
            decide(row)
        for held in blocks.values() if row < n + steps else ():
            held.add([row])
            if every and every - row % every <= 4:
                held.look([row], 3)
    assert text.kept() == [held.at for held in blocks.values()]


def test_peak() -> None:
    policy = policy_of("pyramidkv:budget=64,slope=1.5,every=32", SPEC)
    assert policy.peak(TextSize(0, 0, 901, 1000, 128)) == 900
    assert policy.peak(TextSize(96, 900, 901, 5000, 128)) == 96 + 32
    assert policy.peak(TextSize(10, 900, 901, 5000, 128)) == 96 + 32
