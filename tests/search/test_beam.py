"""Beam search beside an oracle without caches, and beside transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest
from search.laws import PROMPT, VOCAB, beside, every_text, fresh, logps_of, search_of, searched

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.runner import run_loop
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.search.beams import BeamRule, Beams
from edgedec.testing.fakes import FakeRuntime, SetConstraint, random_reference

LogPs = Callable[[tuple[int, ...]], Any]
MODES = ["false", "true", "never"]
PENALTIES = [1.0, 0.0, 2.0, -1.0]


def oracle(
    logps: LogPs, vocab: int, width: int, most: int, ends: frozenset[int], early: str, penalty: float
) -> tuple[list[int], float]:
    """transformers' beam search with every text read whole: the best text with its end token, and its score."""
    running, ended, possible, keep = [(0.0, ())], list[tuple[float, Any]](), True, max(2, 1 + len(ends)) * width
    n = 0
    while True:
        found = [
            (score + float(logps(text)[t]), i * vocab + t, (*text, t))
            for i, (score, text) in enumerate(running)
            for t in range(vocab)
        ]
        top = sorted(found, key=lambda one: (-one[0], one[1]))[:keep]
        n += 1
        hits = [text[-1] in ends or n >= most for _, _, text in top]
        full = len(ended) == width
        new = [(score / n**penalty, text) for (score, _, text), hit in zip(top[:width], hits, strict=False) if hit]
        if possible and not (full and early == "true"):
            ended = sorted([*ended, *new], key=lambda one: -one[0])[:width]
        running = [(score, text) for (score, _, text), hit in zip(top, hits, strict=True) if not hit][:width]
        length = most if early == "never" and penalty > 0 else n
        best = (running[0][0] if running else -inf) / length**penalty
        full = len(ended) == width
        possible = possible and (not full or best > ended[-1][0])
        if not possible or (full and early == "true") or all(hits):
            return list(ended[0][1]), ended[0][0]


def config(most: int = 9, **more: Any) -> GenerationConfig:
    return GenerationConfig(max_tokens=most, **more)


@pytest.mark.parametrize("early", MODES)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_beams_are_the_oracles(early: str, penalty: float) -> None:
    ends, lengths, greedy = frozenset({2, 7}), set[int](), 0
    for seed in range(6):
        runtime = FakeRuntime(seed=seed, spread=4.0)
        logps = logps_of(runtime, PROMPT)
        for width in (1, 2, 5):
            best, score = oracle(logps, VOCAB, width, 9, ends, early, penalty)
            words = f"beam:width={width},early_stopping={early},length_penalty={penalty}"
            search = search_of(runtime, words, config(), ends)
            found = list(run_loop(runtime, search.loop))
            assert found == [token for token in best if token not in ends], (seed, width)
            assert search.room.stats.finish == ("eos" if best[-1] in ends else "length")
            assert search._chosen is not None
            assert search._chosen.value == pytest.approx(score, rel=1e-9)
            lengths.add(len(best))
            plain = run_loop(runtime, decode_loop(fresh(runtime), config(), Off(), eos=ends))
            greedy += found != list(plain)
    assert len(lengths) > 1 or penalty == 2.0, "texts of one length show no penalty"
    assert greedy > 3, "beams that never leave the greedy text show nothing"


