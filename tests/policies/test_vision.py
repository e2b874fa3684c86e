"""MustDrop and Dynamic-LLaVA: rows of images are merged, sent up by what the text after them pays, and evicted."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Held
from scripted import CAN, Scripted, Text, any_paid, pays, run, spec_of

from edgedec.errors import SessionError, UsageError
from edgedec.policies import PolicyHost, TextSize, make_policy
from edgedec.policies.vision import merge_neighbours
from edgedec.runtime import Rows

SPEC = spec_of(layers=3)


def read(paid: dict[int, np.ndarray], words: str, n: int, images: list[tuple[int, int]], most: int = 128) -> Text:
    """n rows given as embeddings, of which those between each two positions are images; and a token that waits."""
    text = Text(Scripted(SPEC, paid), words)
    policy: Any = text.policy
    for start, stop in images:
        policy.mark(start, stop)
    rows = Rows.embedded(np.zeros((n, 2), np.float32), 0)
    run(text.runtime, policy.read_rows(text.cache, rows, most))
    text.ids = [0] * n + [5]
    return text


def test_image_rows_that_the_text_pays_go_up_by_hand() -> None:
    """40 rows, 2 to 29 images (28, of which half goes up: 14), one layer for all; the last 4 rows look in block 0.

    Rows 36 to 39 pay 5 and 9; row 35 pays 12, block 2 pays 20: neither counts. Of equals the latest image rows.
    """
    paid = {0: pays(2, 40, {(0, 36, 5): 1.0, (1, 39, 9): 2.0, (0, 35, 12): 9.0}), 2: pays(2, 40, {(0, 39, 20): 9.0})}
    text = read(paid, "vision:budget=1,rate=0.5,layer=1,window=4", 40, [(2, 30)], 16)
    up = [0, 1, 5, 9, *range(18, 40)]
    assert text.kept() == [list(range(40)), up, up]
    runtime: Any = text.runtime
    spans = [(list(call.blocks), call.rows.count, call.outputs.attention) for call in runtime.calls]
    assert spans == [
        ([0, 1], 16, False),
        ([0, 1], 16, False),
        ([0, 1], 4, False),
        ([0, 1], 4, True),
        ([2, 3, 4, 5], 16, False),
        ([2, 3, 4, 5], 6, False),
        ([2, 3, 4, 5], 4, True),
    ]


def test_image_rows_are_evicted_by_hand() -> None:
    """Of 30 image rows .3 stay in each block: 9 of what is there, by that block's sums; all text stays."""
    paid = {b: pays(2, 40, {(0, 39, 3 + b): 1.0, (0, 38, 20): 1.0, (0, 36, 7): 5.0}) for b in (0, 2, 4)}
    text = read(paid, "vision:budget=0.3,rate=1,layer=1,window=2", 40, [(2, 32)])
    assert text.kept() == [[0, 1, at, 20, *range(25, 40)] for at in (3, 5, 7)]
    few = read(paid, "vision:budget=0.1,rate=1,layer=1,window=2", 40, [(2, 32)])
    assert len(few.kept()[0]) == 10 + 8, "eight at least"


def test_text_is_evicted_by_its_own_share() -> None:
    """Two images of 10; of 40 rows of text half stay: the window of 4, then the best; and the same again every 10."""
    paid = {b: pays(2, 80, {(0, 58, 3): 1.0, (0, 67, 3): 2.0, (0, 66, 42): 5.0}) for b in (0, 2, 4)}
    words = "vision:budget=1,rate=1,text=0.5,layer=1,window=4,every=10,observe=3"
    text = read(paid, words, 60, [(5, 15), (20, 30)])
    image = [*range(5, 15), *range(20, 30)]
    assert text.kept()[0] == sorted([3, *range(41, 60), *image])
    assert text.step(10).kept()[0] == sorted([3, *range(46, 70), *image])


