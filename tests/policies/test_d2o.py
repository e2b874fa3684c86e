"""D2O (Wan et al. 2024): blocks with flat attention keep more; what is evicted is merged into what is like it."""

from __future__ import annotations

from math import ceil, e, exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Held, slots_of
from scripted import Scripted, Text, any_paid, pays, policy_of, spec_of

from edgedec.errors import SessionError
from edgedec.policies import TextSize
from edgedec.policies.d2o import merge_weights, nearest, spread_of

SPEC = spec_of()


def keys_of(directions: dict[int, tuple[float, float]], size: int, heads: int = 2) -> np.ndarray:
    """[heads, size, 2]: keys at these positions; all others point down, each head alike."""
    found = np.tile(np.array([0, -1], np.float32), (heads, size, 1))
    for at, key in directions.items():
        found[:, at] = key
    return found


def test_merged_into_the_most_similar_by_hand() -> None:
    """14 slots, 12 stay: 4 first, 6 latest, 2 heavy (4 and 6) of 4 to 7. Evicted: 5 and 7.

    Slot 5 points as slot 6, longer (cosine 1); slot 7 between: its best match is slot 4 with cosine .6. Slot 0 points
    as slot 5 too, but nothing is merged into the first ones. The mean of the matches is .8: slot 5 is merged into slot
    6 with exp(1) / (exp(1) + e) = 1/2, slot 7 is forgotten.
    """
    keys = keys_of({0: (1, 0), 4: (0, 1), 5: (3, 0), 6: (1, 0), 7: (0.0, 1)}, 14)
    keys[1, 7] = (-0.75, -0.1)  # by head: the cosine is over both heads
    flat = keys.transpose(1, 0, 2).reshape(14, 4)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[7, [4, 6, *range(8, 14)]]
    assert cosines.argmax() == 0
    assert 0.5 < cosines.max() < 0.7
    paid = pays(2, 14, {(0, 13, 4): 3.0, (0, 13, 6): 2.0, (1, 13, 5): 1.0})
    text = Text(Scripted(SPEC, {0: paid, 2: paid}, keys={0: keys}), "d2o:budget=12").read(14)
    kept = [0, 1, 2, 3, 4, 6, *range(8, 14)]
    assert text.kept() == [kept] * 2
    expected = keys[:, kept].copy()
    expected[:, 5] = (keys[:, 6] + keys[:, 5]) / 2
    np.testing.assert_allclose(text.cache.keys(0), expected, atol=1e-6)
    values = text.cache.data(0)[1][:, :12, 0]
    np.testing.assert_allclose(values[0], [0, 1, 2, 3, 4, 5.5, *range(8, 14)], atol=1e-5)
    assert text.policy.state()["threshold.0"] == pytest.approx([(1 + cosines.max()) / 2], abs=1e-6)


def test_blocks_with_flat_attention_keep_more_by_hand() -> None:
    """Effective numbers 8 (1/8 each of eight) and 1: the mean is 4.5, at least half of it and at most twice: 16/9 and
    1/2. Of a mean budget of 20: 20 * 1.7778 / 1.1389 = 31.2 and 8.8."""
    flat = pays(2, 60, {(0, 59, slot): 1.0 for slot in range(10, 18)})
    steep = pays(2, 60, {(1, 59, 20): 5.0})
    text = Text(Scripted(SPEC, {0: flat, 2: steep}), "d2o:budget=20").read(60)
    assert [len(slots) for slots in text.kept()] == [31, 8]
    assert set(range(10, 18)) < set(text.kept()[0])
    assert 20 not in text.kept()[1][:3]
    text = Text(Scripted(SPEC, {2: flat, 0: steep}), "d2o:budget=20").read(60)
    assert [len(slots) for slots in text.kept()] == [8, 31]


def test_spread() -> None:
    assert spread_of(np.full(4, 4, np.float32)) == 4
    assert spread_of(np.array([9, 0, 0], np.float32)) == 1
    assert spread_of(np.array([3, 1], np.float32)) == pytest.approx(16 / 10)
    assert spread_of(np.zeros(3, np.float32)) == 3
    assert spread_of(np.zeros(0, np.float32)) == 1