@pytest.mark.parametrize("words", ["beam:width=5", "diverse:width=6,groups=3,penalty=2"])
@pytest.mark.parametrize("ends", [frozenset(), frozenset({2}), frozenset({2, 7, 9})])
def test_a_few_continuations_of_each_text_are_enough(
    words: str, ends: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that run on, and one more for each end token: with all that a step looks at the texts are the same."""
    rule, fewer = Beams.of_each.fget, 0
    assert rule is not None
    for seed in range(6):
        texts = []
        for each in (rule, lambda beams: beams.looked_at):
            monkeypatch.setattr(Beams, "of_each", property(each))
            runtime = FakeRuntime(seed=seed, spread=4.0)
            search = search_of(runtime, words, config(), ends)
            list(run_loop(runtime, search.loop))
            report = search.found("").texts
            texts.append([(one.tokens, one.value, one.finish) for one in report])
        assert texts[0] == texts[1]
        assert len(texts[0]) >= 5
        room = search.room
        fewer += rule(Beams(room, room.branch(room.context, room.config), BeamRule(5, 1.0, "false"))) < 10
    assert fewer == 6, "a step was given all that it looks at"


def test_any_continuation_may_complete_a_stop_string() -> None:
    room = search_of(FakeRuntime(), "beam:width=3", config(stop=("x",)), frozenset({2})).room
    beams = Beams(room, room.branch(room.context, room.config), BeamRule(3, 1.0, "false"))
    assert beams.of_each == beams.looked_at == 6


def test_modes_and_penalties_differ() -> None:
    """The cases above can tell the three modes, and the penalties, apart."""
    texts = dict[tuple[str, float], list[Any]]()
    laws = [logps_of(FakeRuntime(seed=seed, spread=4.0), PROMPT) for seed in range(6)]
    for early in MODES:
        for penalty in PENALTIES:
            ends = frozenset({2, 7})
            texts[early, penalty] = [oracle(law, VOCAB, w, 9, ends, early, penalty)[0] for law in laws for w in (2, 5)]
    assert texts["true", 1.0] != texts["false", 1.0]
    assert texts["never", 1.0] != texts["false", 1.0]
    assert texts["false", 0.0] != texts["false", 1.0] != texts["false", 2.0]


@pytest.mark.parametrize("make", [FakeRuntime, random_reference], ids=["hashes", "reference"])
def test_the_result_does_not_depend_on_company(make: Any) -> None:
    runtime = make()
    alone = searched(runtime, "beam:width=3", config(12))
    assert len(alone) == 12
    assert beside(runtime, "beam:width=3", config(12)) == alone


def test_one_beam_is_greedy_decoding() -> None:
    for seed in range(4):
        runtime = FakeRuntime(seed=seed)
        plain = list(run_loop(runtime, decode_loop(fresh(runtime), config(14), Off())))
        assert searched(runtime, "beam:width=1", config(14)) == plain


def test_wide_beams_find_the_likeliest_text() -> None:
    runtime = FakeRuntime(seed=3, spread=4.0)
    logps = logps_of(runtime, PROMPT)
    texts = [text for text in every_text(VOCAB, 3) if len(text) == 3]
    best = max(texts, key=lambda text: sum(float(logps(text[:i])[text[i]]) for i in range(3)))
    assert searched(runtime, "beam:width=169", config(3)) == list(best)


def test_the_k_best_are_enough() -> None:
    """A runtime that gives the k best with the log-sum is asked for nothing else, and the text is the same."""
    whole, few = FakeRuntime(seed=5), FakeRuntime(seed=5, best_k=64)
    search = search_of(few, "beam:width=3", config())
    outputs = set[tuple[bool, int]]()
    forward = few.forward

    def noted(calls: Any) -> Any:
        outputs.update((call.outputs.logits, call.outputs.top) for call in calls if call.outputs.head)
        return forward(calls)

    few.forward = noted  # type: ignore[method-assign]
    assert list(run_loop(few, search.loop)) == searched(whole, "beam:width=3", config())
    assert outputs == {(False, 3)}


def test_ranks_are_the_texts_in_order() -> None:
    runtime = FakeRuntime(seed=1, spread=4.0)
    search = search_of(runtime, "beam:width=4", config(), frozenset({2, 7}))
    list(run_loop(runtime, search.loop))
    values = [branch.value for branch in search.room.ranked]
    assert values == sorted(values, reverse=True)
    assert len(values) == 4
    second = searched(runtime, "beam:width=4,rank=1", config(), eos=frozenset({2, 7}))
    assert second == search.room.ranked[1].tokens
    with pytest.raises(UsageError, match="rank=4: 4 texts are found; must be below width"):
        search_of(runtime, "beam:width=4,rank=4", config())


def test_a_constraint_forks_with_its_beam() -> None:
    """Tokens may only grow by one or two: dead ends end a beam, not the search."""
    runtime = FakeRuntime(seed=2)

    def rule(last: int) -> list[int]:
        return [0] if last < 0 else [t for t in (last + 1, last + 2) if t < VOCAB]

    constrained = config(6, constraint=SetConstraint(rule))
    found = searched(runtime, "beam:width=3", constrained)
    assert found[0] == 0
    assert all(b - a in (1, 2) for a, b in pairwise(found))
    logps = logps_of(runtime, PROMPT)

    def masked(text: tuple[int, ...]) -> Any:
        row = np.full(VOCAB, -inf)
        allowed = rule(text[-1] if text else -1)
        row[allowed] = logps(text)[allowed]
        return row

    assert found == oracle(masked, VOCAB, 3, 6, frozenset(), "false", 1.0)[0]


def test_a_grammar_without_an_end_is_refused_in_one_line() -> None:
    runtime = FakeRuntime()
    dead = config(6, constraint=SetConstraint(lambda last: [0] if last < 0 else []))
    with pytest.raises(UsageError, match="no text was found: nothing that the constraint allows may follow"):
        searched(runtime, "beam:width=3", dead)


def test_pages_are_as_before_when_a_search_is_left() -> None:
    runtime = FakeRuntime()
    context = fresh(runtime)
    search = search_of(runtime, "beam:width=3", config(8), context=context)
    tokens = run_loop(runtime, search.loop)
    first = next(tokens)
    tokens.close()
    assert context.ids == [*PROMPT, first]
    assert context.cache.length <= len(context.ids)
    assert search.room.forks == []
    cut = search_of(runtime, "beam:width=3", config(8), context=fresh(runtime))
    next(cut.loop)
    cut.loop.close()
    assert cut.room.forks == []
    assert cut.room.context.ids == PROMPT


def test_stop_strings_end_a_beam() -> None:
    """The text before a stop string is a text like one before an end token; the runner cuts it."""
    runtime = FakeRuntime(seed=4, spread=4.0)
    free = searched(runtime, "beam:width=3", config(9))
    pair = "".join(chr(97 + token) for token in free[2:4])
    stopped = searched(runtime, "beam:width=1", config(9, stop=("a", "b", "c", "d", "e")))
    assert chr(97 + stopped[-1]) in "abcde"
    assert all(chr(97 + token) not in "abcde" for token in stopped[:-1])
    search = search_of(runtime, "beam:width=3", config(9, stop=(pair,)))
    found = list(run_loop(runtime, search.loop))
    text = "".join(chr(97 + token) for token in found)
    assert pair not in text[:-1]
    assert (search.room.stats.finish == "stop") == text.endswith(pair)


def test_plain_texts_beside_eight_searches_wait_for_no_more_than_a_call() -> None:
    """Eight beams of four and eight plain texts: no plain one goes two calls without a token."""
    runtime = FakeRuntime()
    batch, steps = Batch(runtime), [0]
    times: list[list[int]] = [[] for _ in range(8)]
    for i in range(8):
        context = fresh(runtime, [i + 1, 2])
        loop = decode_loop(context, config(20), Off())
        batch.add(context, loop, lambda token, i=i: times[i].append(steps[0]), need=32)  # type: ignore[misc]
        search = search_of(runtime, "beam:width=4", config(10), context=fresh(runtime, [i + 2, 3]))
        job = batch.add(search.room.context, search.loop, lambda token: None, search.need)
        job.forks, job.width = search.room.forks, search.width
    widest = 0
    while batch.step():
        steps[0] += 1
        widest = max(widest, runtime.forwards[-1])
    assert widest == 8 + 32
    gaps = [b - a for one in times for a, b in pairwise(one)]
    assert max(gaps) <= 2
    assert all(len(one) == 21 for one in times)


class Complete(SetConstraint):
    """A text of 3 tokens is complete."""

    @property
    def done(self) -> bool:  # type: ignore[override]
        return len(self.accepted) >= 3

    def fork(self) -> Complete:
        twin = Complete(self._followers, self._vocab)
        twin.accepted = list(self.accepted)
        return twin


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_complete_text_ends_where_no_token_ends_one(penalty: float) -> None:
    runtime = FakeRuntime(seed=2)
    logps = logps_of(runtime, PROMPT)
    rule = Complete(lambda last: range(VOCAB))
    search = search_of(runtime, f"beam:width=3,length_penalty={penalty}", config(8, constraint=rule))
    found = list(run_loop(runtime, search.loop))
    assert len(found) == 3
    assert found == oracle(logps, VOCAB, 3, 3, frozenset(), "false", penalty)[0]
    assert search.room.stats.finish == "eos"
    assert [len(branch.tokens) for branch in search.room.ranked] == [3, 3, 3]
    total = sum(float(logps(tuple(found[:i]))[found[i]]) for i in range(3))
    assert search.room.ranked[0].value == pytest.approx(total / 3**penalty)


def test_the_end_token_is_masked_before_the_least_tokens() -> None:
    shorter = 0
    for seed in range(6):
        runtime = FakeRuntime(seed=seed, spread=4.0)
        free = searched(runtime, "beam:width=3,length_penalty=0", config(9), eos=frozenset({2, 7}))
        found = searched(runtime, "beam:width=3,length_penalty=0", config(9, min_tokens=4), eos=frozenset({2, 7}))
        assert len(found) >= 4
        shorter += len(free) < 4
    assert shorter


def test_log_probabilities_come_with_the_tokens() -> None:
    runtime = FakeRuntime(seed=1)
    logps = logps_of(runtime, PROMPT)
    found = searched(runtime, "beam:width=3", config(6, logprobs=2))
    for i, token in enumerate(found):
        row = logps(tuple(found[:i]))
        assert token.logprob == pytest.approx(float(row[token]), abs=1e-5)
        assert [one for one, _ in token.top] == np.argsort(-row)[:2].tolist()
    assert searched(runtime, "beam:width=3", config(6)) == found
    assert all(token.logprob is None for token in searched(runtime, "best:n=1", config(6)))


def test_processors_that_read_inner_layers_are_refused() -> None:
    class Inner:
        early = (1,)

        def fork(self) -> Inner:
            return self

    with pytest.raises(UsageError, match="processors that read inner layers work with searches that roll only"):
        searched(FakeRuntime(), "beam:width=2", config(3, processors=(Inner(),)))  # type: ignore[arg-type]


def test_penalties_are_of_each_beams_own_text() -> None:
    """As transformers does it: on the log-probabilities, by the text of the beam."""
    from edgedec.sampling import Sampling, adjust

    sampling = Sampling(repetition_penalty=1.7)
    runtime = FakeRuntime(seed=4)
    logps = logps_of(runtime, PROMPT)

    def penalised(text: tuple[int, ...]) -> Any:
        return adjust(logps(text).astype(np.float32), sampling, [*PROMPT, *text], len(PROMPT)).astype(np.float64)

    found = searched(runtime, "beam:width=3", config(9, sampling=sampling))
    assert found == oracle(penalised, VOCAB, 3, 9, frozenset(), "false", 1.0)[0]
    assert found != searched(runtime, "beam:width=3", config(9))
