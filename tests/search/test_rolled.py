"""Best of n and first finish: texts of the decode loop side by side, beside oracles that write them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from search.laws import PROMPT, VOCAB, LawRuntime, beside, fresh, logps_of, search_of, searched, table

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Stats, Token
from edgedec.decoding.runner import run_loop
from edgedec.decoding.streams import RandomStreams
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.sampling import Sampling
from edgedec.testing.fakes import FakeRuntime, RandomDrafter, SetConstraint, random_reference

ENDS = frozenset({2, 7})


def config(most: int = 14, temperature: float = 1.0, **more: Any) -> GenerationConfig:
    return GenerationConfig(Sampling(temperature=temperature), max_tokens=most, **more)


def alone(runtime: Any, n: int, wanted: GenerationConfig, ends: frozenset[int] = ENDS) -> list[tuple[list[Token], str]]:
    """Each of the n texts written by itself: the tokens, and why it ended."""
    root, found = np.random.default_rng(7), list[tuple[list[Token], str]]()
    streams = RandomStreams(root)
    for i in range(n):
        context, stats = fresh(runtime), Stats()
        if i:
            context.rng = streams.of((i,))
        loop = decode_loop(context, replace(wanted, logprobs=0), Off(), stats, eos=ends)
        found.append((list(run_loop(runtime, loop)), stats.finish))
    return found


def likelihood(runtime: Any, tokens: Sequence[Token], why: str) -> tuple[float, int]:
    """The log-probability of a text, its end included, and its length with it."""
    logps, text = logps_of(runtime, PROMPT), tuple(map(int, tokens))
    total = sum(float(logps(text[:i])[token]) for i, token in enumerate(text))
    if why == "eos":
        return total + float(np.log(np.exp(logps(text)[sorted(ENDS)]).sum())), len(text) + 1
    return total, len(text)


@pytest.mark.parametrize("make", [FakeRuntime, random_reference], ids=["hashes", "reference"])
@pytest.mark.parametrize("by", ["mean", "likelihood"])
def test_the_best_is_the_likeliest_of_texts_written_alone(make: Any, by: str) -> None:
    runtime, orders = make(), set[int]()
    for most in (3, 5, 8, 14):
        texts = alone(runtime, 5, config(most, 1.3))
        known = [likelihood(runtime, *one) for one in texts]
        best = int(np.argmax([total / (n if by == "mean" else 1) for total, n in known]))
        orders.add(best)
        found = searched(runtime, f"best:n=5,by={by}", config(most, 1.3), eos=ENDS)
        assert found == texts[best][0]
        assert beside(runtime, f"best:n=5,by={by}", config(most, 1.3), eos=ENDS) == found
    assert orders != {0} or make is random_reference


def test_mean_and_sum_differ() -> None:
    texts = {
        by: [searched(FakeRuntime(seed=i), f"best:n=5,by={by}", config(14), eos=ENDS) for i in range(4)]
        for by in ("mean", "likelihood")
    }
    assert texts["mean"] != texts["likelihood"]


def test_one_of_one_is_plain_decoding() -> None:
    runtime = FakeRuntime()
    plain = alone(runtime, 1, config())[0][0]
    for words in ("best:n=1", "first:n=1"):
        context = fresh(runtime)
        assert searched(runtime, words, config(), eos=ENDS, context=context) == plain
        other = fresh(runtime)
        list(run_loop(runtime, decode_loop(other, config(), Off(), eos=ENDS)))
        assert context.rng.bit_generator.state == other.rng.bit_generator.state
        assert (context.ids, context.cache.length) == (other.ids, other.cache.length)


def test_all_texts_differ_and_share_forwards() -> None:
    runtime = FakeRuntime()
    search = search_of(runtime, "best:n=6", config(8))
    runtime.forwards.clear()
    list(run_loop(runtime, search.loop))
    texts = [tuple(branch.tokens) for branch in search.room.ranked]
    assert len(set(texts)) == 6, "trials on one random stream are one text"
    assert runtime.forwards.count(6) == 8
    assert search.report() == {
        "search": "best:n=6",
        "lossy": True,
        "candidates": 6,
        "forwards": 9,
        "tokens": 48,
        "latents": 0,
        "scorer_calls": 0,
    }


def test_drafts_change_no_text() -> None:
    runtime = FakeRuntime()
    for words in ("best:n=4", "first:n=4", "first:n=5,k=3"):
        plain = search_of(runtime, words, config(), ENDS)
        drafted = search_of(runtime, words, config(), ENDS, drafter=lambda: RandomDrafter(3))
        assert list(run_loop(runtime, drafted.loop)) == list(run_loop(runtime, plain.loop)), words
        assert drafted.room.stats.finish == plain.room.stats.finish


def shortest(texts: Sequence[tuple[list[Token], str]], k: int = 1) -> list[list[Token]]:
    """The first k that end by themselves, by what they drew."""
    ended = [(len(tokens) + 1, i) for i, (tokens, why) in enumerate(texts) if why == "eos"]
    return [texts[i][0] for _, i in sorted(ended)[:k]]


@pytest.mark.parametrize("seed", range(6))
def test_the_first_is_the_shortest_of_texts_written_alone(seed: int) -> None:
    runtime = FakeRuntime(seed=seed, spread=3.0)
    texts = alone(runtime, 5, config(12))
    search = search_of(runtime, "first:n=5", config(12), ENDS)
    runtime.forwards.clear()
    found = list(run_loop(runtime, search.loop))
    wanted = shortest(texts)
    assert found == (wanted[0] if wanted else texts[0][0])
    assert search.room.stats.finish == ("eos" if wanted else "length")
    if wanted:
        assert len(runtime.forwards) == 1 + len(found) + 1, "the others were cancelled within one step"


def test_a_cut_text_never_wins() -> None:
    """Token 3 is a stop token of none: a text of the limit is no finished one, however early."""
    runtime = FakeRuntime(seed=1, spread=3.0)
    for most in (2, 3, 5):
        texts = alone(runtime, 6, config(most))
        assert any(why == "length" for _, why in texts)
        found = searched(runtime, "first:n=6", config(most), eos=ENDS)
        assert found == (shortest(texts) or [texts[0][0]])[0]


@pytest.mark.parametrize("k", [2, 3, 5])
def test_the_answer_of_most_of_k_wins(k: int) -> None:
    """The last of three letters is the answer: the commonest of the first k, the earlier of equals."""
    voted = 0
    for seed in range(4, 16):
        runtime = FakeRuntime(seed=seed, spread=1.5)
        texts = shortest(alone(runtime, 8, config(40)), k)
        assert len(texts) == k
        named = [[token for token in tokens if token in (0, 1, 3)] for tokens in texts]
        last = [some[-1:] or list(tokens) for some, tokens in zip(named, texts, strict=True)]
        wanted = max(range(k), key=lambda i: (last.count(last[i]), -i))
        voted += wanted > 0
        found = searched(runtime, f"first:n=8,k={k},answer='[abd]'", config(40), eos=ENDS)
        assert found == texts[wanted], seed
    assert voted or k < 5


def test_two_of_three_outvote_the_first() -> None:
    """Texts of one letter, a or b, that end together: the answer is that of two, whoever is first."""
    runtime, outvoted = LawRuntime(table({(): [0.5, 0.5, 0.0]}, [0.0, 0.0, 1.0]), 3, 2), 0
    for seed in range(12):
        search = search_of(runtime, "first:n=3,k=3", config(5), frozenset({2}), fresh(runtime, runtime.prompt, seed))
        found = list(run_loop(runtime, search.loop))
        plain = decode_loop(fresh(runtime, runtime.prompt, seed), config(5), Off(), eos=frozenset({2}))
        streams = RandomStreams(np.random.default_rng(seed))
        others = [[int(streams.of((i,)).random() >= 0.5)] for i in (1, 2)]
        texts = [list(run_loop(runtime, plain)), *others]
        assert found == max(texts, key=texts.count)
        outvoted += found != texts[0]
    assert outvoted


def test_a_vote_can_differ_from_the_first() -> None:
    outcomes = set[bool]()
    for seed in range(8):
        runtime = FakeRuntime(seed=seed, spread=3.0)
        first = searched(runtime, "first:n=8", config(30), eos=ENDS)
        outcomes.add(searched(runtime, "first:n=8,k=5,answer='.'", config(30), eos=ENDS) == first)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("first:n=4,k=5", "k=5: 4 texts are written; must be at most n"),
        ("first:answer='('", "must be a regular expression"),
        ("best:n=4,rank=4", "rank=4: 4 texts are written; must be below n"),
        ("best:n=0", "must be from 1 to 256"),
        ("best:n=300", "must be from 1 to 256"),
        ("best+beam", "names 2 searches"),
        ("bets", "no search 'bets' .did you mean best"),
    ],
)
def test_bad_words_are_one_line(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        search_of(FakeRuntime(), words, config())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["best", "first"])
def test_texts_at_temperature_0_are_one(name: str) -> None:
    for words, n in ((name, 8), (f"{name}:n=2", 2)):
        with pytest.raises(UsageError, match=f"n={n} texts at temperature 0 are one text: set a temperature"):
            search_of(FakeRuntime(), words, config(temperature=0.0))
    search_of(FakeRuntime(), f"{name}:n=1", config(temperature=0.0))


def test_a_dead_end_ends_a_text_not_the_search() -> None:
    """After token 4 nothing may follow."""
    runtime = FakeRuntime()
    rule = SetConstraint(lambda last: [] if last == 4 else [3, 4, 5] if last < 0 else range(VOCAB))
    found = searched(runtime, "best:n=8", config(5, constraint=rule))
    assert found
    assert 4 not in found[:-1]
    dead = SetConstraint(lambda last: [4] if last < 0 else [])
    with pytest.raises(UsageError):
        searched(runtime, "best:n=4", config(5, constraint=dead))


def test_of_texts_that_are_cut_the_first_without_a_dead_end_is_given() -> None:
    """After token 4 nothing may follow, and no text ends by itself."""
    dead = 0
    for seed in range(8):
        runtime = FakeRuntime(seed=seed)

        def wanted() -> GenerationConfig:
            return config(5, constraint=SetConstraint(lambda last: [] if last == 4 else range(3, VOCAB)))

        try:
            plain, _ = alone(runtime, 1, wanted(), frozenset())[0]
        except UsageError:
            plain, dead = [], dead + 1
        found = searched(runtime, "first:n=6", wanted())
        assert len(found) == 5, "no text that came to a dead end"
        assert found == plain or not plain
    assert 0 < dead < 8


def test_scorers_choose() -> None:
    runtime = FakeRuntime()
    asked = list[tuple[str, str]]()

    def worth(prompt: str, text: str) -> float:
        asked.append((prompt, text))
        return text.count("g")

    search = search_of(runtime, "best:n=6", config(8, scorer=worth))
    found = list(run_loop(runtime, search.loop))
    assert {prompt for prompt, _ in asked} == {"".join(chr(97 + t) for t in PROMPT)}
    texts = [text for _, text in asked]
    assert len(texts) == 6
    best = max(texts, key=lambda text: text.count("g"))
    assert "".join(chr(97 + token) for token in found) == best
    assert best != texts[0]
    assert search.report()["scorer_calls"] == 6
    assert beside(runtime, "best:n=6", config(8, scorer=worth)) == found


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        (lambda prompt, text: float("nan"), "gave nan as a score; must be a finite number"),
        (lambda prompt, text: "good", "gave 'good' as a score"),
        (lambda prompt, text: True, "gave True as a score"),
        (lambda prompt, text: 1 / 0, "the scorer raised ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.parametrize("run", [searched, beside])
def test_a_bad_scorer_is_one_line_and_leaves_nothing(scorer: Any, said: str, run: Any) -> None:
    runtime = FakeRuntime()
    context = fresh(runtime)
    with pytest.raises(UsageError, match=said):
        run(runtime, "best:n=3", config(5, scorer=scorer), context=context)
    assert context.ids == PROMPT
    assert context.cache.length <= len(PROMPT)


def test_stop_strings_end_each_text() -> None:
    runtime = FakeRuntime()
    search = search_of(runtime, "best:n=6", config(14, stop=("d", "e")))
    list(run_loop(runtime, search.loop))
    for branch in search.room.ranked:
        letters = "".join(chr(97 + token) for token in branch.tokens)
        assert branch.finish == ("stop" if letters[-1] in "de" else "length")
        assert not set("de") & set(letters[:-1])
    assert any(branch.finish == "stop" for branch in search.room.ranked)
