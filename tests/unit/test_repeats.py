"""Tokens that would repeat the text: no-repeat n-grams and DRY, beside naive forms of their rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.sampling import Sampling
from edgedec.sampling.distributions import adjust, counted
from edgedec.sampling.repeats import dry_penalty, forbidden, repeat_lengths, repeated
from edgedec.text.breakers import breaker_tokens

TEXT = st.lists(st.integers(0, 4), max_size=24)
A, B, C, Y = 0, 1, 2, 3


def array(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int64)


@given(TEXT, st.integers(1, 5))
def test_what_completes_an_n_gram_is_forbidden(ids: list[int], size: int) -> None:
    before = {tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)}
    last = ids[len(ids) - size + 1 :] if size > 1 else []
    expected = [t for t in range(6) if len(last) == size - 1 and (*last, t) in before]
    assert forbidden(array(ids), size).tolist() == expected


def test_the_worked_examples() -> None:
    assert forbidden(array([1, 2, 3, 1, 2]), 3).tolist() == [3]
    assert repeat_lengths(array([A, B, C, C, B, C, Y, A, B, C]), 2) == {C: 3, Y: 2}
    assert repeat_lengths(array([A, B, C, C, B, C, Y, A, B, C]), 1) == {C: 3, B: 1, Y: 2}


def naive_lengths(ids: list[int], allowed: int, breakers: list[list[int]]) -> dict[int, int]:
    """By the definition, place by place."""
    n, limit = len(ids), len(ids)
    for at in reversed(range(n)):
        whole = [len(b) for b in breakers if ids[at : at + len(b)] == b]
        if whole:
            limit = n - at - max(whole)
            break
    if n <= allowed or limit < allowed:
        return {}
    found = dict[int, int]()
    for end in range(n - 1):
        length = 0
        while length <= end and length < limit and ids[end - length] == ids[n - 1 - length]:
            length += 1
        token = ids[end + 1]
        if length >= allowed and [token] not in breakers:
            found[token] = max(found.get(token, 0), length)
    return found


@settings(max_examples=400)
@given(TEXT, st.integers(0, 4), st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=3))
def test_dry_measures_every_repeated_sequence(ids: list[int], allowed: int, breakers: list[list[int]]) -> None:
    assert repeat_lengths(array(ids), allowed, breakers) == naive_lengths(ids, allowed, breakers)


def test_a_breaker_ends_the_sequence_and_is_not_penalised() -> None:
    ids = array([A, B, C, Y, A, B, C])
    assert repeat_lengths(ids, 2) == {Y: 3}
    assert repeat_lengths(ids, 2, [[Y]]) == {}, "the token that would follow is a breaker"
    assert repeat_lengths(ids, 2, [[A]]) == {Y: 2}, "only what comes after it counts"
    assert repeat_lengths(ids, 2, [[A, B]]) == {}
    assert repeat_lengths(ids, 1, [[A, B]]) == {Y: 1}
    assert repeat_lengths(ids, 2, [[C, A]]) == {Y: 3}, "it is not in the text"


def test_the_penalty_grows_by_the_base_and_is_finite() -> None:
    dry = Sampling(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=2)
    assert [dry_penalty(n, dry) for n in (2, 3, 5)] == [0.5, 1.0, 4.0]
    assert np.isfinite(np.float32(dry_penalty(10_000, dry)))
    flat = Sampling(dry_multiplier=0.5, dry_base=1.0)
    assert dry_penalty(10_000, flat) == 0.5


def test_both_rules_change_these_tokens_alone() -> None:
    ids, scores = array([A, B, C, Y, A, B, C]), np.arange(5, dtype=np.float32)
    dry = repeated(scores, Sampling(dry_multiplier=2.0), ids, ())
    assert dry.tolist() == [0, 1, 2, 3 - 2 * 1.75, 4]
    assert repeated(scores, Sampling(no_repeat_ngram_size=2), ids, ()).tolist() == [0, 1, 2, -np.inf, 4]
    assert scores.tolist() == [0, 1, 2, 3, 4]
    assert repeated(scores[:3], Sampling(dry_multiplier=2.0, no_repeat_ngram_size=2), ids, ()).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("last", "penalised"), [(-1, True), (7, True), (6, True), (3, False), (0, False)])
def test_dry_looks_at_the_last_tokens(last: int, penalised: bool) -> None:
    ids, scores = array([B, C, Y, A, B, C]), np.zeros(5, np.float32)
    found = repeated(scores, Sampling(dry_multiplier=2.0, dry_penalty_last_n=last), ids, ())
    assert bool(found[Y] < 0) is penalised


@pytest.mark.parametrize(
    ("last", "text", "output"),
    [(-1, [1, 2, 3, 4], [3, 4]), (3, [2, 3, 4], [3, 4]), (1, [4], [4]), (0, [], []), (9, [1, 2, 3, 4], [3, 4])],
)
def test_penalties_count_the_last_tokens(last: int, text: list[int], output: list[int]) -> None:
    found = counted([1, 2, 3, 4], 2, last)
    assert [part.tolist() for part in found] == [text, output]
    settings_ = Sampling(repetition_penalty=2.0, presence_penalty=1.0, repeat_last_n=last)
    scores = adjust(np.full(6, 8.0, np.float32), settings_, [1, 2, 3, 4], 2).tolist()
    assert scores == [8.0 / (2 if t in text else 1) - (t in output) for t in range(6)]


# ---- breakers as tokens ----


class Words:
    """A tokenizer of a few tokens; spells text character by character."""

    words = ("a", "b\n", "x:", ": ", "\n\n", "n", "", "ab")

    def texts(self, size: int) -> list[str]:
        return list(self.words[:size])

    def encode(self, text: str, special: bool, around: bool) -> list[int]:
        assert (special, around) == (False, False)
        return [100 + ord(c) for c in text]


def test_a_breaker_is_in_a_token_or_spelt_by_several() -> None:
    words = Words()
    assert set(breaker_tokens(words, 8, ("\n",))) == {(1,), (4,)}  # type: ignore[arg-type]
    n = 100 + ord("\n")
    assert set(breaker_tokens(words, 8, (":\n",))) == {(2, n)}  # type: ignore[arg-type]
    assert set(breaker_tokens(words, 8, ("bb",))) == {(7, 100 + ord("b"))}  # type: ignore[arg-type]
    long = "a" + "z" * 60
    (tail,) = breaker_tokens(words, 8, (long,))  # type: ignore[arg-type]
    assert (tail[0], len(tail)) == (0, 21), "40 characters, 20 tokens after the first"


def test_a_session_knows_the_breakers_of_its_vocabulary(nano: object) -> None:
    model = edgedec.open(nano)  # type: ignore[arg-type]
    found = breaker_tokens(model.tokenizer, model.spec.vocab_size, (".",))
    stops = {token for token, text in enumerate(model.tokenizer.texts(model.spec.vocab_size)) if "." in text}
    assert {seq[0] for seq in found if len(seq) == 1} == stops != set()