def naive(paid, n, images, budget, rate, text_share, layer, window) -> list[list[int]]:
    image = [p for p in range(n) if any(a <= p < z for a, z in images)]
    looks = range(max(0, n - window), n)
    sums = {p: sum(float(paid[2 * (layer - 1)][h, row, p]) for h in range(2) for row in looks) for p in range(n)}
    up_image = sorted(image, key=lambda p: (-sums[p], -p))[: ceil(rate * len(image))]
    found = []
    for i in range(len(paid)):
        at = [p for p in range(n) if i < layer or p not in image or p in up_image]
        held = Held(paid[2 * i])
        held.add(at)
        held.look(looks)
        here = [p for p in at if p in image]
        keep = max(8, ceil(budget * len(image)))
        stay = set(sorted(here, key=lambda p: (-held.score[p], -p))[:keep])
        words = [p for p in at if p not in image]
        if text_share < 1:
            keep = max(8, ceil(text_share * len(words)))
            last = words[max(0, len(words) - min(window, keep)) :]
            rest = [p for p in words if p not in last]
            if len(words) > keep:
                words = last + sorted(rest, key=lambda p: (-held.score[p], -p))[: keep - len(last)]
        found.append(sorted(stay | set(words)))
    return found


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    n=st.integers(20, 60),
    budget=st.sampled_from([0.3, 0.6, 1.0]),
    rate=st.sampled_from([0.3, 1.0]),
    share=st.sampled_from([0.5, 1.0]),
    layer=st.sampled_from([1, 2]),
    window=st.sampled_from([2, 5]),
)
def test_as_in_plain_loops(seed, n, budget, rate, share, layer, window) -> None:
    paid = {b: any_paid(seed + b, 2, n) for b in (0, 2, 4)}
    words = f"vision:budget={budget},rate={rate},text={share},layer={layer},window={window}"
    images = [(2, n // 3), (n // 2, n - 6)]
    assert read(paid, words, n, images).kept() == naive(paid, n, images, budget, rate, share, layer, window)


def test_neighbours_that_are_alike_are_merged() -> None:
    """By the cosine to the row before, not to the first of the run, and whatever their lengths."""
    a, b, c = np.eye(3, dtype=np.float32)
    rows, counts = merge_neighbours(np.stack([a, a, b, 2 * b, 3 * b, c]), 0.9)
    assert counts.tolist() == [2, 3, 1]
    assert np.allclose(rows, [a, 2 * b, c])
    turned = np.array([[np.cos(x), np.sin(x)] for x in (0, 0.4, 0.8, 1.7)], np.float32)
    assert merge_neighbours(turned, np.cos(0.5))[1].tolist() == [3, 1]
    assert merge_neighbours(turned, np.cos(0.3))[1].tolist() == [1, 1, 1, 1]
    assert merge_neighbours(np.zeros((0, 3), np.float32), 0.9)[0].shape == (0, 3)
    assert merge_neighbours(np.zeros((2, 3), np.float32), 0.9)[1].tolist() == [1, 1]


def test_default_layers_and_refusals() -> None:
    """A quarter of the layers, one at least."""
    for layers, cut in ((2, 1), (4, 1), (10, 2), (12, 3)):
        policy: Any = make_policy("vision", PolicyHost(spec_of(layers=layers), CAN, images=True))
        assert policy._cut == 2 * cut
    with pytest.raises(UsageError, match=r"layer=3: must be from 1 to 2"):
        make_policy("vision:layer=3", PolicyHost(SPEC, CAN, images=True))
    with pytest.raises(UsageError, match=r"this model reads no images.*such as snapkv"):
        make_policy("vision", PolicyHost(SPEC, CAN))
    policy = make_policy("vision", PolicyHost(SPEC, CAN, images=True))
    for start, stop in ((4, 4), (-1, 3)):
        with pytest.raises(UsageError, match="at least one row"):
            policy.mark(start, stop)
    policy.mark(0, 1)
    assert policy.peak(TextSize(10, 10, 21, 50, 128)) == 10 + 40


def test_states() -> None:
    paid = {b: any_paid(b, 2, 90) for b in (0, 2, 4)}
    words = "vision:budget=0.5,layer=1,window=2,every=16,observe=4"
    text = read(paid, words, 40, [(2, 12), (20, 30)]).step(6)
    state = text.policy.state()
    assert state.keys() == {"images", "scores.0", "scores.2", "scores.4"}
    assert state["images"].tolist() == [[2, 12], [20, 30]]
    again: Any = make_policy(words, PolicyHost(SPEC, CAN, images=True))
    again.restore(state, text.cache)
    assert {name: part.tolist() for name, part in again.state().items()} == {n: p.tolist() for n, p in state.items()}
    for wrong in (
        np.zeros((1, 3), np.int64),
        np.array([[5, 2]]),
        np.array([[2, 2]]),
        np.array([[-1, 2]]),
        np.zeros((1, 2), np.float32),
        np.zeros(2, np.int64),
    ):
        with pytest.raises(SessionError, match="images"):
            again.restore({"images": wrong}, text.cache)
    again.restore({}, text.cache)
    assert again.state() == {}
    text.policy.reset()
    assert text.policy.state() == {}
