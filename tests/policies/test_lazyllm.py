"""LazyLLM (Fu et al. 2024): fewer tokens at each depth; what was left behind comes back when it is looked at."""

from __future__ import annotations

import itertools
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Held
from scripted import Scripted, Text, any_paid, pays, policy_of, spec_of

from edgedec.errors import SessionError
from edgedec.policies import TextSize
from edgedec.policies._parked import Left, restored, runs
from edgedec.policies.lazyllm import LazyLLM
from edgedec.runtime import View

SPEC = spec_of(layers=4)


def test_stages_by_hand() -> None:
    """Stages of 1, 1 and 2 layers; 40 tokens, of which 27 and 14 go on (2/3 and 1/3 of the way from 1 to .35).

    keep=.35: shares 1, .675, .35 -> ceil(27), ceil(14). Stage 1 is chosen by block 0, stage 2 by block 2: the first
    token and the window of 2 always, of the others the best paid, of equals the latest.
    """
    first = pays(2, 40, {(0, 39, 5): 2.0, (1, 38, 7): 3.0, (0, 37, 9): 9.0})
    second = pays(2, 40, {(0, 39, 7): 1.0, (0, 39, 30): 2.0, (0, 39, 9): 9.0})
    runtime = Scripted(SPEC, {0: first, 2: second})
    text = Text(runtime, "lazyllm:keep=0.35,stages=2,first=0.25,window=2,pool=1,every=0").read(40)
    middle = [0, 5, 7, *range(16, 40)]
    last = [0, 7, *range(28, 40)]
    assert text.kept() == [list(range(40)), middle, last, last]


def cuts(layers: int, stages: int, first: float) -> list[int]:
    """The first layer of each stage in plain numbers: in equal parts from `first` to the end."""
    start = max(1, round(first * layers))
    return sorted({min(round(start + (layers - start) * i / stages), layers - 1) for i in range(stages)})


@pytest.mark.parametrize(("layers", "stages", "first"), [(4, 2, 0.25), (14, 3, 0.3), (10, 9, 0.1), (3, 1, 0.9)])
def test_depths(layers: int, stages: int, first: float) -> None:
    spec = spec_of(layers=layers)
    policy = policy_of(f"lazyllm:stages={stages},first={first}", spec)
    assert isinstance(policy, LazyLLM)
    starts = [0, *(2 * layer for layer in cuts(layers, stages, first)), 2 * layers]
    assert [(span.start, span.stop) for span in policy._spans] == list(itertools.pairwise(starts))


def naive(paid, n, keep, starts, window, pool) -> list[list[int]]:
    """What each layer holds of a prompt. starts: the first layers of the stages after the first."""
    layers, at = len(paid), list(range(n))
    bounds = [0, *starts, layers]
    held = [list[int]()] * layers
    for i in range(len(bounds) - 1):
        if i:
            share = 1 + (keep - 1) * i / (len(bounds) - 2)
            last = Held(paid[2 * (bounds[i] - 1)])
            last.add(at)
            last.look(range(n - window, n), pool)
            last.evict(ceil(share * n - 1e-9), 1, window)
            at = last.at
        for layer in range(bounds[i], bounds[i + 1]):
            held[layer] = at
    return held


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    n=st.integers(1, 90),
    keep=st.sampled_from([0.3, 0.5, 0.75, 1.0]),
    stages=st.sampled_from([1, 2, 3]),
    window=st.sampled_from([1, 4]),
    pool=st.sampled_from([1, 3]),
    most=st.sampled_from([16, 128]),
)
def test_as_in_plain_loops(seed, n, keep, stages, window, pool, most) -> None:
    paid = {b: any_paid(seed + b, 2, n) for b in (0, 2, 4, 6)}
    words = f"lazyllm:keep={keep},stages={stages},first=0.25,window={window},pool={pool},every=0"
    text = Text(Scripted(SPEC, paid), words).read(n, most)
    if n * keep < window + 8 or keep == 1:
        assert text.kept() == [list(range(n))] * 4
    else:
        assert text.kept() == naive(paid, n, keep, cuts(4, stages, 0.25), window, pool)


# ---- what comes back -------------------------------------------------------------------------

REVIVING = "lazyllm:keep=0.4,stages=1,first=0.5,window=2,pool=1,every=8,observe=4,back=2"


