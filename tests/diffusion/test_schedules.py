"""Schedules by hand: what a pass saw, and what each fills of it, on both sides of every threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.schedules import FAMILY
from edgedec.diffusion.seen import SeenBlock
from edgedec.errors import UsageError
from edgedec.runtime import Capabilities

MASK, EOS = 99, 98
HOST = DiffusionHost(DiffusionFacts(MASK, True, "full", 32), Capabilities((), ()), ends=frozenset([EOS]))


def seen(
    p: Sequence[float],
    positions: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    gaps: Sequence[float] | None = None,
    **more: Any,
) -> SeenBlock:
    """Of positions 0, 1, …: the probabilities of their best tokens, which are 0, 1, … too."""
    n = len(p)
    at = np.array(range(n) if positions is None else positions)
    best = np.array(at if tokens is None else tokens)
    gap = np.ones(n) if gaps is None else np.array(gaps, float)
    scores = np.stack([gap, np.zeros(n)], axis=1)
    entropy = more.pop("entropy", None)
    nats = None if entropy is None else np.array(entropy, float)
    probabilities = np.stack([np.array(p, float), np.zeros(n)], axis=1)
    return SeenBlock(at, np.stack([best, best + 1], axis=1), scores, probabilities, nats, **more)


def canvas(step: int = 0, end: int = 32, **more: Any) -> Canvas:
    return Canvas([MASK] * end, MASK, end=end, step=step, **more)


def chosen(name: str, what: SeenBlock, at: Canvas | None = None, **options: Any) -> list[int]:
    return sorted(FAMILY.make(name, HOST, options).choose(what, at or canvas()))


@pytest.mark.parametrize(
    ("name", "options", "p", "expected"),
    [
        ("static", {}, [0.5, 0.9, 0.7], [1]),
        ("static", {"count": 2}, [0.5, 0.9, 0.7], [1, 2]),
        ("threshold", {}, [0.91, 0.9, 0.95], [0, 2]),
        ("threshold", {"p": 0.8}, [0.81, 0.8, 0.1], [0]),
        ("threshold", {}, [0.5, 0.9, 0.7], [1]),
        ("bacd", {}, [0.7, 0.65, 0.7], [0, 2]),
        ("bacd", {}, [0.95, 0.9, 0.89], [0, 1]),
        ("bacd", {}, [0.5, 0.4], [0]),
        ("localleap", {}, [0.9, 0.75, 0.74], [0, 1]),
        ("localleap", {}, [0.89, 0.8, 0.8], [0]),
        ("localleap", {"radius": 1}, [0.9, 0.8, 0.8], [0, 1]),
        ("cad", {}, [0.95, 0.96, 0.94], [0, 1]),
        ("cad", {}, [0.94, 0.5], [0]),
        ("cad", {"most": 1}, [0.95, 0.96, 0.97], [2]),
        ("ass", {}, [0.2, 0.4, 0.3], [1]),
        ("dimple", {}, [0.96, 0.95, 0.97], [0, 2]),
        ("ete", {"bits": 1.0}, [0.95, 0.6, 0.55, 0.55], [0, 1, 2]),
        ("ete", {"bits": 0.5}, [0.95, 0.6, 0.55, 0.55], [0, 1]),
        ("ete", {"bits": 0.0}, [0.9, 0.89, 0.95], [0, 2]),
        ("ete", {"bits": 9.0}, [0.95, 0.5, 0.49], [0, 1]),
        ("ete", {}, [0.3, 0.2], [0]),
        ("prophet", {}, [0.3, 0.4], [1]),
        ("ccd", {}, [0.3, 0.4], [1]),
    ],
)
def test_a_pass_fills(name: str, options: dict[str, Any], p: list[float], expected: list[int]) -> None:
    assert chosen(name, seen(p), **options) == expected


def test_every_schedule_fills_something_and_needs_nothing_beside_what_is_given() -> None:
    low = seen([0.1, 0.2, 0.15], gaps=[0.1] * 3, entropy=[3.0, 2.0, 4.0])
    for name in FAMILY.names():
        if any(option.required for option in FAMILY.options(name).values()):
            continue  # a file
        made = FAMILY.make(name, HOST)
        assert len(made.choose(low, canvas())) >= 1, name
        if name != "spread":  # every part has one
            given = seen([0.1, 0.2, 0.15], gaps=[0.1] * 3, entropy=[3.0, 2.0, 4.0], given=1)
            assert list(FAMILY.make(name, HOST).choose(given, canvas(3))) == [] or name == "ass", name


def test_bacd_follows_what_was_accepted() -> None:
    """The threshold of a later pass is the mean of what the block accepted: lower than 0.9 where it was unsure."""
    made = FAMILY.make("bacd", HOST)
    assert made.choose(seen([0.7, 0.65]), canvas(0)) == [0]
    assert made.choose(seen([0.71, 0.69], [1, 2]), canvas(1)) == [1]
    assert made.choose(seen([0.7, 0.705], [2, 3]), canvas(2)) == [3]  # mean 0.705
    assert made.choose(seen([0.65, 0.65], [4, 5]), canvas(0)) == [4, 5]  # another block
    sure = FAMILY.make("bacd", HOST)
    assert sure.choose(seen([0.99, 0.98]), canvas(0)) == [0, 1]
    assert sure.choose(seen([0.9, 0.89], [2, 3]), canvas(1)) == [2]
    with pytest.raises(UsageError, match="must be at most high"):
        FAMILY.make("bacd", HOST, {"low": 0.95})


def test_localleap_fills_less_sure_positions_only_near_an_anchor() -> None:
    what = seen([0.8, 0.95, 0.8, 0.8], [0, 10, 14, 15])
    assert chosen("localleap", what) == [10, 14]


def test_ccd_refuses_a_token_that_changed() -> None:
    before = seen([0.9, 0.8, 0.1], tokens=[5, 6, 7])
    same = seen([0.9, 0.85, 0.2], tokens=[5, 6, 7], before=before)
    changed = seen([0.9, 0.85, 0.2], tokens=[5, 8, 7], before=before)
    assert chosen("ccd", same, canvas(5), count=2) == [0, 1]
    assert chosen("ccd", changed, canvas(5), count=2) == [0]
    assert chosen("ccd", same, canvas(4), count=1) == [0]  # warming up
    assert chosen("ccd", same, canvas(5), count=1) == [0]
    assert chosen("ccd", same, canvas(6), count=1) == [0, 1]  # one wider
    assert chosen("ccd", seen([0.9], tokens=[9], before=before), canvas(9)) == [0]
    wide = seen([0.9 - i / 100 for i in range(20)])
    again = seen([0.9 - i / 100 for i in range(20)], before=wide)
    assert len(chosen("ccd", again, canvas(31), count=2)) == 10  # five times as many at most


@pytest.mark.parametrize(("step", "least"), [(0, 7.5), (10, 7.5), (11, 5.0), (21, 5.0), (22, 2.5), (31, 2.5)])
def test_prophet_answers_earlier_the_later_it_is(step: int, least: float) -> None:
    what = seen([0.3, 0.4, 0.2], gaps=[least - 1, least + 1, least])
    assert chosen("prophet", what, canvas(step)) == [0, 1, 2]
    below = seen([0.3, 0.4, 0.2], gaps=[least - 1, least + 0.9, least])
    assert chosen("prophet", below, canvas(step)) == [1]
    spread = seen([0.3, 0.4, 0.2], gaps=[0, 0, least])
    assert chosen("prophet", spread, canvas(step), span=1) == [0, 1, 2]
    with pytest.raises(UsageError, match="three numbers"):
        FAMILY.make("prophet", HOST, {"gaps": [1.0]})


def test_cad_leaves_end_tokens_until_the_budget_is_partly_used() -> None:
    what = seen([0.99, 0.5], tokens=[EOS, 3])
    early, late = canvas(prompt=0, start=29, budget=100), canvas(prompt=0, start=30, budget=100)
    assert chosen("cad", what, early) == [1]
    assert chosen("cad", what, late) == [0]
    assert chosen("cad", seen([0.99, 0.96], tokens=[EOS, EOS]), early) == [0, 1]  # no other is left


def test_ascending_steps_are_powers_of_two() -> None:
    what = seen(np.linspace(0.9, 0.1, 31).tolist())
    assert [len(chosen("ass", what, canvas(step))) for step in range(5)] == [1, 2, 4, 8, 16]


def test_dimple_follows_the_timetable_where_nothing_is_sure() -> None:
    def count(masked: int, step: int, left: int, size: int = 8, **more: Any) -> int:
        return len(chosen("dimple", seen([0.5] * masked, left=left, **more), canvas(step, size)))

    assert [count(8, 0, left) for left in (1, 2, 3, 4, 8, 20)] == [8, 4, 2, 2, 1, 1]
    assert [count(masked, 1, 3) for masked in (6, 5, 4, 3, 2, 1)] == [2, 1, 2, 1, 2, 1]  # levels 6 4 2 0
    assert [count(20, step, 8 - step, 32) for step in range(8)] == [4, 4, 4, 4, 8, 12, 16, 20]  # before and behind
    assert [count(8, step, 0) for step in (0, 1, 6, 7, 9)] == [1, 2, 7, 8, 8]  # as many passes as positions
    assert [count(masked, 2, 0) for masked in (6, 5, 1)] == [1, 1, 1]
    assert (count(7, 0, 4, given=1), count(5, 1, 3, given=1)) == (1, 1)  # one is filled anyway
    what = seen([0.5 + i / 100 for i in range(8)])
    assert chosen("dimple", what, canvas(0, 8)) == [7]
    assert chosen("dimple", what, canvas(3, 8)) == [4, 5, 6, 7]


def test_entropy_counts_the_distance_to_the_front() -> None:
    what = seen([0.5] * 4, [10, 11, 20, 30], entropy=[0.39, 0.37, 0.19, 0.01])
    assert chosen("entropy", what) == [10, 11, 20]
    assert chosen("entropy", seen([0.5] * 2, [10, 20], entropy=[0.4, 0.2])) == [10]
    assert chosen("entropy", seen([0.5] * 2, [10, 12], entropy=[0.9, 0.5])) == [12]


def test_spread_fills_some_of_every_part() -> None:
    what = seen([0.9, 0.8, 0.1, 0.2, 0.3, 0.05], [0, 1, 5, 6, 9, 11])
    assert chosen("spread", what, canvas(0, 12)) == [0, 6, 9]
    assert chosen("spread", what, canvas(0, 12), parts=2) == [0, 9]
    assert chosen("spread", what, canvas(0, 12), parts=2, count=2) == [0, 1, 6, 9]
    assert chosen("spread", seen([0.2, 0.4], [9, 10]), canvas(0, 12)) == [10]


def test_what_a_pass_sees_can_be_narrowed() -> None:
    what = seen([0.3, 0.9, 0.6], [3, 5, 8], entropy=[1, 2, 3])
    assert what.between(4, 8).positions.tolist() == [5]
    assert what.between(4, 9).entropy.tolist() == [2, 3]  # type: ignore[union-attr]
    assert what.at_least([3], 2) == [3, 5]
    assert what.at_least([3, 8], 1) == [3, 8]
    halved = seen([0.9, 0.8], tokens=[EOS, 3]).scaled(frozenset([EOS]), 0.5)
    assert halved.surest() == [1]
