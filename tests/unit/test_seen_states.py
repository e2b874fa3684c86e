"""States of past calls that a head has not read yet: which rows, which tokens after them, and how many at most."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.decoding.messages import StepResult
from edgedec.drafters._heads import states
from edgedec.drafters._heads.states import SeenStates
from edgedec.runtime import CallResult, Rows


def result(start: int, n: int, *blocks: int) -> CallResult:
    """The state of block b at place i is [100 b + i, 0]."""
    return CallResult(hidden={b: np.array([[100 * b + start + i, 0] for i in range(n)], np.float32) for b in blocks})


def read(seen: SeenStates, start: int, n: int) -> None:
    seen.read(Rows.chain(list(range(n)), start), result(start, n, 1, 4), [50 + start + i for i in range(n)])


def taken(seen: SeenStates) -> list[tuple[int, list[int], list[list[int]]]]:
    """Where each part begins, the tokens after its places, and the numbers of both blocks' states."""
    return [(part.start, part.follow, part.states[:, :, 0].astype(int).tolist()) for part in seen.take()]


def test_parts_that_follow_each_other_are_one() -> None:
    seen = SeenStates((1, 4))
    for start, n in ((0, 2), (2, 1), (5, 2)):
        read(seen, start, n)
    seen.read(Rows.chain([1], 7), result(7, 1, 4), [9])  # block 1 ran in an earlier call
    assert taken(seen) == [
        (0, [50, 51, 52], [[100, 400], [101, 401], [102, 402]]),
        (5, [55, 56], [[105, 405], [106, 406]]),
    ]
    assert taken(seen) == []


def test_of_a_verified_call_the_accepted_rows() -> None:
    """Two rows of the text, then a tree, of which its second branch came true; 30 is new."""
    seen = SeenStates((1, 4))
    rows = Rows.tree([20, 21, 22, 23], [-1, 0, 1, 1], 8)
    seen.observe(StepResult(rows, 1, [0, 2], [23, 30], result(8, 4, 1, 4), 0.1))
    seen.passed(
        StepResult(Rows.chain([23, 30], 10), 0, [0, 1], [30, 31], CallResult(), 0.1), np.ones((2, 2), np.float32)
    )
    assert [(part.start, part.follow) for part in seen.take()] == [(8, [21, 23, 30]), (10, [30, 31])]
    seen.observe(StepResult(rows, 1, [0, 2], [23, 30], result(8, 4, 1, 4), 0.1))
    assert taken(seen) == [(8, [21, 23, 30], [[108, 408], [109, 409], [111, 411]])]


def test_the_oldest_parts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_MOST", 5)
    seen = SeenStates((1, 4))
    for start in (0, 2, 4):
        read(seen, start, 2)
    assert [(start, follow) for start, follow, _ in taken(seen)] == [(2, [52, 53, 54, 55])]
    read(seen, 6, 3)
    read(seen, 9, 2)
    assert [(start, len(follow)) for start, follow, _ in taken(seen)] == [(6, 5)], "what was taken does not count"
    read(seen, 11, 1)
    read(seen, 12, 9)
    twin = SeenStates((1, 4))
    twin.inherit(seen)
    for each in (seen, twin):
        assert [(start, len(follow)) for start, follow, _ in taken(each)] == [(12, 9)], "the latest part stays"