def revived(entries: dict[tuple[int, int, int], float], words: str = REVIVING, steps: int = 10) -> Text:
    """30 tokens, of which 12 go on above two layers (0 and 19 to 29); then steps up to 40, where tokens come back."""
    paid = {b: pays(2, 60, entries if b == 2 else {(0, 38, 3): 50.0}) for b in (0, 2, 4, 6)}
    return Text(Scripted(SPEC, paid), words).read(30).step(steps)


def test_what_is_looked_at_comes_back_by_hand() -> None:
    """Rows 36 to 39 look in block 2. Best: 8 and 5 (both left behind), 25 is there, 11 less than these; row 35 and
    block 0 do not count."""
    entries = {(0, 36, 5): 2.0, (1, 39, 8): 3.0, (0, 38, 25): 9.0, (0, 38, 11): 1.0, (0, 35, 14): 9.0}
    text = revived(entries)
    kept = text.kept()
    assert kept[0] == kept[1] == list(range(40))
    assert kept[2] == kept[3] == [0, *range(19, 40), 5, 8], "in the order of the text, after what is there"
    fork, attached = text.runtime.calls[-3], text.runtime.calls[-2:]  # type: ignore[attr-defined]
    assert fork.cache is not text.cache
    assert fork.cache.length == 5
    assert list(fork.blocks) == [4, 5, 6, 7]
    assert fork.rows.positions.tolist() == [5, 8]
    assert fork.outputs.hidden == (5, 7)
    assert [list(call.blocks) for call in attached] == [[4], [6]]
    assert all(call.cache is text.cache for call in attached)
    assert [{b: repr(view) for b, view in call.views.items()} for call in attached] == [
        {b: repr(View(recent=0))} for b in (4, 6)
    ]


def test_no_more_come_back_than_said() -> None:
    entries = {(0, 36, slot): float(slot) for slot in range(3, 9)}
    assert revived(entries).kept()[2][-2:] == [7, 8]
    assert revived(entries, REVIVING.replace("back=2", "back=3")).kept()[2][-3:] == [6, 7, 8]
    assert revived(entries, REVIVING.replace("every=8", "every=0")).kept()[2] == [0, *range(19, 40)]
    assert revived(entries, steps=9).kept()[2] == [0, *range(19, 39)], "not before the decision"


def test_only_the_best_share_comes_back() -> None:
    """16 of 40 tokens may be in the last layers (.4): the best 16 in block 2, of which only one was left behind."""
    entries = {(0, 39, slot): 9.0 for slot in range(20, 35)} | {(0, 39, 5): 8.0, (0, 39, 6): 7.0}
    assert revived(entries).kept()[2] == [0, *range(19, 40), 5]
    assert revived({(0, 39, 5): 8.0}).kept()[2] == [0, *range(19, 40), 5], "nothing that was paid nothing"


def test_what_came_back_stays_and_is_known_to_the_next_stage() -> None:
    """Two stages: a token that comes back to stage 1 waits before stage 2 with the state that it has there."""
    words = "lazyllm:keep=0.4,stages=2,first=0.25,window=2,pool=1,every=8,observe=4,back=2"
    paid = {b: pays(2, 60, {(0, 38, 5): 3.0} if b == 0 else {(0, 46, 5): 3.0}) for b in (0, 2, 4, 6)}
    text = Text(Scripted(SPEC, paid), words).read(30).step(10)
    policy = text.policy
    assert isinstance(policy, LazyLLM)
    second = policy._spans[1].start // 2
    kept = text.kept()
    assert kept[second][-1] == 5
    assert kept[3][-1] != 5
    before = policy._left[2]
    assert before.hidden[before.positions.tolist().index(5)].tolist() == [5, policy._spans[1][-1]]


def test_rows_that_are_looked_at_and_room() -> None:
    policy = policy_of(REVIVING, SPEC)
    assert [policy.room(length) for length in (32, 34, 35, 36, 39)] == [3, 1, 0, 0, 0]
    assert policy.peak(TextSize(30, 30, 31, 100, 128)) == 30 + 100 - 30 + 128
    assert policy_of(REVIVING.replace("every=8", "every=0"), SPEC).peak(TextSize(30, 30, 31, 100, 128)) == 100


def test_runs_of_tokens_near_each_other() -> None:
    """Apart by more than 64; the four that are worth most, in order."""
    positions = np.array([3, 67, 132, 400, 401, 900, 2000])
    worth = np.array([1, 1, 1, 1, 1, 3, 0.5], np.float32)
    assert [part.tolist() for part in runs(positions, worth)] == [[0, 1], [2], [3, 4], [5]]
    worth[2] = 0.25
    assert [part.tolist() for part in runs(positions, worth)] == [[0, 1], [3, 4], [5], [6]]
    assert [part.tolist() for part in runs(positions[:2], worth[:2])] == [[0, 1]]


