"""Searches that judge parts of texts: cautious, look-ahead, A*, ranked continuations, rounds; beside oracles that read
every text from its beginning."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import exp, log
from typing import Any

import numpy as np
import pytest
from search.laws import PROMPT, VOCAB, LawRuntime, Letters, beside, fresh, logps_of, search_of, searched, table

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.runner import run_loop
from edgedec.drafters.off import Off
from edgedec.errors import ContextFull, UsageError
from edgedec.runtime import Runtime
from edgedec.sampling import Sampling, draw
from edgedec.sampling.best import quick_distribution
from edgedec.search import calibrating
from edgedec.search.strategies import astar, cautious
from edgedec.search.strategies.astar import Node
from edgedec.search.strategies.cautious import trials
from edgedec.testing.fakes import FakeRuntime, SetConstraint

ENDS = frozenset({2})


def config(most: int = 10, **more: Any) -> GenerationConfig:
    return GenerationConfig(max_tokens=most, **more)


def plain(runtime: Runtime, most: int, sampling: Sampling, context: Any = None) -> list[int]:
    """Plain decoding with these settings."""
    context = context or fresh(runtime)
    wanted = GenerationConfig(sampling, max_tokens=most)
    return list(run_loop(runtime, decode_loop(context, wanted, Off(), eos=ENDS)))


@pytest.mark.parametrize("module", [cautious, astar])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).attempted
    assert not doctest.testmod(module).failed


def letters(runtime: Any, words: str, most: int = 10, **more: Any) -> str:
    found = searched(runtime, words, config(most), eos=ENDS, **more)
    return Letters(more.get("spelt")).decode(found)


# ── cautious (X01) ──


@pytest.mark.parametrize("h", [0.0, 0.01, 0.1, 0.5, 1.0, 1.49, 1.5, 4.0])
@pytest.mark.parametrize("n", [1, 10, 40])
def test_trials_by_the_formula(h: float, n: int) -> None:
    share = min(max((h - 0.01) / 1.49, 0), 1)
    assert trials(h, n, 0.01, 1.5) == int(1 + (n - 1) * share)


def test_no_trials_are_plain_sampling() -> None:
    for seed in range(4):
        runtime = FakeRuntime(seed=seed)
        wanted = plain(runtime, 12, Sampling(temperature=0.8, top_p=0.95))
        assert searched(runtime, "cautious:n=1", config(12), eos=ENDS) == wanted
        assert searched(runtime, "cautious:low=50,high=60", config(12), eos=ENDS) == wanted


def test_the_trial_of_least_perplexity_is_kept() -> None:
    """Trials are drawn one by one as the search says, each with its own stream, and judged from their beginning."""
    spelt, marks = {4: ".", 9: "\n"}, (4, 9)
    kept_others = tried = 0
    for seed in range(6):
        runtime = FakeRuntime(seed=seed)
        logps = logps_of(runtime, PROMPT)
        search = search_of(runtime, "cautious:n=6", config(14), ENDS, spelt=spelt)
        found = list(run_loop(runtime, search.loop))
        settings = Sampling(temperature=0.8, top_p=0.95)
        text, path, rng = (), (), np.random.default_rng(7)
        forks, ended = dict[tuple[int, ...], int](), False
        from edgedec.decoding.streams import RandomStreams

        streams = RandomStreams(np.random.default_rng(7))
        while len(text) < 14 and not ended:
            probs = quick_distribution(logps(text).astype(np.float32), settings)
            n = trials(float(-(probs.p * np.log(probs.p)).sum()), 6, 0.01, 1.5)
            options = []
            for i in range(n):
                own_path, own = path, rng
                if i:
                    forks[path] = forks.get(path, 0) + 1
                    own_path = (*path, forks[path])
                    own = streams.of(own_path)
                words, total, stop = text, 0.0, False
                while True:
                    token = draw(quick_distribution(logps(words).astype(np.float32), settings), own)
                    if token in ENDS:
                        stop = True
                        total += float(logps(words)[token])
                        break
                    total += float(logps(words)[token])
                    words = (*words, token)
                    if n == 1 or token in marks or len(words) == 14:
                        break
                length = len(words) - len(text) + stop
                options.append((exp(-total / max(length, 1)), i, words, stop, own_path, own))
            tried += n > 1
            _, i, text, ended, path, rng = min(options, key=lambda one: one[:2])
            kept_others += i > 0
        assert found == list(text), seed
    assert tried > 6
    assert kept_others > 2


def test_a_cautious_text_is_streamed_and_left_anywhere() -> None:
    runtime = FakeRuntime()
    whole = searched(runtime, "cautious:n=6", config(12), eos=ENDS)
    for taken in range(1, len(whole)):
        context = fresh(runtime)
        search = search_of(runtime, "cautious:n=6", config(12), ENDS, context)
        tokens = run_loop(runtime, search.loop)
        assert [next(tokens) for _ in range(taken)] == whole[:taken]
        tokens.close()
        assert context.ids == [*PROMPT, *whole[:taken]]
        assert context.cache.length <= len(context.ids)
        assert search.room.forks == []


# ── look-ahead (X06) ──


def ahead(logps: Callable[..., Any], most: int, limit: float, top: int, n: int) -> list[int]:
    """The search with every text read from its beginning."""
    text: tuple[int, ...] = ()
    while len(text) < most:
        row = logps(text)
        token = int(np.argmax(row))
        if -(np.exp(row) * row).sum() > limit:
            scores = []
            for one in sorted(range(VOCAB), key=lambda t: (-row[t], t))[:top]:
                words, total, drawn = (*text, one), float(row[one]), 1
                while one not in ENDS and drawn <= n and len(words) < most:
                    following = logps(words)
                    drawn += 1
                    if int(np.argmax(following)) in ENDS:
                        total += float(np.log(np.exp(following[list(ENDS)]).sum()))
                        break
                    total += float(following.max())
                    words = (*words, int(np.argmax(following)))
                scores.append((total / drawn, -len(scores), one))
            token = max(scores)[2]
        if token in ENDS:
            break
        text = (*text, token)
    return list(text)


@pytest.mark.parametrize("limit", [0.5, 1.5, 2.0])
def test_look_ahead_is_the_oracles(limit: float) -> None:
    changed = 0
    for seed in range(6):
        runtime = FakeRuntime(seed=seed)
        words = f"lookahead:threshold={limit},ahead=3"
        found = searched(runtime, words, config(10), eos=ENDS)
        assert found == ahead(logps_of(runtime, PROMPT), 10, limit, 3, 3), seed
        changed += found != plain(runtime, 10, Sampling())
        assert beside(runtime, words, config(10), eos=ENDS) == found
    assert changed >= 2 or limit == 2.0


def test_an_infinite_threshold_is_greedy() -> None:
    for seed in range(4):
        runtime = FakeRuntime(seed=seed)
        assert searched(runtime, "lookahead:threshold=1e9", config(12), eos=ENDS) == plain(runtime, 12, Sampling())


def test_a_planted_misranking_is_repaired() -> None:
    """Greedy takes a, after which nothing is likely; b, a little less likely, goes on surely."""
    dull, sure = [0.25] * 4, [0.01, 0.97, 0.01, 0.01]
    law = table({(): [0.4, 0.35, 0.15, 0.1]} | {(1,) + (1,) * n: sure for n in range(6)}, dull)
    runtime = LawRuntime(law, 4, 5)
    context = lambda: fresh(runtime, runtime.prompt)  # noqa: E731
    assert searched(runtime, "lookahead:threshold=1.3", config(4), context=context()) == [0, 0, 0, 0]
    search = search_of(runtime, "lookahead:threshold=1.2", config(4), context=context())
    assert list(run_loop(runtime, search.loop)) == [1, 1, 1, 1]
    assert search._strategy.pauses == 1  # type: ignore[attr-defined]


def test_the_threshold_is_where_the_regression_is_undecided() -> None:
    assert calibrating.threshold([0, 1, 2, 3], [False, False, True, True]) == pytest.approx(1.5, abs=1e-6)
    skewed = calibrating.threshold([0, 1, 1, 1, 1, 2, 3], [False] * 5 + [True] * 2)
    assert 1.3 < skewed < 2.0
    many = [0.2] * 90 + [1.0] * 10, [False] * 90 + [True] * 10
    assert calibrating.threshold(*many) == pytest.approx(0.6, abs=0.01), "both classes weigh the same"
    for wrong in ([False] * 4, [True] * 4):
        with pytest.raises(UsageError, match="needs tokens that the model ranks first and tokens"):
            calibrating.threshold([0, 1, 2, 3], wrong)
    with pytest.raises(UsageError, match="no less sure where it is wrong"):
        calibrating.threshold([0, 1, 2, 3], [True, True, False, False])


def test_calibrate_reads_texts() -> None:
    class Told:
        def __init__(self) -> None:
            self.last = 0

        def append(self, ids: Sequence[int]) -> None:
            (self.last,) = ids

        def next_probs(self) -> Any:
            return np.array([0.9, 0.05, 0.05]) if self.last == 0 else np.array([0.4, 0.3, 0.3])

    found = calibrating.calibrate(Told, [[0, 0, 1, 2, 0, 0], [0, 0, 0]])
    low, high = -(0.9 * log(0.9) + 0.1 * log(0.05)), -(0.4 * log(0.4) + 0.6 * log(0.3))
    assert low < found < high


# ── A* (X04) ──


def test_costs_only_grow_where_rewards_fall() -> None:
    root: Any = Node(None, 0.0, 1.0, 0)  # type: ignore[arg-type]
    first = root.after(None, 0.7, 1)
    assert (first.g, round(first.h, 9)) == (0.0, 0.3)
    worse = first.after(None, 0.4, 2)
    assert (round(worse.g, 9), round(worse.h, 9)) == (0.3, 0.6)
    better = worse.after(None, 0.9, 3)
    assert (round(better.g, 9), round(better.h, 9)) == (0.3, 0.1)
    assert min([better, first], key=lambda node: node.order) is first


def test_nodes_are_popped_by_f() -> None:
    """Every pop is of the least f of what was open, and the answer is the first popped text that has ended."""
    runtime, asked = FakeRuntime(seed=1), dict[str, float]()

    def worth(prompt: str, text: str) -> float:
        lines = text.split("\n")
        asked[text] = min(1.0, sum(line.count("f") + line.count("g") for line in lines) / 5)
        return asked[text]

    words = "astar:k=3,budget=12,step=4"
    search = search_of(runtime, words, config(12, scorer=worth), ENDS, spelt={9: "\n"})
    found = list(run_loop(runtime, search.loop))
    strategy: Any = search._strategy
    costs = [f for _, f in strategy.popped]
    assert len(costs) >= 4
    assert len({length for length, _ in strategy.popped}) > 2
    assert search.report()["scorer_calls"] == len(asked) or len(asked) > 0
    assert Letters({9: "\n"}).decode(found) in asked
    assert beside(runtime, words, config(12, scorer=worth), eos=ENDS, spelt={9: "\n"}) == found


def test_a_trap_is_left() -> None:
    """A first step that seems good and leads nowhere: its children are worth little, so another is popped."""
    half = [0.5, 0.5, 0.0, 0.0]
    law = table({(): half, (0,): half, (1,): half}, [0.0, 0.0, 1.0, 0.0])
    runtime = LawRuntime(law, 4, 3)
    worths = {"a": 0.9, "b": 0.6, "aa": 0.1, "ab": 0.1, "ba": 0.8, "bb": 0.5}
    search = search_of(
        runtime,
        "astar:k=6,budget=20,step=1,temperature=1",
        config(3, scorer=lambda prompt, text: worths[text]),
        frozenset({2}),
        fresh(runtime, runtime.prompt),
    )
    assert list(run_loop(runtime, search.loop)) == [1, 0]
    lengths = [length for length, _ in search._strategy.popped]  # type: ignore[attr-defined]
    assert lengths[:2] == [0, 1]


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_rewards_lie_between_0_and_1(value: float) -> None:
    with pytest.raises(UsageError, match="must be from 0 to 1"):
        searched(FakeRuntime(), "astar", config(4, scorer=lambda prompt, text: value))


@pytest.mark.parametrize("name", ["astar", "rank", "refine"])
def test_a_scorer_is_needed(name: str) -> None:
    with pytest.raises(UsageError, match=f"--search {name}: needs a scorer: command=…, or scorer= in Python"):
        search_of(FakeRuntime(), name, config())
    with pytest.raises(UsageError, match="two scorers; give one"):
        search_of(FakeRuntime(), f"{name}:command=cat", config(scorer=lambda prompt, text: 1.0))


# ── ranked continuations (X08) ──


def test_the_best_beams_of_all_suffixes_go_on() -> None:
    runtime, rounds = FakeRuntime(seed=2), list[list[str]]()

    def worth(prompt: str, text: str) -> float:
        if not rounds or len(rounds[-1]) == (4 if len(rounds) == 1 else 8):
            rounds.append([])
        rounds[-1].append(text)
        return text.count("f") - 0.01 * text.count("a")

    search = search_of(runtime, "rank:beams=2,n=4,length=3", config(9, scorer=worth))
    found = Letters().decode(list(run_loop(runtime, search.loop)))
    assert [len(one) for one in rounds] == [4, 8, 8]
    for before, after in pairwise(rounds):
        kept = sorted(before, key=lambda t: -(t.count("f") - 0.01 * t.count("a")))[:2]
        assert {text[: len(before[0])] for text in after} <= set(kept)
        assert len(set(after)) > 4
    assert found == max(rounds[-1], key=lambda t: t.count("f") - 0.01 * t.count("a"))
    assert search.report()["scorer_calls"] == 20


def test_one_suffix_of_one_beam_is_plain_sampling() -> None:
    runtime = FakeRuntime()
    words = "rank:beams=1,n=1,length=0,top_p=0.9"
    found = searched(runtime, words, config(10, scorer=lambda prompt, text: 0.0), eos=ENDS)
    assert found == plain(runtime, 10, Sampling(temperature=1.0, top_p=0.9))


# ── rounds (X10) ──


def test_rounds_show_the_best_and_the_worst() -> None:
    """The prompt of the second round has both with their scores; the best ever is the answer."""
    runtime, seen = FakeRuntime(), list[tuple[str, str]]()

    class Noting(Letters):
        asked: list[str] = []  # noqa: RUF012

        def encode(self, text: str, special: bool = True, around: bool = True) -> list[int]:
            self.asked.append(text)
            return [1, 2, 3, len(self.asked)]

    def worth(prompt: str, text: str) -> float:
        seen.append((prompt, text))
        return text.count("e") / 20

    from dataclasses import replace

    tokenizer = Noting()
    search = search_of(runtime, "refine:n=3,rounds=3", config(6, scorer=worth))
    strategy: Any = search._strategy
    search.room.host = replace(search.room.host, tokenizer=lambda: tokenizer)  # type: ignore[arg-type,return-value]
    found = Letters().decode(list(run_loop(runtime, search.loop)))
    texts = [text for _, text in seen]
    assert len(texts) == 9
    assert len(set(texts)) > 7, "rounds have random streams of their own"
    assert {prompt for prompt, _ in seen} == {Letters().decode(PROMPT)}
    for asked, known in zip(Noting.asked, (texts[:3], texts[:6]), strict=True):
        best, worst = max(known, key=lambda t: t.count("e")), min(known, key=lambda t: t.count("e"))
        assert asked.startswith(Letters().decode(PROMPT))
        assert f"Best answer so far (score {best.count('e') / 20:g}):\n{best}\n" in asked
        assert f"Worst answer so far (score {worst.count('e') / 20:g}):\n{worst}\n" in asked
    assert found == max(texts, key=lambda t: t.count("e"))
    assert strategy.rounds == 3


def test_a_good_score_ends_the_rounds() -> None:
    runtime, calls = FakeRuntime(), list[str]()

    def worth(prompt: str, text: str) -> float:
        calls.append(text)
        return 1.0 if len(calls) == 5 else 0.0

    words = "refine:n=3,rounds=9,feedback=false"
    found = searched(runtime, words, config(6, scorer=worth))
    assert len(calls) == 6
    assert Letters().decode(found) == calls[4]


def test_without_feedback_rounds_are_more_samples() -> None:
    runtime, texts = FakeRuntime(), list[str]()

    def worth(prompt: str, text: str) -> float:
        texts.append(text)
        return 0.0

    searched(runtime, "refine:n=2,rounds=3,feedback=false", config(8, scorer=worth))
    assert len(texts) == 6
    assert len(set(texts)) == 6


def test_a_round_that_does_not_fit() -> None:
    with pytest.raises(ContextFull, match="do not fit a context of 64"):
        searched(FakeRuntime(), "refine:n=2", config(20, scorer=lambda prompt, text: 0.0))


# ── all of them ──


@pytest.mark.parametrize("words", ["cautious:n=4", "lookahead:threshold=0.5", "astar:budget=3,step=3", "rank:n=3"])
def test_constraints_hold_in_every_branch(words: str) -> None:
    runtime = FakeRuntime()
    rule = SetConstraint(lambda last: [0, 1] if last < 0 else [(last + 1) % VOCAB, (last + 3) % VOCAB])
    scorer = (lambda prompt, text: 0.5) if words[0] in "ar" else None
    found = searched(runtime, words, config(9, constraint=rule, scorer=scorer))
    assert len(found) == 9
    assert found[0] in (0, 1)
    assert all((b - a) % VOCAB in (1, 3) for a, b in pairwise(found))