def test_weights() -> None:
    """Slot 3 takes two, slot 5 one: exp(similarity) over the sum of those and e."""
    found = merge_weights(np.array([3, 5, 3]), np.array([1, 0.5, 0.0], np.float32))
    np.testing.assert_allclose(found, [e / (e + e + 1), exp(0.5) / (exp(0.5) + e), 1 / (e + e + 1)], rtol=1e-6)


def test_nearest() -> None:
    keys = np.array([[[1, 0], [0, 1], [3, 0.1], [0, -2], [0.1, 5]]], np.float32)
    best, similar = nearest(keys, np.array([2, 4]), np.array([0, 1, 3]))
    assert best.tolist() == [0, 1]
    np.testing.assert_allclose(similar, [3 / np.hypot(3, 0.1), 5 / np.hypot(0.1, 5)], rtol=1e-6)
    assert [len(part) for part in nearest(keys, np.zeros(0, np.int64), np.array([0]))] == [0, 0]
    assert [len(part) for part in nearest(keys, np.array([0]), np.zeros(0, np.int64))] == [0, 0]
    many = np.random.default_rng(0).normal(0, 1, (2, 3000, 4)).astype(np.float32)
    gone, stay = np.arange(0, 3000, 2), np.arange(1, 3000, 2)
    best, similar = nearest(many, gone, stay)
    flat = many.transpose(1, 0, 2).reshape(3000, 8).astype(np.float64)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    cosines = flat[gone] @ flat[stay].T
    assert (best == stay[cosines.argmax(axis=1)]).all()
    np.testing.assert_allclose(similar, cosines.max(axis=1), atol=1e-5)


class Naive:
    """D2O in plain loops: of two blocks what they hold, their keys (by position), sums and running means."""

    def __init__(self, paid, keys, ema: float) -> None:
        self.blocks = [Held(paid[b]) for b in paid]
        self.keys = [{p: k[:, p].reshape(-1).astype(float) for p in range(k.shape[1])} for k in keys.values()]
        self.means: list[float | None] = [None] * len(self.blocks)
        self.ema = ema

    def decide(self, length: int, budget: float) -> None:
        keep = slots_of(budget, length)
        if sum(len(held.at) for held in self.blocks) <= keep * len(self.blocks):
            return
        spreads = []
        for held in self.blocks:
            total = sum(held.score.get(p, 0) for p in held.at)
            spreads.append(1 / sum((held.score[p] / total) ** 2 for p in held.at))
        mean = sum(spreads) / len(spreads)
        wanted = [min(max(s / mean, 0.5), 2) for s in spreads]
        wanted = [keep * w / (sum(wanted) / len(wanted)) for w in wanted]
        total, sizes = sum(wanted), [min(max(w, 8), length) for w in wanted]
        for _ in sizes:
            missing = total - sum(sizes)
            free = [i for i, s in enumerate(sizes) if (s < length if missing > 0 else s > 8)]
            if abs(missing) < 1 or not free:
                break
            for i in free:
                sizes[i] = min(max(sizes[i] + missing / len(free), 8), length)
        for i, size in enumerate(sizes):
            self.evict(i, int(size))

    def evict(self, i: int, keep: int) -> None:
        held, keys = self.blocks[i], self.keys[i]
        gone = held.evict(keep, 4, keep // 2)
        targets = held.at[4:]
        if not gone or not targets:
            return
        best = {}
        for slot in gone:
            cosines = [
                keys[slot] @ keys[to] / max(np.linalg.norm(keys[slot]) * np.linalg.norm(keys[to]), 1e-12)
                for to in targets
            ]
            best[slot] = max(cosines), targets[int(np.argmax(cosines))]
        now = sum(similar for similar, _ in best.values()) / len(best)
        before = now if self.means[i] is None else self.means[i]
        self.means[i] = self.ema * now + (1 - self.ema) * before
        merged = dict[int, list[tuple[float, int]]]()
        for slot, (similar, to) in best.items():
            if similar >= before:
                merged.setdefault(to, []).append((exp(similar), slot))
        new = {}
        for to, parts in merged.items():
            total = e + sum(power for power, _ in parts)
            new[to] = e / total * keys[to] + sum(power / total * keys[slot] for power, slot in parts)
        keys.update(new)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    n=st.integers(1, 60),
    steps=st.integers(0, 14),
    budget=st.sampled_from([0.3, 0.6, 11, 20]),
    every=st.sampled_from([0, 5, 8]),
    ema=st.sampled_from([0.7, 0.25, 1]),
)
def test_as_in_plain_loops(seed, n, steps, budget, every, ema) -> None:
    rng = np.random.default_rng(seed)
    keys = {b: rng.normal(0, 1, (2, n + steps, 2)).astype(np.float32) for b in (0, 2)}
    paid = {b: any_paid(seed + b, 2, n + steps) for b in (0, 2)}
    paid[2] = np.sqrt(paid[2])
    text = Text(Scripted(SPEC, paid, keys=keys), f"d2o:budget={budget},every={every},observe=4,ema={ema}")
    text.read(n).step(steps)
    naive = Naive(paid, keys, ema)
    for held in naive.blocks:
        held.add(range(n))
        held.look(range(n))
    naive.decide(n, budget)
    for row in range(n, n + steps + 1):
        if every and row % every == 0:
            naive.decide(row, budget)
        for held in naive.blocks if row < n + steps else ():
            held.add([row])
            if every and every - row % every <= 4:
                held.look([row])
    assert text.kept() == [held.at for held in naive.blocks]
    for i, b in enumerate((0, 2)):
        expected = np.array([naive.keys[i][p] for p in naive.blocks[i].at]).reshape(-1, 2, 2)
        np.testing.assert_allclose(text.cache.keys(b).transpose(1, 0, 2), expected, atol=1e-4)
    known = [value for value in naive.means if value is not None]
    saved = [array[0] for name, array in text.policy.state().items() if name.startswith("threshold")]
    np.testing.assert_allclose(saved, known, atol=1e-5)