def left(*at: int) -> Left:
    return Left(np.array(at), np.array(at) + 100, np.array(at, np.float32)[:, None] * np.ones(2, np.float32))


def test_left_tokens_are_ordered_and_replaced() -> None:
    joined = left(2, 9).plus(Left(np.array([1, 9]), np.array([5, 6]), np.zeros((2, 2), np.float32)))
    assert joined.positions.tolist() == [1, 2, 9]
    assert joined.tokens.tolist() == [5, 102, 6]
    assert joined.hidden.tolist() == [[0, 0], [2, 2], [0, 0]]
    assert joined.at(np.array([2, 9])).tokens.tolist() == [102, 6]


def test_states_of_left_tokens() -> None:
    saved = left(2, 9).save(1)
    found = restored(saved, 3, 2, 10)
    assert found.keys() == {1}
    assert found[1].positions.tolist() == [2, 9]
    assert restored({}, 3, 2, 10) == {}
    for stages, size, length, changed in (
        (1, 2, 10, {}),
        (3, 3, 10, {}),
        (3, 2, 9, {}),
        (3, 2, 10, {"left.1.positions": np.array([9, 2])}),
        (3, 2, 10, {"left.1.positions": np.array([2, 2])}),
        (3, 2, 10, {"left.1.positions": np.array([-1, 2])}),
        (3, 2, 10, {"left.1.tokens": np.array([1, 2, 3])}),
        (3, 2, 10, {"left.1.hidden": saved["left.1.hidden"].astype(np.float64)}),
        (3, 2, 10, {"left.0.hidden": saved["left.1.hidden"]}),
        (3, 2, 10, {"other": saved["left.1.hidden"]}),
    ):
        with pytest.raises(SessionError, match="not of cache policy lazyllm"):
            restored(saved | changed, stages, size, length)
    restored({name: part[:0] for name, part in saved.items()}, 3, 2, 10)


def test_states_and_forks() -> None:
    entries = {(0, 36, 5): 2.0, (1, 37, 8): 3.0}
    text = revived(entries, steps=8)
    state = text.policy.state()
    assert {"left.1.positions", "left.1.hidden", "left.1.tokens", "scores.2"} == set(state)
    assert state["left.1.positions"].tolist() == list(range(1, 19))
    again = policy_of(REVIVING, SPEC)
    again.restore(state, text.cache)
    assert {name: part.tolist() for name, part in again.state().items()} == {n: p.tolist() for n, p in state.items()}
    waiting = text.policy.report(text.cache)
    assert waiting["waiting_bytes"] == 18 * 2 * 4
    assert waiting["budget"] == "40% in the last layers"
    assert waiting["lossy"] is True
    twin = text.policy.fork()
    text.policy.reset()
    assert text.policy.state() == {}
    assert len(twin.state()) == 4


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 99), back=st.sampled_from([1, 3, 16]), observe=st.sampled_from([1, 4]))
def test_coming_back_as_in_plain_loops(seed: int, back: int, observe: int) -> None:
    """One stage after two layers; every 8 tokens the best of what was left behind come back."""
    n, steps, keep = 40, 30, 0.4
    paid = {b: any_paid(seed + b, 2, n + steps) for b in (0, 2, 4, 6)}
    words = f"lazyllm:keep={keep},stages=1,first=0.5,window=2,pool=1,every=8,observe={observe},back={back}"
    text = Text(Scripted(SPEC, paid), words).read(n).step(steps)
    upper = naive(paid, n, keep, [2], 2, 1)[2]
    lower, waiting = Held(paid[2]), [p for p in range(n) if p not in upper]
    lower.add(range(n))
    for row in range(n, n + steps + 1):
        if row % 8 == 0 and any(lower.score.values()):
            best = sorted(lower.at, key=lambda p: (-lower.score[p], p))[: ceil(keep * row - 1e-9)]
            came = sorted([p for p in best if p in waiting and p not in upper][:back])
            upper = upper + came
            lower.forget()
        if row < n + steps:
            lower.add([row])
            if 8 - row % 8 <= observe:
                lower.look([row])
            upper = [*upper, row]
    assert text.kept()[2] == upper
