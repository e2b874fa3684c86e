"""The engine's tree merge and greedy verification beside the Python ones."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafting import reading
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec
from edgedec import Sampling
from edgedec.cache.rows import Rows
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.verify import walk
from edgedec.drafters import Draft
from edgedec.drafters._tables.compiled import CompiledCopy, CompiledDrafter, CompiledRecycling
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.runtime import TableSettings, WatchPrices
from edgedec.speculation.compiled import CompiledMerger
from edgedec.trees.calibration import BINS, Calibration
from edgedec.trees.merge import TreeMerger

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
@settings(max_examples=25, deadline=None)
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


@pytest.mark.parametrize("parents", [[1, -1], [-1, 1]])
def test_a_tree_out_of_order_is_refused(parents: list[int]) -> None:
    merger = CompiledMerger([table()], [Counts()])
    with pytest.raises(ValueError, match="refuses"):
        merger.add(0, Draft([1, 2], parents), np.zeros(BINS))


def test_nodes_without_their_parent_are_refused() -> None:
    merger = CompiledMerger([table()], [Counts()])
    merger.add(0, Draft([1, 2, 3], [-1, -1, 0]), np.full(BINS, 0.5))
    assert merger.cut([2, 0], ["it"], "").parents == [-1, 0]
    for nodes in ([2], [1, 2]):
        with pytest.raises(ValueError, match="refuses"):
            merger.cut(nodes, ["it"], "")


def test_a_tree_beyond_the_room_for_one_is_cut_off() -> None:
    merger = CompiledMerger([table(), Off()], [Counts(), Counts()])  # type: ignore[list-item]
    merger.add(1, Draft(list(range(1100)), [-1] * 1100), np.full(BINS, 0.5))
    assert merger.best_first() == list(range(1024))
    assert merger.guesses[0] == merger.guesses[1023] == [(1, -1)]


def test_many_tests_are_halved() -> None:
    """Of a claim of 0.9, kind 21 of 24: the 49th test makes 24.5 of them, in the engine as in Python."""
    counts: list[Any] = [Counts()]
    merger, oracle, calibrations = CompiledMerger([table()], counts), TreeMerger(), [Calibration()]
    for each, owner in ((merger, counts), (oracle, calibrations)):
        each.add(0, Draft([5], [-1], [0.9]), owner[0].estimates)  # type: ignore[attr-defined]
        for _ in range(49):
            each.test([5], owner)  # type: ignore[attr-defined]
    assert counts[0].hits[21] == counts[0].tests[21] == 24.5
    assert counts[0].estimates[21] == pytest.approx((24.5 + 3 * 21.5 / 24) / 27.5)
    assert np.array_equal(np.stack([counts[0].hits, counts[0].tests]), calibrations[0].state())


def copies(n: int) -> list[CompiledDrafter]:
    from edgedec.runtimes._native_drafting import PARTS

    chosen = TableSettings("copy", ngram=4, length=32)
    return [CompiledCopy(PARTS, PARTS.table(chosen), chosen) for _ in range(n)]  # type: ignore[arg-type]


def test_only_the_tables_that_are_asked_propose() -> None:
    merger = CompiledMerger(copies(2), [Counts(), Counts()])  # type: ignore[list-item]
    text = reading([1, 2, 3, 4] * 5)
    for enabled, numbers in ((1, [0]), (2, [1]), (3, [0, 1])):
        merger.propose(text, 3, 0.01, enabled)
        assert merger.tokens == [1, 2, 3]
        assert [[number for number, _ in node] for node in merger.guesses] == [numbers] * 3


def test_a_watched_tree_is_tested_by_the_tokens_that_came() -> None:
    """Of three guesses the first two came; what another tree replaced in between is not tested."""
    counts, prices = Counts(), WatchPrices([0, 1, 9, 9], 0, 0, 1, 0)
    merger, ids = CompiledMerger(copies(1), [counts]), [1, 2, 3, 4] * 5  # type: ignore[list-item]
    assert merger.watch(reading(ids), 3, 0.01, 1, prices) == 0
    assert not counts.tests.any()
    merger.watch(reading([*ids, 1, 2, 9]), 3, 0.01, 1, prices)
    assert (counts.hits.sum(), counts.tests.sum()) == (2, 3)
    merger.clear()
    merger.watch(reading([*ids, 1, 2, 9, 1]), 3, 0.01, 1, prices)
    assert counts.tests.sum() == 3


@pytest.mark.parametrize(
    ("row", "each", "trust", "first", "nodes"),
    [
        (0.41, 0, 1, 0, 1),  # half a token for 0.41 of one: 1.22 times its price
        (0.42, 0, 1, 0, 0),  # 1.19 times
        (0.31, 0.1, 1, 0, 1),
        (0.32, 0.1, 1, 0, 0),
        (0.2, 0, 0.5, 0, 1),
        (0.22, 0, 0.5, 0, 0),
        (0.2, 0, 1, 0.5, 1),
        (0.2, 0, 1, 0.51, 0),
    ],
)
def test_a_watched_draft_pays_with_a_margin(row: float, each: float, trust: float, first: float, nodes: int) -> None:
    """Any guess comes true half of the time; a call takes 1 without guesses, `row` more with one, 9 with two."""
    counts = Counts()
    counts.estimates[:] = 0.5
    prices = WatchPrices([0, 1, 1 + row, 9, 9], 0, each, trust, first)
    for most in (1, 3):
        merger = CompiledMerger(copies(1), [counts])  # type: ignore[list-item]
        assert merger.watch(reading([1, 2, 3, 4] * 5), most, 0.01, 1, prices) == nodes


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("names", ["copy+suffix+recycling+trigram", "stand+copy+hydra"])
def test_a_generation_drafts_what_python_drafts(nano: Path, names: str, sampled: bool) -> None:
    """Call for call, through the governor: tokens, parents and claims, also of a fork and of a session loaded."""
    model = edgedec.open(nano, engine="native", threads=1)
    native = model.runtime.capabilities
    ids = model.tokenizer.encode("Tom has a red ball. Sam has a blue ball. Tom has a red ball. Sam has")
    sampling = Sampling(temperature=0.7, seed=3) if sampled else Sampling()
    found = []
    for parts in (native.drafting, None):
        model.runtime.capabilities = replace(native, drafting=parts)
        session = model.session(speculate=f"{names}:fixed=5", context=256)
        trace: list[StepTrace] = []
        list(session.tokens(ids, max_tokens=60, sampling=sampling, ignore_eos=True, trace=trace))
        twin = session.fork()
        list(twin.tokens(max_tokens=30, sampling=sampling, ignore_eos=True, trace=trace))
        list(session.tokens(ids[3:], max_tokens=30, sampling=sampling, ignore_eos=True, trace=trace))
        drafts = [step.draft for step in trace]
        assert sum(len(draft.tokens) for draft in drafts) > 150
        assert session.stats.accepted > 0
        found.append([(list(d.tokens), list(d.parents), list(d.p), list(d.by)) for d in drafts])
        compiled = session._drafter.drafter._compiled  # type: ignore[attr-defined]
        assert (compiled is not None) == (parts is not None)
    assert found[0] == found[1]


def test_groups_of_a_thread_share_the_room_for_trees() -> None:
    """A group holds the nodes of its tree alone, and keeps them when others propose after it, in any thread."""
    from edgedec.runtimes._native_drafting import NativeDraftGroup

    def fresh() -> CompiledMerger:
        return CompiledMerger([table(), Off()], [Counts(), Counts()])  # type: ignore[list-item]

    def grow(merger: CompiledMerger, tokens: list[int]) -> None:
        parents = list(range(-1, len(tokens) - 1))
        merger.add(1, Draft(tokens, parents, [0.9] * len(tokens)), np.full(BINS, 0.9))
        assert merger.best_first() == list(range(len(tokens)))

    first, second = fresh(), fresh()
    grow(first, [1, 2, 3])
    grow(second, [4, 5])
    assert (first.tokens, first.parents, len(first.chances)) == ([1, 2, 3], [-1, 0, 1], 3)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(grow, second, [4, 5, 6, 7]).result()
        assert pool.submit(lambda: first.cut([0, 1], "ab", "").tokens).result() == [1, 2]
    assert (first.best_first(), second.tokens) == ([0, 1, 2], [4, 5, 6, 7])
    tables = [table().table for _ in range(9)]
    tracemalloc.start()
    groups = [NativeDraftGroup([each]) for each in tables]  # type: ignore[list-item]
    held = tracemalloc.get_traced_memory()[0] / len(groups)
    tracemalloc.stop()
    assert 0 < held < 4096  # the room for the largest tree takes 32 KiB


def test_forks_hold_little() -> None:
    """A hundred forks of full tables, each of which learns a little."""
    from edgedec.runtimes._native_drafting import PARTS, NativeDraftGroup

    table = PARTS.table(TableSettings("trigram", 1 << 20, 8, 8, rate=0.3))
    assert table is not None
    group, rng = NativeDraftGroup([table]), np.random.default_rng(1)

    def learn(group: NativeDraftGroup, calls: int) -> None:
        for _ in range(calls):
            best = rng.integers(0, 1 << 20, (250, 8)).astype(np.int32), np.zeros((250, 8), np.float32)
            group.observe(Rows.chain(rng.integers(0, 1 << 20, 250), 0), 0, [0], [1], best, 1)

    learn(group, 300)
    assert table.figure(0) == 1 << 16
    before = resident()
    forks = [table.fork() for _ in range(100)]
    for fork in forks:
        learn(NativeDraftGroup([fork]), 1)
    assert resident() - before < 200 << 20  # copies would take 900
    state = table.save(0, 1 << 16, 8)
    assert all(fork.figure(0) == 1 << 16 for fork in forks)
    assert not np.array_equal(forks[0].save(0, 1 << 16, 8)[0], state[0])


def resident() -> int:
    """Bytes of memory that this process holds."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        pytest.skip("no /proc here")
