"""SnapKV (Li et al. 2024): what the last rows of a prompt pay decides, smoothed over neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Held, slots_of
from scripted import Scripted, Text, any_paid, pays, policy_of, spec_of

from edgedec.errors import SessionError
from edgedec.policies import TextSize
from edgedec.policies._eviction import Eviction
from edgedec.runtime import Outputs

SPEC = spec_of()


def test_the_last_rows_decide_by_hand() -> None:
    """20 slots, 10 stay: 4 first, the window of 3 (17 to 19), and 3 of slots 4 to 16.

    slot                 6    7    8    10   13   14   15
    rows 17 to 19        0    4    0    1    2    0    0
    mean of 3            1.3  1.3  1.3  .3   .7   .7   .3*    6, 7 and 8  (* 15: with 14 and 16, of which 16 has 1)
    without smoothing    0    4    0    1    2    0    0      7, 13, 10
    all rows             0    4    0    1    2    9    0      13, 14, 15 in place of them
    the last row alone   0    0    0    1    2    0    0      13 and its neighbours
    """
    entries = {(0, 17, 7): 3, (1, 18, 7): 1, (0, 19, 10): 1, (1, 19, 13): 2, (0, 17, 16): 1, (0, 16, 14): 9}
    paid = {0: pays(2, 20, entries), 2: pays(2, 20, {(0, 19, 5): 1})}
    text = Text(Scripted(SPEC, paid), "snapkv:budget=10,window=3,pool=3").read(20)
    assert text.kept() == [[0, 1, 2, 3, 6, 7, 8, 17, 18, 19], [0, 1, 2, 3, 4, 5, 6, 17, 18, 19]]
    single = Text(Scripted(SPEC, paid), "snapkv:budget=10,window=3,pool=1").read(20)
    assert single.kept()[0] == [0, 1, 2, 3, 7, 13, 16, 17, 18, 19]


def test_each_head_by_itself() -> None:
    """Head 0 keeps 7 and 9, head 1 keeps 5 and 9; together 5 and 7 would stay."""
    entries = {(0, 13, 7): 4.0, (0, 13, 9): 1.0, (1, 13, 5): 4.0, (1, 13, 9): 1.0}
    words = "snapkv:budget=8,window=2,pool=1"
    apart = Text(Scripted(SPEC, {0: pays(2, 14, entries)}, apart=True), words + ",heads=apart").read(14)
    assert apart.cache.data(0)[1][:, :8, 0].tolist() == [[0, 1, 2, 3, 7, 9, 12, 13], [0, 1, 2, 3, 5, 9, 12, 13]]
    alike = Text(Scripted(SPEC, {0: pays(2, 14, entries)}), words).read(14)
    assert alike.kept()[0] == [0, 1, 2, 3, 5, 7, 12, 13]


def naive(paid, n, steps, budget, window, pool, every, observe, heads=None) -> list[int]:
    held = Held(paid, heads)
    held.add(range(n))
    held.look(range(max(0, n - window), n), pool)
    held.evict(slots_of(budget, n), 4, window)
    held.forget()
    for row in range(n, n + steps + 1):
        if every and row % every == 0:
            held.evict(slots_of(budget, row), 4, window)
            held.forget()
        if row < n + steps:
            held.add([row])
            if every and every - row % every <= observe:
                held.look([row], pool)
    return held.at


CASES = {
    "seed": st.integers(0, 99),
    "n": st.integers(1, 70),
    "steps": st.integers(0, 20),
    "budget": st.sampled_from([0.3, 0.6, 9, 13, 24]),
    "window": st.sampled_from([1, 3, 6]),
    "pool": st.sampled_from([1, 3, 4, 7]),
    "every": st.sampled_from([0, 5, 7, 16]),
    "observe": st.integers(0, 4),
}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(apart=st.booleans(), **CASES)
def test_as_in_plain_loops(seed, n, steps, budget, window, pool, every, observe, apart) -> None:
    paid = {b: any_paid(seed + b, 2, n + steps) for b in (0, 2)}
    words = f"snapkv:budget={budget},window={window},pool={pool},every={every},observe={observe}"
    text = Text(Scripted(SPEC, paid, apart=apart), words + (",heads=apart" if apart else "")).read(n).step(steps)
    options = (n, steps, budget, window, pool, every, observe)
    for b in (0, 2):
        held = text.cache.data(b)[1][:, : text.cache.slots(b), 0].astype(int).tolist()
        heads = [[0], [1]] if apart else [None, None]
        assert held == [naive(paid[b], *options, one) for one in heads]


def test_only_the_last_rows_are_looked_at() -> None:
    runtime = Scripted(SPEC)
    Text(runtime, "snapkv:budget=9,window=5,every=8,observe=3").read(27, 10).step(9)
    assert [(len(call.rows), call.outputs.attention) for call in runtime.calls[:4]] == [
        (10, False),
        (10, False),
        (2, False),
        (5, True),
    ]
    looked = [call.rows.positions[0] for call in runtime.calls[4:] if call.outputs == Outputs(attention=True)]
    assert looked == [29, 30, 31]


@pytest.mark.parametrize(("length", "room"), [(32, 4), (33, 3), (36, 0), (37, 0), (39, 0), (40, 4)])
def test_room(length: int, room: int) -> None:
    """No draft reaches a row that is looked at: with every=8, observe=3 those of 37 to 39."""
    assert policy_of("snapkv:every=8,observe=3", SPEC).room(length) == room
    assert policy_of("snapkv:every=0", SPEC).room(length) == 1 << 30


@pytest.mark.parametrize(
    ("size", "peak"),
    [
        (TextSize(0, 0, 901, 1000, 128), 900),
        (TextSize(64, 900, 901, 5000, 128), 64 + 32),
        (TextSize(64, 900, 901, 910, 128), 64 + 10),
        (TextSize(90, 900, 901, 910, 128), 90 + 10),
        (TextSize(90, 900, 901, 2000, 128), 90 + 32),
        (TextSize(10, 900, 921, 925, 128), 30 + 5),
    ],
)
def test_peak(size: TextSize, peak: int) -> None:
    assert policy_of("snapkv:budget=64,every=32", SPEC).peak(size) == peak


def some_text(words: str = "snapkv:budget=12,window=3,every=8,observe=4", apart: bool = False) -> Text:
    """A text in which slots have scores: looked at, not decided yet."""
    paid = {b: any_paid(b, 2, 60) for b in (0, 2)}
    return Text(Scripted(SPEC, paid, apart=apart), words).read(20).step(2)


def test_states() -> None:
    """What is saved is all that a policy knows; forks go their own ways."""
    one = some_text()
    assert isinstance(one.policy, Eviction)
    state = one.policy.state()
    assert state.keys() == {"scores.0", "scores.2"}
    assert state["scores.0"].shape == (14,)
    twin = one.policy.fork()
    again = policy_of("snapkv:budget=12,window=3,every=8,observe=4", SPEC)
    again.restore(state, one.cache)
    assert all((again.state()[name] == array).all() for name, array in state.items())
    again.restore({}, one.cache)
    assert again.state() == {}
    before = {name: array.copy() for name, array in state.items()}
    one.step(1)
    assert all((twin.state()[name] == array).all() for name, array in before.items())
    assert len(one.policy.state()["scores.0"]) == 15
    one.policy.reset()
    assert one.policy.state() == {}


@pytest.mark.parametrize("apart", [False, True])
def test_states_that_are_refused(apart: bool) -> None:
    words = "snapkv:budget=12,window=3,every=8,observe=4" + (",heads=apart" if apart else "")
    one = some_text(words, apart)
    good = one.policy.state()["scores.0"]
    shape = (2, 14) if apart else (14,)
    assert good.shape == shape
    for name, wrong in {
        "scores.1": good,
        "scores.x": good,
        "other.0": good,
        "scores.0": good.astype(np.float64),
        "scores.2": np.full(shape, np.inf, np.float32),
        "scores.00": np.zeros((*shape[:-1], 15), np.float32),
    }.items():
        with pytest.raises(SessionError, match=r"not of cache policy snapkv"):
            policy_of(words, SPEC).restore({name.replace("00", "0"): wrong}, one.cache)
    other = np.zeros((14,) if apart else (2, 14), np.float32)
    with pytest.raises(SessionError, match=r"not of cache policy snapkv"):
        policy_of(words, SPEC).restore({"scores.0": other}, one.cache)
    policy_of(words, SPEC).restore({"scores.0": np.zeros((*shape[:-1], 9), np.float32)}, one.cache)


def test_trimmed_scores_are_of_the_slots_that_are_left() -> None:
    one = some_text()
    before = one.policy.state()["scores.0"].copy()
    one.cache.truncate(20)
    one.policy.trim(one.cache)
    assert (one.policy.state()["scores.0"] == before[:12]).all()


def test_a_text_that_is_read_again_is_cut_by_one() -> None:
    """All tokens are cached: the last is read again, and its score is forgotten."""
    one = some_text()
    one.ids = one.ids[: one.cache.length]
    one.step(0)
    assert one.cache.length == 21
    assert one.policy.state()["scores.0"].shape == (13,)


def test_report() -> None:
    text = Text(Scripted(SPEC), "snapkv:budget=0.3,window=3").read(40)
    assert text.policy.report(text.cache) == {
        "policy": "snapkv:budget=0.3,window=3",
        "lossy": True,
        "budget": "30% of the tokens",
        "slots": 24,
        "of": 80,
        "share": 0.3,
        "bytes": 24 * 2 * 2 * 2 * 4,
    }
    text = Text(Scripted(SPEC), "snapkv:budget=9,window=3").read(10)
    assert text.policy.report(text.cache)["budget"] == "9 tokens"
    assert text.policy.report(text.runtime.new_cache(5))["share"] == 0


def test_windows_of_blocks_keep_heads_alike() -> None:
    """A block with a window of its own cannot drop by head: heads=apart is for the others."""
    from dataclasses import replace

    block = SPEC.attention[0]
    spec = replace(SPEC, layers=((replace(block, window=9), *SPEC.layers[0][1:]), SPEC.layers[1]))
    paid = {b: any_paid(b, 2, 30) for b in (0, 2)}
    text = Text(Scripted(spec, paid, apart=True), "snapkv:budget=9,window=3,pool=1,heads=apart").read(30)
    first, second = (text.cache.data(b)[1][:, :9, 0] for b in (0, 2))
    assert (first[0] == first[1]).all()
    assert (second[0] != second[1]).any()