def test_a_decision_is_made_once() -> None:
    """What is left after a decision is spread differently, but not above the budget."""
    flat = pays(2, 60, {(0, 59, slot): 1.0 for slot in range(10, 50)})
    steep = pays(2, 60, {(1, 59, 20): 5.0, (1, 59, 21): 3.0, (1, 59, 23): 3.0})
    text = Text(Scripted(SPEC, {0: flat, 2: steep}), "d2o:budget=20,every=60").read(60)
    kept = text.kept()
    assert sum(len(slots) for slots in kept) in (39, 40)
    for _ in range(3):
        text.policy.settle(text.cache)
    assert text.kept() == kept


def test_peak() -> None:
    """Two blocks, one of twice the mean and one of half of it, which then add up to the mean: 1.6 of it at most."""
    policy = policy_of("d2o:budget=64,every=32", SPEC)
    assert policy.peak(TextSize(100, 900, 901, 5000, 128)) == ceil(1.6 * 64) + 32
    assert policy.peak(TextSize(0, 0, 901, 1000, 128)) == 900


def some_text() -> Text:
    rng = np.random.default_rng(3)
    keys = {b: rng.normal(0, 1, (2, 60, 2)).astype(np.float32) for b in (0, 2)}
    paid = {b: any_paid(b, 2, 60) for b in (0, 2)}
    return Text(Scripted(SPEC, paid, keys=keys), "d2o:budget=12,every=8,observe=4").read(30)


def test_states() -> None:
    one = some_text()
    state = {name: array.copy() for name, array in one.policy.state().items()}
    assert state.keys() == {"scores.0", "scores.2", "threshold.0", "threshold.2"}
    again, twin = policy_of("d2o:budget=12,every=8,observe=4", SPEC), one.policy.fork()
    again.restore(state, one.cache)
    assert all((again.state()[name] == array).all() for name, array in state.items())
    one.step(12)
    assert one.policy.state()["threshold.0"] != state["threshold.0"]
    assert all((twin.state()[name] == array).all() for name, array in state.items())
    one.policy.reset()
    assert one.policy.state() == {}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("threshold.1", np.ones(1)),
        ("threshold.x", np.ones(1)),
        ("threshold.0", np.ones(2)),
        ("threshold.0", np.array([np.nan])),
        ("other", np.ones(1)),
        ("scores.0", np.ones(500, np.float32)),
    ],
)
def test_states_that_are_refused(name: str, wrong: np.ndarray) -> None:
    one = some_text()
    with pytest.raises(SessionError, match="not of cache policy d2o"):
        policy_of("d2o:budget=12", SPEC).restore({name: wrong}, one.cache)
