"""PrefixKV (Wang et al. 2024): all blocks keep the same share of their attention, found by binary search."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Held, slots_of, smoothed
from scripted import Scripted, Text, any_paid, pays, policy_of, spec_of

from edgedec.policies import TextSize
from edgedec.policies.prefixkv import prefixes, shares_carried

SPEC = spec_of()


def test_the_same_share_in_all_blocks_by_hand() -> None:
    """Two blocks of 24 slots, 20 stay of both; window 2, four first: at least eight each.

    Block 0 pays 10 slots equally, block 2 one slot 91 % and nine others 1 % each. With a share of up to 90 % block 0
    needs 9 slots or fewer, block 2 one; with 90.5 to 91 % 10 and 1. So block 0 keeps 10, block 2 its least, 8:
    from 91 % on block 2 needs 2, ..., at 97 % 7 and at 98 % 8, at 100 % 10: sizes 10 and 10 are 20, all of the budget.
    Of a budget of 18 the share is 98 %: 10 and 8.
    """
    flat = pays(2, 24, {(0, 23, slot): 1.0 for slot in range(5, 15)})
    steep = pays(2, 24, {(0, 23, slot): 1.0 if slot > 5 else 91.0 for slot in range(5, 15)})
    text = Text(Scripted(SPEC, {0: flat, 2: steep}), "prefixkv:budget=10,window=2,pool=1").read(24)
    assert text.kept() == [[0, 1, 2, 3, *range(11, 15), 22, 23], [0, 1, 2, 3, 5, *range(12, 15), 22, 23]]
    text = Text(Scripted(SPEC, {0: flat, 2: steep}), "prefixkv:budget=9,window=2,pool=1").read(24)
    assert [len(slots) for slots in text.kept()] == [10, 8]


def test_shares_carried() -> None:
    assert shares_carried(np.array([1, 6, 3], np.float32)).tolist() == [0.6, 0.9, 1.0]
    assert shares_carried(np.zeros(3, np.float32)).tolist() == [0, 0.5, 1]
    assert shares_carried(np.zeros(0, np.float32)).tolist() == []


def test_sizes_by_hand() -> None:
    """a .5 .8 1, b .9 1 1: with p in (.5, .8] a needs 2 and b 1; with p above .9 b needs 2, above .8 a 3."""
    a, b = np.array([0.5, 0.8, 1.0]), np.array([0.9, 1.0, 1.0])
    assert prefixes({1: a, 3: b}, 3, 1) == {1: 2, 3: 1}
    assert prefixes({1: a, 3: b}, 4, 1) == {1: 3, 3: 1}
    assert prefixes({1: a, 3: b}, 2, 1) == {1: 1, 3: 1}
    assert prefixes({1: a, 3: b}, 5, 1) == {1: 3, 3: 2}
    assert prefixes({1: a, 3: b}, 5, 2) == {1: 3, 3: 2}
    assert prefixes({1: a, 3: b}, 3, 2) == {1: 2, 3: 2}, "the least each"


def naive_sizes(scores: list[list[float]], total: int, least: int) -> list[int]:
    """Of all shares that any block can carry, the largest at which the sizes fit."""
    ranked = [
        np.cumsum(sorted(one, reverse=True)) / sum(one) if sum(one) else np.linspace(0, 1, len(one)) for one in scores
    ]
    best = [least] * len(scores)
    for p in sorted({float(x) for one in ranked for x in one}):
        sizes = [max(least, 1 + sum(x < p - 1e-11 for x in one)) for one in ranked]
        if sum(sizes) <= total:
            best = sizes
    return best


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 999), n=st.integers(2, 40), part=st.floats(0.1, 0.9), least=st.integers(1, 5))
def test_sizes_as_in_plain_loops(seed: int, n: int, part: float, least: int) -> None:
    scores = np.random.default_rng(seed).exponential(1, (3, n)) ** np.array([[1], [3], [0.2]])
    total = max(3 * least, int(3 * n * part))
    found = prefixes({b: shares_carried(one.astype(np.float32)) for b, one in enumerate(scores)}, total, least)
    assert list(found.values()) == naive_sizes(scores.astype(np.float32).tolist(), total, least)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    n=st.integers(1, 70),
    steps=st.integers(0, 12),
    budget=st.sampled_from([0.3, 10, 20]),
    every=st.sampled_from([0, 6]),
)
def test_as_in_plain_loops(seed, n, steps, budget, every) -> None:
    paid = {b: any_paid(seed + b, 2, n + steps) for b in (0, 2)}
    paid[2] = paid[2] ** 2
    words = f"prefixkv:budget={budget},window=3,pool=3,every={every},observe=4"
    text = Text(Scripted(SPEC, paid), words).read(n).step(steps)
    blocks = [Held(paid[b]) for b in paid]

    def decide(length: int) -> None:
        keep = slots_of(budget, length)
        if keep < length:
            scores = [[held.score[slot] for slot in held.at] for held in blocks]
            for held, most in zip(blocks, naive_sizes(scores, 2 * keep, min(keep, max(8, 4 + 3))), strict=True):
                held.evict(most, 4, 3)
        for held in blocks:
            held.forget()

    for held in blocks:
        held.add(range(n))
        held.look(range(max(0, n - 3), n), 3)
    decide(n)
    for row in range(n, n + steps + 1):
        if every and row % every == 0:
            decide(row)
        for held in blocks if row < n + steps else ():
            held.add([row])
            if every and every - row % every <= 4:
                held.look([row], 3)
    assert text.kept() == [held.at for held in blocks]


def test_peak() -> None:
    policy = policy_of("prefixkv:budget=64,every=32", SPEC)
    assert policy.peak(TextSize(0, 0, 901, 1000, 128)) == 900
    assert policy.peak(TextSize(100, 900, 901, 5000, 128)) == 128 + 32
    assert smoothed([3, 0, 0], 3) == [1.5, 1, 0]
