"""Calls by hand: which rows each way of keeping runs, what the cache keeps of them, and what they predict."""

from __future__ import annotations

from typing import Any, cast

import pytest

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.cache import Cache
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.keeping import FAMILY
from edgedec.diffusion.seams import PassPlan
from edgedec.errors import RuntimeUnavailable
from edgedec.runtime import Capabilities

M = 99
ROOM = Capabilities((), (), largest_call=64, prefill_chunk=32)


class Slots:
    """The length of a cache, which keeps what a plan says."""

    def __init__(self, length: int = 0) -> None:
        self.length, self.cuts = length, list[int]()

    def truncate(self, length: int) -> None:
        self.length = length
        self.cuts.append(length)


class Planned:
    """A way of keeping, and what it plans of a canvas."""

    def __init__(
        self, name: str, context: Any, shift: bool, options: Any = None, block: int = 4, can: Capabilities = ROOM
    ) -> None:
        self.keep = FAMILY.make(name, DiffusionHost(DiffusionFacts(M, shift, context, block), can), options or {})
        self.cache = Slots()

    def __call__(self, canvas: Canvas) -> tuple[list[int], list[int], tuple[int, ...]]:
        """The positions that are run, those that are kept, and those that are predicted, from the first one on."""
        plan: PassPlan = self.keep.plan(canvas, cast(Cache, self.cache))
        run = plan.rows.positions.tolist()
        assert plan.rows.tokens.tolist() == [canvas.tokens[i] for i in run]
        assert plan.rows.parents.tolist() == list(range(-1, len(run) - 1))
        self.cache.length += len(plan.commit)
        assert not plan.shown or plan.logits_from + len(plan.shown) == len(run)
        self.groups = [] if plan.rows.groups is None else plan.rows.groups.tolist()
        return run, [run[at] for at in plan.commit], plan.shown


def canvas(*tokens: int, start: int, end: int) -> Canvas:
    found = Canvas(list(tokens), M)
    found.begin(start, end)
    return found


def test_delayed_keys_with_shift() -> None:
    """The row before a masked position predicts it, so it is kept once that is known."""
    plan, text = Planned("delayed", "full", True, {"every": 3}), canvas(1, 2, M, M, M, start=2, end=5)
    assert plan(text) == ([0, 1, 2, 3, 4], [0], (2, 3, 4, -1))
    text.tokens[4] = 7
    assert plan(text) == ([1, 2, 3, 4], [4], (2, 3, -1, -1))
    text.tokens[2] = 8
    assert plan(text) == ([1, 2, 3], [1], (3, -1))
    assert plan.cache.cuts == [0]
    assert plan(text) == ([0, 1, 2, 3, 4], [0, 1, 4], (3, -1, -1))  # three steps are over
    assert plan.cache.cuts == [0, 0]


def test_delayed_keys_without_shift() -> None:
    plan, text = Planned("delayed", "full", False), canvas(1, 2, M, M, M, start=2, end=4)
    assert plan(text) == ([0, 1, 2, 3, 4], [0, 1], (2, 3, -1))
    text.tokens[3] = 7
    assert plan(text) == ([2, 3, 4], [3], (2, -1, -1))
    text.tokens[2] = 8
    text.begin(4, 5)
    assert plan(text) == ([0, 1, 2, 3, 4], [0, 1, 2, 3], (4,))  # another block
    assert plan.cache.cuts == [0, 0]


@pytest.mark.parametrize("shift", [False, True])
def test_windows(shift: bool) -> None:
    """Phases of three passes: everything filled and four masks, then the rows up to the second mask alone."""
    plan = Planned("window", "full", shift, {"every": 3, "wide": 4, "near": 2})
    text = canvas(1, 2, *[M] * 6, start=2, end=8)
    near = [1, 2, 3] if shift else [2, 3]
    first = [0, 1, 2, 3, 4, 5], [i for i in range(6) if i not in near], (2, 3, 4, 5, 6) if shift else (2, 3, 4, 5)
    again = near, [], (2, 3, 4) if shift else (2, 3)
    assert [plan(text) for _ in range(4)] == [first, again, again, first]
    text.tokens[2:4] = 7, 8  # the window is filled: another phase
    near = [3, 4, 5] if shift else [4, 5]
    assert plan(text)[:2] == (list(range(8)), [i for i in range(8) if i not in near])
    assert plan.cache.cuts == [0, 0, 0]


def test_a_canvas_larger_than_a_call() -> None:
    able, small = (Capabilities((), (), largest_call=n, prefill_chunk=4) for n in (5, 4))
    text = canvas(1, M, M, M, M, start=1, end=5)
    assert Planned("none", "full", False, can=able)(text)[2] == (1, 2, 3, 4)
    with pytest.raises(RuntimeUnavailable, match="a canvas of 5 tokens is one call, and this engine takes 4"):
        Planned("none", "full", False, can=small)(text)


