"""The drafters that keep tables: sound trees, tables that learn, states that come back, text that stays the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drafting import check, paths
from hypothesis import example, given, settings
from hypothesis import strategies as st
from loops import decode

import edgedec
from edgedec.cache import HostCache
from edgedec.cache.rows import Rows
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats, StepResult
from edgedec.drafters import FAMILY, Drafter, DrafterContext, make_drafter, recycling
from edgedec.drafters._tables.corpus import tables_of
from edgedec.drafters._tables.ranked import Table, Tail, best_of, grow_ranked, keys_of
from edgedec.drafters.off import Off
from edgedec.drafters.recycling import Recycling
from edgedec.drafters.stand import Stand
from edgedec.drafters.trigram import Trigram
from edgedec.errors import UsageError
from edgedec.runtime import Call, CallResult, Hidden, forward_one
from edgedec.sampling import Sampling
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.trees.grow import grow

VOCAB = 13
NAMES = ("recycling", "trigram", "stand")
MAKE: dict[str, Callable[..., Any]] = {"recycling": Recycling, "trigram": Trigram, "stand": Stand}


class Markov(FakeRuntime):
    """Its next token depends on the last `order` tokens and nothing else; some followers are hard to tell apart."""

    def __init__(self, order: int, vocab: int = VOCAB, spread: float = 9.0, seed: int = 1) -> None:
        super().__init__(tiny_spec(vocab_size=vocab, n_layers=1, context_length=4096))
        self._order, self._vocab = order, vocab
        self._laws = np.random.default_rng(seed).normal(size=(vocab,) * (order + 1)).astype(np.float32) * spread / 3

    def run_block(self, b: int, hidden: Hidden, call: Call, span: tuple[int, int]) -> None:
        """Column 2 of a hidden state: the token before, read through the cache; column 0 is the token."""
        if b not in self.spec.attention:
            return
        assert isinstance(call.cache, HostCache)
        keys, rows = call.cache.data(b)[0], call.rows
        start = span[0] - rows.first
        keys[0, slice(*span), 0] = hidden[:, 0]
        for i, row in enumerate(hidden):
            parent = int(rows.parents[rows.first + i])
            row[2] = keys[0, start + parent, 0] if start + parent >= 0 else 0

    def head(self, hidden: Any) -> Any:
        last, before = hidden[:, 0].astype(int), hidden[:, 2].astype(int)
        return self._laws[last] if self._order == 1 else self._laws[before, last]


def context_of(runtime: FakeRuntime, ids: list[int], **more: Any) -> Context:
    return Context(list(ids), len(ids), runtime.new_cache(2048), rng=np.random.default_rng(3), **more)


def tokens_per_call(
    drafter: Drafter, runtime: FakeRuntime, n: int = 200, seed: int = 0, temperature: float = 1.0
) -> float:
    stats = Stats()
    context = context_of(runtime, [seed % VOCAB, 2])
    drafter.reset()
    ask = GenerationConfig(Sampling(temperature=temperature, seed=seed), max_tokens=n)
    context.rng = np.random.default_rng(seed)
    list(decode(runtime, context, ask, drafter, stats=stats))
    return stats.generated / stats.calls


@pytest.mark.parametrize("name", NAMES)
@given(
    seed=st.integers(0, 99), nodes=st.integers(0, 12), min_path_prob=st.sampled_from([0.0, 0.05, 0.3]),
    drawn=st.booleans(), turns=st.integers(0, 6), k=st.integers(1, 16),
)  # fmt: skip
@example(seed=5, nodes=2, min_path_prob=0.0, drawn=False, turns=5, k=2)  # two ranks that both came true often
@settings(max_examples=40, deadline=None)
def test_drafts_are_sound(
    name: str, seed: int, nodes: int, min_path_prob: float, drawn: bool, turns: int, k: int
) -> None:
    runtime = FakeRuntime(seed=seed)
    options = {"verify": "recursive"} if drawn and name == "stand" else {}
    drafter = MAKE[name](VOCAB, 10, k, **options)
    context = context_of(runtime, [seed % VOCAB, *range(seed % 3)])
    ask = GenerationConfig(Sampling(temperature=0.9, top_k=5) if drawn else Sampling(), max_tokens=4)
    for _ in range(turns):
        list(decode(runtime, context, ask, drafter))
    context.sampling = ask.sampling
    draft = drafter.propose(context, nodes, min_path_prob)
    check(draft, min(nodes, 10), min_path_prob, VOCAB)
    assert (draft.sampled is not None) == (drawn and name == "stand" and nodes > 0)


@given(st.integers(0, 999), st.integers(0, 20), st.sampled_from([0.0, 0.02, 0.2]))
@settings(max_examples=50, deadline=None)
def test_growing_by_ranks_is_growing(seed: int, nodes: int, min_path_prob: float) -> None:
    rng = np.random.default_rng(seed)
    table = {
        token: (rng.permutation(9)[:4].tolist(), np.sort(rng.random(4) * 0.9)[::-1].tolist())
        for token in range(9)
        if rng.random() < 0.8
    }
    least = min_path_prob
    mine = grow_ranked(0, lambda t: (*table[t], table[t][1]) if t in table else None, lambda _, t: t, nodes, least)
    other = grow(0, lambda t: [(a, p, a) for a, p in zip(*table.get(t, ((), ())), strict=True)], nodes, least)
    # Of paths equally likely (the same steps in another order) either may come first.
    assert paths(mine) == pytest.approx(paths(other))


def line(tokens: list[int], p: list[float]) -> tuple[Any, Any]:
    return np.array([tokens], np.int32), np.array([p], np.float32)


def test_a_table_mixes_what_it_saw() -> None:
    table = Table(2, 8, VOCAB)
    table.learn([5], *line([1, 2], [0.6, 0.4]), rate=0.5)
    table.learn([5], *line([2, 3], [0.8, 0.2]), rate=0.5)
    ids, p = table.row(table.find(5))
    assert ids == [2, 1]
    assert p == pytest.approx([0.6, 0.3])
    table.learn([5], *line([7, 8], [0.9, 0.1]), rate=1.0)
    assert table.row(table.find(5))[0] == [7, 8]


def test_the_first_visits_are_a_mean_and_newer_weigh_more_later() -> None:
    table = Table(2, 8, VOCAB)
    for tokens in ([1, 2], [1, 2], [2, 1]):
        table.learn([0], *line(tokens, [1.0, 0.0]), rate=0.1)
    assert table.row(0)[1] == pytest.approx([2 / 3, 1 / 3])
    for _ in range(30):
        table.learn([0], *line([2, 1], [1.0, 0.0]), rate=0.1)
    assert table.row(0)[0][0] == 2
    assert table.row(0)[1][0] > 0.9


def test_the_oldest_key_makes_room() -> None:
    table = Table(1, 3, VOCAB)
    for key in (10, 11, 12, 10, 13):
        table.learn([key], *line([key % VOCAB], [0.5]), rate=0.5)
    assert sorted(table.index) == [11, 12, 13]
    assert table.row(table.find(13)) == ([0], [0.5])
    twin = Table(1, 3, VOCAB)
    twin.restore(table.state())
    twin.learn([14], *line([1], [0.5]), rate=0.5)
    assert sorted(twin.index) == [12, 13, 14]
    assert len(table) == 3


def test_a_table_grows_and_a_smaller_one_takes_the_latest() -> None:
    table, small = Table(2, 5000, VOCAB), Table(2, 10, VOCAB)
    for first in range(0, 3000, 500):
        keys = list(range(first, first + 500))
        table.learn(keys, np.tile(np.int32([1, 2]), (500, 1)), np.tile(np.float32([0.5, 0.2]), (500, 1)), rate=0.3)
    assert len(table) == 3000
    assert table.row(table.find(0)) == table.row(table.find(2999))
    small.restore(table.state())
    assert sorted(small.index) == list(range(2990, 3000))


def test_keys_tell_lists_apart() -> None:
    lists = [[a, b, c] for a in range(6) for b in range(6) for c in range(6)]
    keys = {key for tokens in lists for key in keys_of(tokens, 6)}
    assert len(keys) == 6 + 36 + 216
    assert keys_of([3, 5], 6) == keys_of([1, 3, 5], 6)[:2]


def test_a_tail_knows_every_row_of_a_tree() -> None:
    rows = Rows.tree([4, 7, 8, 9, 5], [-1, 0, 0, 2, 3], 6)
    seen: Any = SimpleNamespace(rows=rows, root=0, path=[0, 2], picked=[8, 1])
    tail = Tail(3)
    assert tail.histories(seen) == [(4,), (4, 7), (4, 8), (4, 8, 9), (8, 9, 5)]
    assert tail.tokens == (4, 8, 1)
    tail.follow([1, 2, 3, 4])
    assert tail.histories(seen)[:3] == [(2, 3, 4), (3, 4, 7), (3, 4, 8)]
    # The call after it, without a proposal: what was picked is remembered.
    seen = SimpleNamespace(rows=Rows.chain([1], 9), root=0, path=[0], picked=[6])
    assert tail.histories(seen) == [(4, 8, 1)]
    # Another text: what was remembered does not end in this root.
    assert tail.histories(SimpleNamespace(rows=Rows.chain([2, 3], 0), root=1, path=[0], picked=[6])) == [(2, 3)]  # type: ignore[arg-type]


def test_rows_that_are_not_finite_teach_nothing() -> None:
    ids, scores = np.int32([[1, 2], [3, -1]]), np.float32([[2.0, 1.0], [np.inf, np.nan]])
    shown = best_of(CallResult(ids=ids, scores=scores), 2)
    assert shown is not None
    assert shown[0].tolist() == [[1, 2], [-1, -1]]
    assert shown[1][1].tolist() == [0, 0]
    assert shown[1][0].sum() == pytest.approx(1)
    assert best_of(CallResult(), 2) is None
    assert best_of(CallResult(ids=ids, scores=scores), 3) is None


@pytest.mark.parametrize("name", NAMES)
def test_every_row_teaches_accepted_or_not(name: str) -> None:
    runtime, drafter = Markov(1), MAKE[name](VOCAB)
    rows = Rows.tree([3, 8, 9], [-1, 0, 0], 0)
    result = forward_one(runtime, Call(rows, runtime.new_cache(9), outputs=drafter.outputs))
    drafter.observe(StepResult(rows, 0, [0], [1], result, 0.001))
    best = runtime._laws.argmax(1)
    for token in (8, 9):
        draft = drafter.propose(context_of(runtime, [3, token]), 1, 0.0)
        assert list(draft.tokens) == [best[token]]


@pytest.mark.parametrize("name", NAMES)
def test_acceptance_rises(name: str) -> None:
    runtime, drafter = Markov(1 if name == "recycling" else 2), MAKE[name](VOCAB)
    for seed in range(5):
        tokens_per_call(drafter, runtime, 200, seed)
    # The same text, by a table that has seen others and by an empty one.
    warm, cold = tokens_per_call(drafter, runtime, 40, 5), tokens_per_call(MAKE[name](VOCAB), runtime, 40, 5)
    assert warm > 1.25 * cold > 1.0


def test_recycling_forgets_what_was_shown_the_longest_time_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "_CAP", 8)
    runtime, drafter = Markov(1), Recycling(VOCAB)

    def show(token: int) -> None:
        rows = Rows.chain([token], 0)
        result = forward_one(runtime, Call(rows, runtime.new_cache(9), outputs=drafter.outputs))
        drafter.observe(StepResult(rows, 0, [0], [1], result, 0.001))

    for token in [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 8]:
        show(token)
    assert sorted(drafter._shown) == [0, 1, 6, 7, 8]


def test_two_tokens_say_more_than_one() -> None:
    runtime, found = Markov(2), {}
    for name in NAMES:
        drafter = MAKE[name](VOCAB)
        found[name] = [tokens_per_call(drafter, runtime, 300, seed) for seed in range(5)][-1]
    assert found["trigram"] > 1.2 * found["recycling"]
    assert found["stand"] > 1.2 * found["recycling"]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_learned_survives_a_reset_and_a_state(name: str) -> None:
    runtime, drafter = Markov(2), MAKE[name](VOCAB)
    for seed in range(3):
        tokens_per_call(drafter, runtime, 100, seed)
    twin = MAKE[name](VOCAB)
    state = drafter.state()
    assert all(array.dtype in (np.int32, np.float32) for array in state.values())
    twin.restore({key: array.copy() for key, array in state.items()})
    assert twin.report() == drafter.report()
    drafter.reset()
    for start in range(VOCAB):
        a, b = (d.propose(context_of(runtime, [1, start]), 16, 0.0) for d in (drafter, twin))
        assert (a.tokens, a.parents) == (b.tokens, b.parents)
        assert a.p == pytest.approx(b.p)
    assert all(np.array_equal(array, twin.state()[key]) for key, array in drafter.state().items())


def spoil(name: str) -> Callable[[dict[str, Any]], None]:
    """A way to make a state one that no drafter of this model gave."""

    def change(state: dict[str, Any]) -> None:
        key = next(k for k in reversed(state) if k.endswith(name.split()[0]))
        array = state[key].copy()
        match name:
            case "ids":
                array[0, 0] = VOCAB
            case "ids twins":
                array[0, 1] = array[0, 0]
            case "p":
                array[0, 0] = np.nan
            case "p unsorted":
                array = np.ascontiguousarray(array[:, ::-1])
            case "visits":
                array[0] = 0
            case "keys" | "tokens":
                array[1] = array[0]
            case "ids narrow":
                array = array[:, 1:]
            case "visits type" | "tokens type":
                array = array.astype(np.int64)
        state[key] = array

    return change


SPOILT = ["ids", "ids twins", "p", "p unsorted", "ids narrow"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *[(name, what) for name in NAMES for what in SPOILT],
        *[(name, what) for name in NAMES[1:] for what in ("visits", "keys", "visits type")],
        *[("recycling", what) for what in ("tokens", "tokens type")],
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(name: str, what: str) -> None:
    runtime, drafter = Markov(2, spread=2.0), MAKE[name](VOCAB)
    tokens_per_call(drafter, runtime, 60)
    bad, before = dict(drafter.state()), drafter.state()
    spoil(what)(bad)
    with pytest.raises(UsageError, match="state "):
        drafter.restore(bad)
    with pytest.raises(UsageError, match="state "):
        drafter.restore({})
    assert all(np.array_equal(array, before[key]) for key, array in drafter.state().items())


def test_a_record_out_of_range_is_refused() -> None:
    drafter = Stand(VOCAB)
    for value in (np.nan, -1.0):
        state = drafter.state()
        state["came"][0, 0, 0, 0] = value
        with pytest.raises(UsageError, match="came"):
            drafter.restore(state)


def test_options_are_checked() -> None:
    wrong = [*((name, key, "0") for name in ("recycling", "stand", "trigram") for key in ("nodes", "k"))]
    wrong += [("trigram", "rate", "0"), ("trigram", "rate", "1.5"), ("trigram", "explore", "-0.1")]
    for name, key, value in wrong:
        with pytest.raises(UsageError, match=f"drafter {name}: {key}={value}: must be"):
            FAMILY.typed(name, {key: value})


def test_a_prompt_teaches_the_trigram() -> None:
    runtime, drafter = Markov(1), Trigram(VOCAB)
    draft = drafter.propose(context_of(runtime, [4, 5, 6, 7, 4, 5]), 2, 0.0)
    assert list(draft.tokens) == [6, 7]
    weak = drafter.propose(context_of(runtime, [9, 5]), 1, 0.0)
    assert list(weak.tokens) == [6]
    assert weak.p[0] < draft.p[0]


class NaiveTrigram:
    """What the target said after one and after two tokens, in plain lists, and the best-first tree of it."""

    def __init__(self, rate: float, explore: float) -> None:
        self.rate, self.explore = rate, explore
        self.singles: dict[int, dict[int, float]] = {}
        self.pairs: dict[tuple[int, int], dict[int, float]] = {}
        self.visits = Counter[tuple[int, int]]()

    def learn(self, said: list[tuple[tuple[int, ...], dict[int, float]]]) -> None:
        """A call: each pair is mixed with what was known before it, of equal ones the last counts."""
        self.singles |= {history[-1]: p for history, p in said}
        pairs: dict[tuple[int, int], dict[int, float]] = {}
        for history, p in said:
            if len(history) == 2:
                key = (history[0], history[1])
                share = max(self.rate, 1 / (self.visits[key] + 1))
                old = self.pairs.get(key, {})
                mixed = {t: share * p.get(t, 0.0) + (1 - share) * old.get(t, 0.0) for t in {*p, *old}}
                pairs[key] = dict(sorted(mixed.items(), key=lambda item: -item[1])[:4])
        self.pairs |= pairs
        self.visits.update(dict.fromkeys(pairs, 1))

    def followers(self, pair: tuple[int, int]) -> list[tuple[float, int, float]]:
        """Priority, token and claim."""
        if pair in self.pairs:
            urge, found = self.explore * self.visits[pair] ** 0.5, list[tuple[float, int, float]]()
            for token, x in self.pairs[pair].items():
                bonus = min(self.explore, urge * 0.8 * x / (1 + self.visits[pair[1], token]))
                found.append((0.8 * x + bonus, token, 0.8 * x))
            return found
        return [(0.5 * x, token, 0.5 * x) for token, x in self.singles.get(pair[1], {}).items()]

    def draft(self, pair: tuple[int, int], nodes: int, least: float) -> list[tuple[int, int, float]]:
        found: list[tuple[int, int, float]] = []
        ready = [(haste, p, token, p, -1, pair) for haste, token, p in self.followers(pair)]
        while len(found) < nodes:
            ready = [place for place in ready if place[1] >= least and place[3] > 0]
            if not ready:
                break
            haste, worth, token, p, parent, before = place = max(ready, key=lambda place: place[0])
            ready.remove(place)
            found.append((token, parent, p))
            after = before[1], token
            ready += [(haste * x, worth * p, t, p, len(found) - 1, after) for x, t, p in self.followers(after)]
        return found


@pytest.mark.parametrize(("rate", "explore"), [(0.3, 0.05), (0.6, 0.0), (0.2, 0.3)])
def test_trigrams_are_those_of_a_naive_table(rate: float, explore: float) -> None:
    """Prompts and calls with refused branches, over a small vocabulary: single tokens and pairs, known and unknown."""
    rng, sizes = np.random.default_rng(int(100 * rate)), Counter[str]()
    drafter, naive = Trigram(VOCAB, 9, 4, rate, explore), NaiveTrigram(rate, explore)
    for _ in range(4):
        ids = rng.integers(0, VOCAB, int(rng.integers(1, 9))).tolist()
        drafter.reset()
        said = [((*ids[max(i - 1, 0) : i], ids[i]), {ids[i + 1]: 0.5}) for i in range(len(ids) - 1)]
        naive.learn(said)
        runtime, n = Markov(1), len(ids)
        for _ in range(12):
            least = float(rng.choice([0.0, 0.02]))
            nodes = int(rng.integers(1, 12))
            draft = drafter.propose(Context(list(ids), n, runtime.new_cache(64)), nodes, least)
            expected = naive.draft((ids[-2] if len(ids) > 1 else -1, ids[-1]), min(nodes, 9), least)
            assert list(zip(draft.tokens, draft.parents, strict=True)) == [(t, parent) for t, parent, _ in expected]
            assert draft.p == pytest.approx([p for *_, p in expected], rel=1e-5)
            sizes["drafted"] += len(draft.tokens)
            sizes["trees"] += len({*draft.parents}) < len(draft.parents)
            tokens, parents = [ids[-1], *rng.integers(0, VOCAB, 3).tolist()], [-1, 0, 0, 2]
            best = np.stack([rng.permutation(VOCAB)[:4] for _ in tokens]).astype(np.int32)
            scores = -np.sort(-rng.normal(size=best.shape) * 2).astype(np.float32)
            shares = np.exp(np.float64(scores)) / np.exp(np.float64(scores)).sum(1, keepdims=True)
            rows = Rows.tree(tokens, parents, len(ids) - 1)
            path, picked = ([0, 2], [tokens[2], int(best[2, 0])]) if rng.random() < 0.5 else ([0], [int(best[0, 0])])
            drafter.observe(StepResult(rows, 0, path, picked, CallResult(ids=best, scores=scores), 0.0))
            root = tuple(ids[-2:])
            histories = [root, (ids[-1], tokens[1]), (ids[-1], tokens[2]), (tokens[2], tokens[3])]
            naive.learn(
                [
                    (h, dict(zip(line.tolist(), p.tolist(), strict=True)))
                    for h, line, p in zip(histories, best, shares, strict=True)
                ]
            )
            ids += picked
    assert sizes["drafted"] > 100
    assert sizes["trees"] > 10


@pytest.mark.parametrize("caps", [(99, 99), (7, 3)])
def test_tables_of_a_corpus_are_its_counts(caps: tuple[int, int]) -> None:
    """Of each pair and token the two most frequent followers at 0.9 of their share, lower ones first among equals; at
    most four visits; the most frequent keys, the rarest first."""
    ids = np.random.default_rng(2).integers(0, 5, 120).tolist()
    state = tables_of(ids, VOCAB, 2, caps)
    for prefix, n, cap in (("pairs.", 2, caps[0]), ("singles.", 1, caps[1])):
        follow: dict[int, Counter[int]] = {}
        for i in range(len(ids) - n):
            key = ids[i] * VOCAB + ids[i + 1] if n == 2 else ids[i]
            follow.setdefault(key, Counter())[ids[i + n]] += 1
        keys = state[prefix + "keys"].reshape(-1).view(np.int64).tolist()
        assert keys == sorted(follow, key=lambda key: (follow[key].total(), key))[-cap:]
        for row, key in enumerate(keys):
            best = sorted(follow[key].items(), key=lambda item: (-item[1], item[0]))[:2]
            best += [(-1, 0)] * (2 - len(best))
            assert state[prefix + "ids"][row].tolist() == [token for token, _ in best]
            assert state[prefix + "p"][row] == pytest.approx([0.9 * n / follow[key].total() for _, n in best])
            assert state[prefix + "visits"][row] == min(follow[key].total(), 4)
    for short in ([], [1, 2]):
        with pytest.raises(UsageError, match="fewer than three"):
            tables_of(short, VOCAB, 2, caps)
    assert tables_of([1, 2, 3], VOCAB, 2, caps)["pairs.ids"].tolist() == [[3, -1]]


def test_exploration_is_bounded_and_prefers_the_unknown() -> None:
    tables = [Trigram(VOCAB, explore=explore) for explore in (0.0, 0.1)]
    for drafter in tables:
        drafter.pairs.learn([1 * VOCAB + 2] * 1, *line([3, 4] + [5] * 6, [0.5, 0.49] + [0.0] * 6), rate=0.3)
        drafter.pairs.learn([2 * VOCAB + 3], *line([5] * 8, [0.0] * 8), rate=0.3)
        drafter._read = True
    plain, curious = (d.propose(context_of(Markov(1), [1, 2]), 1, 0.0) for d in tables)
    assert (list(plain.tokens), list(curious.tokens)) == ([3], [4])
    assert curious.p[0] == pytest.approx(plain.p[0] * 0.98)  # the bonus is not claimed
    for drafter in tables:
        drafter.pairs.learn([1 * VOCAB + 2], *line([3, 4] + [5] * 6, [0.9, 0.1] + [0.0] * 6), rate=1.0)
    assert list(tables[1].propose(context_of(Markov(1), [1, 2]), 1, 0.0).tokens) == [3]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_of_nano_is_the_same(name: str, nano: Path) -> None:
    model = edgedec.open(nano, threads=1)
    host = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer)
    drafter = make_drafter(name, host)
    for prompt in ("Once upon a time", "The dog ran to the", "Tom had a red"):
        ids, found = model.tokenizer.encode(prompt), []
        for each in (Off(), drafter):
            each.reset()
            context = Context(list(ids), len(ids), model.runtime.new_cache(256))
            stats = Stats()
            found.append(list(decode(model.runtime, context, GenerationConfig(max_tokens=60), each, stats=stats)))
        assert found[0] == found[1]
    assert stats.accepted > 0


def test_a_corpus_begins_the_tables_and_what_is_learned_beats_it(nano: Path, tmp_path: Path) -> None:
    """Beside a static table of the same corpus, on a model that says something else after half of the pairs."""
    runtime, other = Markov(2, seed=1), Markov(2, seed=2)
    other._laws[::2] = runtime._laws[::2]
    said = list(decode(runtime, context_of(runtime, [1, 2]), GenerationConfig(Sampling(), max_tokens=400), Off()))
    for seed in range(40):
        ask = GenerationConfig(Sampling(temperature=1.0, seed=seed), max_tokens=100)
        said += decode(runtime, context_of(runtime, [seed % VOCAB, 3]), ask, Off())
    start = tables_of([int(token) for token in said], VOCAB, 8, (1 << 16, 1 << 15))

    class Static(Trigram):
        def observe(self, step: StepResult) -> None:
            pass

    def rate(kind: type[Trigram], warm: bool, texts: int, length: int) -> float:
        """Tokens a call in the last of some texts, mean of four worlds of random numbers."""
        rates = []
        for seed in range(4):
            drafter = kind(VOCAB)
            if warm:
                drafter.restore(start)
            rates.append([tokens_per_call(drafter, other, length, seed + 9 * text) for text in range(texts)][-1])
        return sum(rates) / len(rates)

    assert rate(Trigram, True, 1, 20) > 1.1 * rate(Trigram, False, 1, 20), "the first words of the first text"
    assert rate(Trigram, True, 5, 100) > 1.1 * rate(Static, True, 5, 100), "a later text"
    text = tmp_path / "corpus.txt"
    text.write_text("Tom had a red ball. " * 50)
    model = edgedec.open(nano, threads=1)
    ids = model.tokenizer.encode("Tom had a")
    proposals = []
    for parts in (model.runtime.capabilities.drafting, None):
        model.runtime.capabilities = replace(model.runtime.capabilities, drafting=parts)
        for tables in (None, {}):
            host = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer, tables)
            drafters = [make_drafter("trigram", host, {"corpus": str(text)}) for _ in range(2)]
            drafts = [d.propose(Context(list(ids), len(ids), model.runtime.new_cache(8)), 3, 0.0) for d in drafters]
            proposals += [(list(d.tokens), list(d.p)) for d in drafts]  # type: ignore[union-attr]
    assert model.tokenizer.decode(proposals[0][0]).strip().startswith("red")
    assert all(tokens == proposals[0][0] and p == pytest.approx(proposals[0][1]) for tokens, p in proposals)
    with pytest.raises(UsageError, match=r"no\.txt"):
        make_drafter("trigram", host, {"corpus": str(tmp_path / "no.txt")})
