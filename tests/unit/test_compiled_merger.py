"""The engine's tree merge and greedy verification beside the Python ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.decoding.verify import walk
from edgedec.drafters import Draft
from edgedec.drafters._compiled import CompiledDrafter, CompiledRecycling
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.runtime import TableSettings
from edgedec.runtime.rows import Rows
from edgedec.speculation.calibration import BINS, Calibration
from edgedec.speculation.compiled import CompiledMerger
from edgedec.speculation.merger import TreeMerger

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


class Counts:
    """What `Calibration` learned, as arrays that the engine updates."""

    def __init__(self) -> None:
        self.hits, self.tests, self.estimates = np.zeros(BINS), np.zeros(BINS), (np.arange(BINS) + 0.5) / BINS


def table() -> CompiledDrafter:
    from edgedec.runtimes._native_drafting import PARTS

    chosen = TableSettings("recycling", 50, 8, 4)
    return CompiledRecycling(PARTS, PARTS.table(chosen), chosen)  # type: ignore[arg-type]


def tree(rng: np.random.Generator, most: int) -> Draft:
    """A random tree without twins, with claims or without."""
    tokens, parents, known = [], [], set()
    for _ in range(int(rng.integers(0, most))):
        key = int(rng.integers(-1, len(tokens))) if tokens else -1, int(rng.integers(0, 5))
        if key not in known:
            known.add(key)
            parents.append(key[0])
            tokens.append(key[1])
    p = rng.random(len(tokens)).round(1).tolist() if rng.random() < 0.8 else ()
    return Draft(tokens, parents, p)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_trees_merge_alike(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts: list[Any] = [Counts() for _ in range(4)]
    oracles = [Calibration() for _ in counts]
    mine = CompiledMerger([table(), Off(), Off(), Off()], counts)
    for _ in range(int(rng.integers(1, 60))):
        mine.clear()
        oracle = TreeMerger()
        for number in range(4):
            draft = tree(rng, 14)
            places = mine.add(number, draft, counts[number].estimates)
            assert places == oracle.add(number, draft, oracles[number].estimates)
        order = oracle.best_first()
        assert (mine.best_first(), len(mine)) == (order, len(oracle))
        assert (mine.tokens, mine.parents, mine.chances) == (oracle.tokens, oracle.parents, oracle.chances)
        assert [[n for n, _ in found] for found in mine.guesses] == [[n for n, _ in found] for found in oracle.guesses]
        kept = order[: int(rng.integers(0, 9))]
        assert mine.cut(kept, "abcd", "why") == oracle.cut(kept, "abcd", "why")
        assert mine.best_chain() == oracle.best_chain()
        picked = rng.integers(0, 5, int(rng.integers(1, 6))).tolist()
        assert mine.path(picked) == oracle.path(picked)
        assert mine.test(picked, counts) == oracle.test(picked, oracles)
        for count, calibration in zip(counts, oracles, strict=True):
            assert count.estimates == pytest.approx(np.asarray(calibration.estimates), rel=1e-14)
            count.estimates[:] = calibration.estimates  # rounded otherwise in the last place
    assert sum(count.tests.sum() for count in counts) == pytest.approx(sum(float(np.sum(c.tests)) for c in oracles))


@given(st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_greedy_verification_walks_alike(seed: int) -> None:
    from edgedec.runtimes._native_drafting import PARTS

    rng = np.random.default_rng(seed)
    before, drafted = int(rng.integers(0, 5)), int(rng.integers(0, 20))
    tokens = rng.integers(0, 4, before + 1 + drafted).tolist()
    parents = [*range(-1, before), *(int(rng.integers(before, before + 1 + i)) for i in range(drafted))]
    rows, largest = Rows.tree(tokens, parents, 3), rng.integers(0, 4, (drafted + 1, 3)).astype(np.int32)
    path, picked = PARTS.walk(rows, before, largest)
    assert (path, picked) == walk(rows, lambda row, _: int(largest[row - before, 0]), before)
    assert len(path) == len(picked) >= 1


def test_a_choice_that_is_none_ends_nothing_silently() -> None:
    from edgedec.runtimes._native_drafting import PARTS

    assert PARTS.walk(Rows.chain([1, 2], 0), 0, np.int32([[2], [-1]])) == ([], [])


def test_a_tree_out_of_order_is_refused() -> None:
    merger = CompiledMerger([table()], [Counts()])
    with pytest.raises(ValueError, match="refuses"):
        merger.add(0, Draft([1, 2], [1, -1]), np.zeros(BINS))