def test_without_a_cache_everything_is_run_in_each_pass() -> None:
    plan, text = Planned("none", "causal", True), canvas(1, 2, M, M, start=2, end=4)
    assert plan(text) == ([0, 1, 2, 3], [], (2, 3, -1))
    text.tokens[2], text.step = 7, 1
    assert plan(text) == ([0, 1, 2, 3], [], (-1, 3, -1))
    assert plan.cache.cuts == [0, 0]
    assert plan.groups == [-1, -1, 0, 0]


def test_blocks_of_a_causal_model() -> None:
    plan, text = Planned("block", "causal", True), canvas(1, 2, 3, M, M, M, M, start=3, end=7)
    assert plan(text) == ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2], (3, 4, 5, 6, -1))
    assert plan.groups == [-1, -1, -1, 0, 0, 0, 0]
    text.tokens[3] = 7
    assert plan(text) == ([3, 4, 5, 6], [], (4, 5, 6, -1))
    text.tokens[4:7] = 8, 9, 10
    text.begin(7, 9)
    assert plan(text) == ([3, 4, 5, 6, 7, 8], [3, 4, 5, 6], (7, 8, -1))
    assert plan.cache.cuts == []
    plan.cache.length = 7  # as after a prompt that was read whole: the row before the block is run again
    assert plan(text) == ([6, 7, 8], [6], (7, 8, -1))
    assert plan.cache.cuts == [6]


def test_blocks_of_a_model_that_numbers_them() -> None:
    plan, text = Planned("block", "block", False), canvas(1, 2, 3, 4, 5, M, M, M, start=4, end=8)
    assert plan(text) == ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], (-1, 5, 6, 7))
    assert plan.groups == [0] * 4 + [1] * 4
    text.tokens[6] = 7
    assert plan(text) == ([4, 5, 6, 7], [], (-1, 5, -1, 7))
    plan.cache.length = 6  # a prefix that ends inside the block
    assert plan(text)[0] == [4, 5, 6, 7]
    assert plan.cache.cuts == [4]


def test_what_may_be_edited_is_predicted() -> None:
    plan, text = Planned("block", "block", False), canvas(1, 2, 3, 4, 5, 6, 7, M, start=4, end=8)
    plan.cache.length, text.editable = 4, 5
    assert plan(text) == ([4, 5, 6, 7], [], (-1, 5, 6, 7))
    text.editable = -1
    assert plan(text) == ([4, 5, 6, 7], [], (-1, -1, -1, 7))
    full, text.editable = Planned("none", "full", True), 6
    assert full(text) == ([0, 1, 2, 3, 4, 5, 6, 7], [], (6, 7, -1))


def test_a_prompt_is_read_in_chunks() -> None:
    small = Capabilities((), (), largest_call=8, prefill_chunk=6, masks=False)
    plan, text = Planned("block", "block", False, can=small), canvas(*range(12), M, M, M, M, start=12, end=16)
    assert plan(text) == (list(range(4)), list(range(4)), ())  # whole blocks, and the last with the pass
    assert plan(text) == (list(range(4, 8)), list(range(4, 8)), ())
    assert plan(text) == (list(range(8, 16)), list(range(8, 12)), (12, 13, 14, 15))
    causal, text = Planned("block", "causal", True, can=small), canvas(*range(12), M, M, M, M, start=12, end=16)
    assert causal(text) == (list(range(6)), list(range(6)), ())
    assert causal(text) == (list(range(6, 11)), list(range(6, 11)), ())
    assert causal(text) == ([11, 12, 13, 14, 15], [11], (12, 13, 14, 15, -1))


def test_reordered_rows() -> None:
    """Known tokens first; those that have no masked one before them are kept."""
    plan, text = Planned("reorder", "causal", False), canvas(1, M, 3, M, start=1, end=4)
    assert plan(text) == ([0, 2, 1, 3], [0], (1, 3))
    assert plan.groups == []
    text.tokens[1] = 7
    assert plan(text) == ([1, 2, 3], [1, 2], (3,))
    small = Capabilities((), (), largest_call=8, prefill_chunk=2, masks=False)
    long, text = Planned("reorder", "causal", False, can=small), canvas(1, 2, 3, 4, M, start=4, end=5)
    assert long(text) == ([0, 1], [0, 1], ())
    assert long(text) == ([2, 3, 4], [2, 3], (4,))


def test_parts_of_a_block() -> None:
    """The whole block until a part's first token is known, then the part alone; the rest of it is kept meanwhile."""
    plan, text = Planned("subblock", "causal", True, {"size": 2}), canvas(1, 2, M, M, M, M, start=2, end=6)
    assert plan(text) == ([0, 1, 2, 3, 4, 5], [0, 1, 4, 5], (2, 3, -1, -1, -1))
    text.tokens[2] = 7
    assert plan(text) == ([2, 3], [], (3, -1))
    text.tokens[3] = 8
    assert plan(text) == ([2, 3, 4, 5], [2, 3], (-1, 4, 5, -1))
    assert plan.cache.cuts == [2]
