"""What drafts with slices of the stack are made of: trees by level, costs, exits' choice, token usage, sets by task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drafting import host
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import gained

from edgedec.bundle.manifest import TOKEN_COUNTS
from edgedec.drafters import FAMILY, DrafterContext
from edgedec.drafters._slices.block_search import Search, even
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters._slices.depths import Depths
from edgedec.drafters._slices.gp_search import GaussianSearch, improvement
from edgedec.drafters._slices.stack import WIDEST, chances
from edgedec.drafters._slices.task_sets import COMMON, TaskSets
from edgedec.drafters._slices.tree import Limits, Tree, Trusts, least_path
from edgedec.drafters._usage import SMALL, Usage, covering, usage_of
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.runtime import Readout
from edgedec.testing.fakes import tiny_spec

SPEC = tiny_spec(n_layers=16, hidden_size=32, inner_size=64)
CERTAIN = [(kind + 0.5) / 24 for kind in range(24)]


# ---- trees


def limits(**given: Any) -> Limits:
    return Limits(
        **{"length": 4, "nodes": 9, "least": 0.1, "leaf": 0.05, "width": 3, "first": CERTAIN, "side": CERTAIN} | given
    )


def test_a_level_is_the_likeliest_guesses_of_all_its_nodes() -> None:
    tree = Tree()
    tree.guessed[-1] = [(5, 0.6), (7, 0.3), (8, 0.06)]
    assert tree.grow([-1], limits(width=2)) == [-1, -1]
    assert tree.tokens == [5, 7]
    tree.guessed[0], tree.guessed[1] = [(1, 0.2), (2, 0.1)], [(3, 0.9), (4, 0.02)]
    assert tree.grow([0, 1], limits(width=2)) == [1, 0]
    assert tree.tokens == [5, 7, 3, 1]
    assert tree.parents == [-1, -1, 1, 0]
    assert list(tree.walk([7, 3, 9])) == [(-1, 7), (1, 3), (2, 9)]
    assert list(tree.walk([6, 3])) == [(-1, 6)]


@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_no_level_breaks_its_limits(data: st.DataObject) -> None:
    tree, level = Tree(), [-1]
    given = limits(
        nodes=data.draw(st.integers(0, 12)),
        width=data.draw(st.integers(1, WIDEST)),
        leaf=data.draw(st.floats(0.01, 0.5)),
    )
    for _ in range(4):
        for node in level:
            scores = data.draw(st.lists(st.floats(-8, 8), min_size=WIDEST, max_size=WIDEST))
            tree.guessed[node] = list(zip(range(WIDEST), chances(sorted(scores, reverse=True)), strict=True))
        before = len(tree.tokens)
        parents = tree.grow(level, given)
        level = list(range(before, len(tree.tokens)))
        assert len(parents) == len(level) <= given.width
        if not level:
            break
    assert len(tree.tokens) <= given.nodes
    assert all(path >= given.leaf for path in tree.paths)
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree.tokens)


def test_claims_are_judged_where_their_parent_came_true() -> None:
    tree, trusts = Tree(), Trusts()
    tree.guessed[-1] = [(5, 0.6), (7, 0.3)]
    tree.grow([-1], limits(width=2))
    tree.guessed[1] = [(3, 0.9)]
    trusts.observe(tree, [7, 4], 2)
    assert (trusts.record.tested, trusts.deeper.tested) == (pytest.approx(1.97), 1)
    assert trusts.deeper.right == 0
    assert trusts.first.tests.sum() == 2
    assert trusts.side.tests.sum() == 1


def test_the_worked_examples() -> None:
    assert least_path(0.2, 1.5, 0.6) == pytest.approx(0.68)
    assert improvement(1, 1, 1) == pytest.approx(0.3989, abs=1e-4)
    assert covering(np.array([5, 0, 3, 2]), 0.8, 1).ids.tolist() == [0, 2]
    assert [round(p, 2) for p in chances([2.0, 1.0, -np.inf])] == [0.73, 0.27, 0.02]


# ---- costs and the choice of an exit


def true_seconds(costs: SliceCosts, terms: Sequence[float]) -> Any:
    def seconds(blocks: float, head: float, rows: int) -> float:
        return 0.03 * float(np.dot(terms, [blocks, head, 1.0, (blocks + head) * (rows - 1)]))

    return seconds


@pytest.mark.parametrize("terms", [(1, 1, 0, 0.04), (0.9, 2.0, 0.05, 0.02), (1.2, 0.5, 0.0, 0.1)])
def test_costs_of_parts_are_learned_from_calls(terms: Sequence[float]) -> None:
    costs, rng = SliceCosts(SPEC), np.random.default_rng(0)
    seconds = true_seconds(costs, terms)
    whole = costs.blocks(0, SPEC.n_blocks)
    assert whole + costs.head == pytest.approx(1)
    for _ in range(150):
        stop = int(rng.integers(1, SPEC.n_blocks))
        for blocks, head, rows in (
            (costs.blocks(0, stop), costs.head / 4, 1),
            (costs.blocks(stop, SPEC.n_blocks), costs.head, 4),
        ):
            costs.add(blocks, head, rows, seconds(blocks, head, rows) * rng.lognormal(0, 0.1))
    for blocks, head, rows in (
        (whole, costs.head, 1),
        (whole, costs.head, 4),
        (whole / 4, 0.0, 1),
        (whole / 2, costs.head / 4, 2),
    ):
        assert costs.seconds(blocks, head, rows) == pytest.approx(seconds(blocks, head, rows), rel=0.12)


def test_one_interrupted_call_changes_little() -> None:
    costs = SliceCosts(SPEC)
    whole = costs.blocks(0, SPEC.n_blocks)
    for _ in range(50):
        costs.add(whole, costs.head, 1, 0.03)
    before = costs.plain
    costs.add(whole, costs.head, 1, 3.0)
    assert before < costs.plain < 1.1 * before
    costs.add(whole, costs.head, 1, -1.0)


def rated(rates: Sequence[float], gamma: int = 4) -> Depths:
    """Exits after layers 4, 8, 12, ... whose guesses came true so often."""
    depths = Depths(SPEC, [4 * (i + 1) - 1 for i in range(len(rates))], gamma)
    for record, rate in zip(depths.records, rates, strict=True):
        for at in range(1000):
            record.add(at * rate % 1 < rate, rate)
    return depths


def speeds(depths: Depths, place: int, readout: float) -> list[float]:
    """The tokens in the time of a plain call of each length: n levels and one more to the exit, the rest for n + 1."""
    costs, end, rate = depths.costs, depths.ends[place], depths.records[place].rate
    ahead, rest = costs.blocks(0, end), costs.blocks(end, SPEC.n_blocks)
    found = []
    for n in range(1, 5):
        tokens = sum(rate**i for i in range(n + 1))
        seconds = n * costs.seconds(ahead, costs.head * readout, 1) + costs.seconds(ahead, 0.0, 1)
        found.append(tokens * costs.plain / (seconds + costs.seconds(rest, costs.head, n + 1)))
    return found


def test_an_exit_is_worth_its_tokens_a_second_at_its_best_length() -> None:
    depths = rated((0.9, 0.5, 0.97))
    lengths = set()
    for place in range(3):
        expected = speeds(depths, place, 0.3)
        found, length = depths.payoff(place, 0.3)
        assert found == pytest.approx(max(expected))
        assert length == expected.index(max(expected)) + 1
        lengths.add(length)
    assert len(lengths) > 1
    costs, blocks = depths.costs, depths.costs.blocks(0, SPEC.n_blocks)
    more = costs.seconds(blocks, costs.head, 2) - costs.seconds(blocks, costs.head, 1)
    assert depths.row_seconds() == pytest.approx(more)


def test_measured_speeds_outweigh_estimates_and_correct_the_others() -> None:
    """(24 e s + n real) / (24 + n): n rounds at 0.98 each, and s the mean of real / e in them and 24 rounds of 1."""
    depths = rated((0.9, 0.5, 0.97))
    plain, estimates = depths.costs.plain, [depths.payoff(place, 0.3)[0] for place in range(3)]
    assert depths.values(0.3) == pytest.approx(estimates)
    earned = [[0.0, 0.0, 0.0] for _ in range(3)]
    for place, tokens, seconds in ((0, 3, 2.0), (0, 1, 1.5), (2, 2, 2.5), (0, 2, 2.0)):
        depths.chosen = place
        depths.earn(tokens, seconds * plain)
        earned = [[0.98 * x for x in each] for each in earned]
        earned[place] = [x + y for x, y in zip(earned[place], (tokens, seconds, 1), strict=True)]
    real = [t / s if s else 0.0 for t, s, _ in earned]
    rounds = [n for *_, n in earned]
    scale = (24 + sum(n * r / e for n, r, e in zip(rounds, real, estimates, strict=True))) / (24 + sum(rounds))
    expected = [(24 * e * scale + n * r) / (24 + n) for e, n, r in zip(estimates, rounds, real, strict=True)]
    assert depths.values(0.3) == pytest.approx(expected)
    assert scale < 0.99


def test_another_exit_must_be_better_by_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """By 4%, unless nothing was drafted; exits within 85% of the best are near, and none is used that gains nothing."""
    depths, values = rated((0.9, 0.5, 0.97)), [1.5, 1.55, 1.3]
    monkeypatch.setattr(depths, "values", lambda readout: values)
    depths.choose(0.3)
    assert (depths.chosen, depths.length, depths.near) == (0, depths.payoff(0, 0.3)[1], [True, True, False])
    values[1] = 1.57
    depths.choose(0.3)
    assert (depths.chosen, depths.length) == (1, depths.payoff(1, 0.3)[1])
    values[:] = [0.9, 0.98, 1.0]
    depths.choose(0.3)
    assert (depths.chosen, depths.length) == (1, 0)
    values[:] = [1.01, 1.0, 1.0]
    depths.choose(0.3)
    assert (depths.chosen, depths.length) == (0, depths.payoff(0, 0.3)[1])


def test_the_exit_chosen_earns_what_the_best_fixed_one_does() -> None:
    """DEL against every fixed exit and length, on exits of known rates that change half-way."""
    rates = [
        np.array([0.2, 0.45, 0.6, 0.65, 0.7, 0.72, 0.74, 0.75]),
        np.array([0.55, 0.6, 0.62, 0.7, 0.9, 0.93, 0.95, 0.96]),
    ]
    layers = [1, 3, 4, 6, 7, 9, 10, 12]

    def tokens(rng: np.random.Generator, rate: float, length: int) -> int:
        n = 0
        while n < length and rng.random() < rate:
            n += 1
        return n + 1

    def speed(choose: Any) -> float:
        rng, got, spent = np.random.default_rng(7), 0, 0.0
        for at in range(1600):
            now = rates[at >= 800]
            place, length = choose(at, now, rng)
            n = tokens(rng, float(now[place]), length)
            took = seconds(place, length)
            got, spent = got + n, spent + took
            if learning:
                depths.earn(n, took)
        return got / spent

    depths, learning = Depths(SPEC, layers, 6), False
    costs = depths.costs

    def seconds(place: int, length: int) -> float:
        if not length:
            return costs.plain
        end = depths.ends[place]
        rest = costs.seconds(costs.blocks(end, SPEC.n_blocks), costs.head, length + 1)
        return length * depths.level_seconds(place, 0.1) + costs.seconds(costs.blocks(0, end), 0.0, 1) + rest

    best = max(speed(lambda at, now, rng, p=p, n=n: (p, n)) for p in range(8) for n in range(1, 7))
    learning = True

    def chosen(at: int, now: Any, rng: np.random.Generator) -> tuple[int, int]:
        for record, rate in zip(depths.records, now, strict=True):
            record.add(bool(rng.random() < rate), float(rate))
        if at % 8 == 0 and at:
            depths.choose(0.1)
        return depths.chosen, depths.length

    assert speed(chosen) >= 0.98 * best


# ---- tokens used


def test_a_readout_is_used_when_it_would_have_missed_little() -> None:
    usage, rng = Usage(20_000, 5_000), np.random.default_rng(0)
    assert usage.readout is None
    usage.add(rng.integers(0, 20_000, 1024).tolist())
    assert usage.readout is None
    for _ in range(3):
        usage.add((9_000 + rng.integers(0, 50, 512)).tolist())
    readout = usage.readout
    assert readout is not None
    assert set(range(9_000, 9_050)) <= set(readout.ids.tolist())
    assert len(readout) == 5_000
    # Other tokens are said: whole again, and then trimmed to those.
    usage.add((15_000 + rng.integers(0, 50, 512)).tolist())
    assert usage.readout is None
    usage.add((15_000 + rng.integers(0, 50, 512)).tolist())
    assert usage.readout is not None
    assert {15_000, 9_000} <= set(usage.readout.ids.tolist())


def test_a_small_vocabulary_and_a_whole_share_are_not_trimmed() -> None:
    for vocab, share in ((SMALL, 0.25), (100_000, 1.0)):
        usage = usage_of(plain(vocab), share)
        usage.add([5] * 5000)
        assert usage.readout is None
    for share in ("0", "-1", "1.5", "nan"):
        with pytest.raises(UsageError, match=f"trim={share}: must be"):
            FAMILY.typed("exit", {"trim": share})


def plain(vocab: int) -> DrafterContext:
    runtime: Any = SimpleRuntime(vocab)
    return host(runtime)


class SimpleRuntime:
    def __init__(self, vocab: int) -> None:
        self.spec = tiny_spec(vocab_size=vocab)


def with_table(folder: Path, vocab: int, counts: np.ndarray) -> Any:
    counts.astype("<u4").tofile(folder / TOKEN_COUNTS)
    context = plain(vocab)
    bundle: Any = SimpleNamespace(
        path=folder, file=lambda name: folder / name, manifest=SimpleNamespace(heads={}, files={TOKEN_COUNTS: None})
    )
    return type(context)(context.runtime, bundle, context.tokenizer)


def test_a_bundles_table_trims_from_the_first_draft(tmp_path: Path) -> None:
    counts = np.zeros(50_000, np.int64)
    counts[20_000:30_000] = 7
    context = with_table(tmp_path, 50_000, counts)
    usage = usage_of(context, 0.25)
    assert usage.readout is not None
    assert len(usage.readout) == pytest.approx(0.998 * 10_000, abs=2)
    # Sessions share the rows of the head.
    assert usage_of(context, 0.25).readout is usage.readout
    # A table of hardly anything says nothing; one of another vocabulary is refused.
    assert usage_of(with_table(tmp_path, 50_000, np.ones(50_000) * (np.arange(50_000) < 9)), 0.25).readout is None
    with pytest.raises(BundleCorrupt, match="train-heads"):
        usage_of(with_table(tmp_path, 50_000, np.ones(10)), 0.25)


def test_the_counts_kept_are_checked() -> None:
    usage = Usage(20_000, 5_000)
    usage.add([1, 2, 2])
    twin = Usage(20_000, 5_000)
    twin.restore(usage.state())
    assert twin.state()["times"].tolist() == [1, 2]
    good = usage.state()
    for bad in (
        good | {"said": np.array([1, 20_000])},
        good | {"said": np.array([-1, 2])},
        good | {"times": np.array([1.0])},
        good | {"times": np.array([1.0, np.nan])},
        good | {"times": np.array([1.0, -1.0])},
    ):
        with pytest.raises(UsageError, match="counts of tokens"):
            twin.restore(bad)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.floats(0.05, 1.0))
def test_covering_is_the_fewest_tokens_that_do(counts: list[int], covered: float) -> None:
    array = np.array(counts)
    readout = covering(array, covered, 1)
    assert isinstance(readout, Readout)
    assert array[readout.ids].sum() >= covered * array.sum() - 1e-6
    if len(readout) > 1:
        assert np.sort(array)[::-1][: len(readout) - 1].sum() < covered * array.sum() + 1e-6


# ---- the Gaussian search, and sets by task


def test_sets_of_the_gaussian_search_are_ascending() -> None:
    search = GaussianSearch(SPEC, even(SPEC, 0.4), 6)
    sets = [search._random() for _ in range(50)]
    assert all(list(skipped) == sorted(set(skipped)) for skipped in sets)
    assert all(search._movable[search._mask(skipped)].tolist() == list(skipped) for skipped in sets)
    assert {len(skipped) for skipped in sets} > {len(search.skipped) - 1, len(search.skipped) + 1}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [Search, GaussianSearch])
def test_the_searches_gain_where_blocks_matter_unequally(kind: type[Search], seed: int) -> None:
    assert gained(kind, seed, 150) > 1.2


def test_a_gaussian_process_knows_what_it_saw_and_not_what_is_far() -> None:
    search = GaussianSearch(SPEC, even(SPEC, 0.4), 6)
    near = search.skipped
    for _ in range(6):
        search.add_trial(near, 0.9, None)
    far = tuple(block for block in range(2, 30) if block not in near)
    mean, spread = search.expected(np.array([search._mask(near), search._mask(far)]))
    assert mean[0] == pytest.approx(search.value(near, 0.9), rel=0.1)
    assert spread[0] < 0.06 < 0.2 < spread[1]


def test_what_a_gaussian_search_learned_goes_on_and_is_checked() -> None:
    search, twin = GaussianSearch(SPEC, even(SPEC, 0.4), 6), GaussianSearch(SPEC, even(SPEC, 0.6), 6)
    search.add_trial(search.skipped, 0.7, None)
    twin.restore(search.state())
    assert twin.skipped == search.skipped
    good = search.state()
    for bad in (
        {},
        good | {"rates": np.array([0.5, 0.5])},
        good | {"rates": np.array([np.nan])},
        good | {"rates": np.array([1.5])},
        good | {"sets": good["sets"].astype(int)},
        good | {"seen": np.array([2.0, 1, 1])},
        good | {"skipped": np.array([0])},
    ):
        with pytest.raises(UsageError, match="drafter skip: the state kept"):
            twin.restore(bad)


def sets(task: str = "") -> TaskSets:
    return TaskSets(lambda: Search(SPEC, even(SPEC, 0.4), 6), task)


def test_a_beginning_seen_twice_has_a_set_of_its_own() -> None:
    tasks, code, chat = sets(), list(range(40)), list(range(40, 90))
    assert tasks.of([1, 2, 3])[0] == COMMON
    name, common = tasks.of([*code, 1])
    assert name == COMMON
    common.add_trial(common.skipped, 0.8, None)
    name, own = tasks.of([*code, 2])
    assert name != COMMON
    assert own is not common
    assert own.rate == common.rate
    own.skipped = (2, 3)
    assert tasks.of([*code, 3])[1] is own
    assert tasks.of([*chat, 3])[1] is common
    assert common.skipped != (2, 3)
    twin = sets()
    twin.restore(tasks.state())
    assert twin.of([*code, 4])[1].skipped == (2, 3)
    assert twin.of([1])[1].skipped == common.skipped
    for _ in range(2):
        for start in range(100, 140):
            tasks.of([start] * 30)
    assert len(tasks.names) <= 17
    assert COMMON in tasks.names


def test_a_task_that_is_named_is_the_only_one() -> None:
    tasks = sets("code")
    for prompt in ([1], list(range(60)), list(range(60))):
        assert tasks.of(prompt)[0] == "code"
    assert tasks.names == ["code"]
