"""LServe (Yang et al. 2025): kv heads that pay little to the middle stream; the others search pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, Text, policy_of, spec_of

from edgedec.errors import SessionError
from edgedec.policies._views import Always
from edgedec.policies.lserve import streaming_heads

SPEC = spec_of()


def test_streaming_heads_by_hand() -> None:
    """First one and latest one always read; of four heads in two blocks half stream.

    head            sums         middle  share of its own
    0.0             5 1 1 3      2       .2
    0.1             1 7 1 1      8       .8     most: it searches
    2.0             4 0 0 6      0       0      least: it streams
    2.1             30 3 3 20    6       .107   second by share; by sums 0.0 would be
    """
    sums = {
        0: np.array([[5, 1, 1, 3], [1, 7, 1, 1]], np.float32),
        2: np.array([[4, 0, 0, 6], [30, 3, 3, 20]], np.float32),
    }
    found = streaming_heads(sums, Always(1, 1), 0.5)
    assert {b: heads.tolist() for b, heads in found.items()} == {0: [False, False], 2: [True, True]}
    quarter = streaming_heads(sums, Always(1, 1), 0.4)  # one of four
    assert {b: heads.tolist() for b, heads in quarter.items()} == {0: [False, False], 2: [True, False]}
    none = streaming_heads(sums, Always(3, 3), 0.75)  # nothing is between: of equals the first
    assert {b: heads.tolist() for b, heads in none.items()} == {0: [True, True], 2: [True, False]}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 999),
    n=st.integers(2, 20),
    sinks=st.integers(0, 6),
    recent=st.integers(0, 6),
    stream=st.floats(0, 1),
)
def test_as_in_plain_loops(seed, n, sinks, recent, stream) -> None:
    rng = np.random.default_rng(seed)
    sums = {b: rng.exponential(1, (heads, n)).astype(np.float32) for b, heads in ((0, 2), (3, 1), (5, 3))}
    shares = {
        (b, h): sum(float(x) for x in row[sinks : max(sinks, n - recent)]) / sum(map(float, row))
        for b, part in sums.items()
        for h, row in enumerate(part)
    }
    least = sorted(shares, key=lambda head: shares[head])[: int(stream * 6)]
    found = streaming_heads(sums, Always(sinks, recent), stream)
    assert {(b, h) for b, heads in found.items() for h in np.flatnonzero(heads)} == set(least)


def middling(size: int) -> dict[int, np.ndarray]:
    """All pay the first slot; head 1 of block 0 and head 0 of block 2 also slot 10."""
    paid = {b: np.zeros((2, size, size), np.float32) for b in (0, 2)}
    for part in paid.values():
        part[:, :, 0] = 1
    paid[0][1, :, 10] = paid[2][0, :, 10] = 1
    return paid


def test_a_prompt_is_measured_and_then_streams_by_hand() -> None:
    """First 4 and latest 64: measured from token 68 on, until 324 are read; chunks of 40: the ninth ends at 360."""
    runtime = Scripted(SPEC, middling(500))
    text = Text(runtime, "lserve:budget=512,sinks=4,recent=64").read(450, 40)
    calls = runtime.calls
    assert [call.outputs.attention for call in calls] == [False] * 2 + [True] * 7 + [False] * 3
    assert [call.views is None for call in calls] == [True] * 9 + [False] * 3
    view = calls[9].views[0]  # type: ignore[index]
    assert (view.sinks, view.recent, view.pages, view.group) == (4, 64, (0, None), 0)
    assert calls[9].views[2].pages == (None, 0)  # type: ignore[index]
    text.step(1)
    step = runtime.calls[-1].views
    assert step is not None
    assert [(step[b].pages, step[b].group) for b in (0, 2)] == [((0, 5), 1), ((5, 0), 1)]
    text.step(1)
    assert runtime.calls[-1].views is step, "made once"


def test_short_prompts_are_not_measured() -> None:
    runtime = Scripted(SPEC, middling(400))
    text = Text(runtime, "lserve:budget=512,sinks=4,recent=64").read(323, 40)
    assert text.policy.state() == {}
    assert all(call.views is None for call in runtime.calls)
    text.step(1)
    assert runtime.calls[-1].views[0].pages == (5, 5)  # type: ignore[index]
    assert Text(Scripted(SPEC, middling(400)), "lserve:sinks=4,recent=64").read(324, 40).policy.state() != {}


def test_states() -> None:
    text = Text(Scripted(SPEC, middling(400)), "lserve:sinks=4,recent=64").read(324)
    state = text.policy.state()
    assert {name: part.tolist() for name, part in state.items()} == {"streaming.0": [1, 0], "streaming.2": [0, 1]}
    again = policy_of("lserve:sinks=4,recent=64", SPEC)
    again.restore(state, text.cache)
    assert {name: part.tolist() for name, part in again.state().items()} == {
        "streaming.0": [1, 0],
        "streaming.2": [0, 1],
    }
    again.restore({}, text.cache)
    assert again.state() == {}
    text.policy.reset()
    assert text.policy.state() == {}
    for wrong in (
        {"streaming.0": state["streaming.0"]},
        state | {"streaming.0": np.zeros(3, np.uint8)},
        state | {"streaming.0": np.zeros(2, bool)},
        state | {"other": np.zeros(2)},
    ):
        with pytest.raises(SessionError, match="not of cache policy lserve"):
            again.restore(wrong, text.cache)
