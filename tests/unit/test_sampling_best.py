"""The distribution from the k best and the log-sum: wherever it is decided, the same bytes as from all logits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.runtime import Outputs, head_outputs
from edgedec.runtime.best import best as best_of
from edgedec.runtime.best import kth_largest
from edgedec.sampling import Probs, Sampling, adjust, distribution, draw, logprob, top_logprobs
from edgedec.sampling import best as room
from edgedec.sampling.best import Best, _nucleus, adjust_best, decided, quick_distribution
from edgedec.sampling.logprobs import best_logprobs

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from sampling_cost import realistic

SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
INF = float("inf")
CONTEXT = [3, 9, 9, 1, 30, 9, 2, 2]
N_PROMPT = 4


def best_for(logits: np.ndarray, k: int, temperature: float, error: float = 0.0) -> Best:
    """What a runtime returns of a row, its log-sum off by so much."""
    result = head_outputs(logits[None], Outputs(top=k, logsum=True, temperature=temperature))
    assert result.ids is not None
    assert result.scores is not None
    assert result.logsum is not None
    return Best.of(result.ids[0], result.scores[0], len(logits), float(result.logsum[0]) + error, temperature)


def same(a: Probs, b: Probs) -> bool:
    return a.ids.tobytes() == b.ids.tobytes() and a.p.tobytes() == b.p.tobytes()


numbers = st.one_of(st.just(-INF), st.sampled_from([0.0, 1.0, -1.0, 2.0]), st.floats(-12, 12, width=32))
sampling_settings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.05, 0.5, 0.8, 1.0, 3.0, 20.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 50]),
    top_p=st.one_of(st.just(1.0), st.floats(1e-9, 1.0), st.sampled_from([0.5, 0.9, 0.95])),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1), st.sampled_from([0.05, 1.0])),
    typical_p=st.one_of(st.just(1.0), st.floats(1e-9, 1.0)),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.5, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.3, 0.3]),
    logit_bias=st.sampled_from([(), (), ((0, 3.0),), ((1, -INF), (7, -2.0)), ((5, 9.0), (6, -1.0))]),
)


@settings(max_examples=1500 if SLOW else 700, deadline=None)
@given(
    head=st.lists(numbers, min_size=10, max_size=40),
    seed=st.integers(0, 1 << 20),
    sampling=sampling_settings,
    k=st.integers(1, 24),
    error=st.sampled_from([0.0, 2e-6, -2e-6]),
    masked=st.booleans(),
)
def test_what_is_decided_is_what_all_logits_say(
    head: list[float], seed: int, sampling: Sampling, k: int, error: float, masked: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = np.concatenate([np.array(head, np.float32), rng.normal(-4, 2, 40).astype(np.float32)])
    logits = rng.permutation(logits)
    best = adjust_best(
        best_for(logits, k, sampling.temperature or 1.0, error), sampling, CONTEXT, N_PROMPT, len(logits)
    )
    scores = adjust(logits, sampling, CONTEXT, N_PROMPT)
    if masked:
        allowed = rng.random(len(logits)) < 0.7
        allowed[rng.integers(len(logits))] = True
        best = best.lower(np.where(allowed[best.ids], best.scores, np.float32(-INF)))
        scores = np.where(allowed, scores, np.float32(-INF))
    if not np.isfinite(scores).any():
        return
    found = decided(best, sampling)
    assert found is None or same(found, distribution(scores, sampling))


@settings(max_examples=600 if SLOW else 200, deadline=None)
@given(head=st.lists(numbers, min_size=1, max_size=60), seed=st.integers(0, 1 << 20), sampling=sampling_settings)
def test_the_quick_way_is_the_same(head: list[float], seed: int, sampling: Sampling) -> None:
    rng = np.random.default_rng(seed)
    logits = np.concatenate([np.array(head, np.float32), rng.normal(-4, 2, 400).astype(np.float32)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(room, "_LEAST", 1)
        assert same(quick_distribution(logits, sampling), distribution(logits, sampling))


LIKELY = {
    "top-p": Sampling(temperature=1.0, top_p=0.9),
    "colder": Sampling(temperature=0.8, top_p=0.95),
    "top-k": Sampling(temperature=0.7, top_k=20, top_p=0.95),
    "min-p": Sampling(temperature=1.3, min_p=0.05),
    "typical": Sampling(temperature=0.8, top_p=0.9, typical_p=0.7),
    "penalties": Sampling(temperature=0.8, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.2),
    "bias": Sampling(temperature=0.8, top_p=0.9, logit_bias={7: -INF, 11: 2.0}),
    "repetition": Sampling(temperature=0.8, min_p=0.05, repetition_penalty=1.2),
    "greedy": Sampling(repetition_penalty=1.2),
}
PEAKED = realistic(8192, 60, np.random.default_rng(3))[20:]


@pytest.mark.parametrize("name", LIKELY)
def test_realistic_rows_are_decided_and_every_seed_draws_the_same(name: str) -> None:
    sampling, n = LIKELY[name], 0
    for row in PEAKED:
        # The text has tokens that the model likes: penalties are felt.
        context = [*np.argsort(-row)[:12].tolist(), 5, 6, 7]
        best = adjust_best(best_for(row, 128, sampling.temperature or 1.0), sampling, context, 4, len(row))
        found, whole = decided(best, sampling), distribution(adjust(row, sampling, context, 4), sampling)
        if found is not None:
            n += 1
            assert same(found, whole)
            for seed in range(100):
                assert draw(found, np.random.default_rng(seed)) == draw(whole, np.random.default_rng(seed))
        quick = quick_distribution(adjust(row, sampling, context, 4), sampling)
        assert same(quick, whole)
    assert n > 0.95 * len(PEAKED)


def test_the_quick_way_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Probs:
        raise AssertionError("all logits were ranked")

    monkeypatch.setattr(room, "distribution", refuse)
    for name in ("top-p", "colder", "min-p", "typical"):
        for row in PEAKED:
            quick_distribution(row, LIKELY[name])


def test_the_first_shortlist_is_short_and_mostly_enough() -> None:
    for name in ("top-p", "colder", "min-p"):
        firsts = [(next(iter(room._shortlists(row, LIKELY[name]))), row) for row in PEAKED]
        assert np.mean([decided(first, LIKELY[name]) is not None for first, _ in firsts]) > 0.9
        assert max(len(first.ids) for first, _ in firsts) <= 100


def weighing(weights: list[float], rest: tuple[float, float]) -> Best:
    """The k best of these weights, at temperature 1, and bounds of the rest, relative to the first."""
    scores = np.log(np.array(weights)).astype(np.float32)
    peak = float(scores[0])
    bounds = rest[0] / weights[0], rest[1] / weights[0]
    return Best(np.arange(len(weights)), scores, float(scores[-1]), peak, bounds, weights[-1] / weights[0])


def test_the_worked_example() -> None:
    best = weighing([8, 4, 2, 1], (0.5, 1.5))
    found = decided(best, Sampling(temperature=1.0, top_p=0.7))
    assert found is not None
    assert found.ids.tolist() == [0, 1]
    assert found.p.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert decided(best, Sampling(temperature=1.0, top_p=0.75)) is None


def test_what_lies_outside_may_matter() -> None:
    """Undecided: a nucleus that the known tokens do not fill, a cut below them, ties with the last."""
    best = weighing([8, 4, 2, 1], (0.5, 1.5))
    for sampling in (
        Sampling(temperature=1.0),
        Sampling(temperature=1.0, top_p=0.95),
        Sampling(temperature=1.0, min_p=0.1),
        Sampling(temperature=1.0, min_p=0.1249),
        Sampling(temperature=1.0, top_k=4),
        Sampling(temperature=1.0, typical_p=0.5),
    ):
        assert decided(best, sampling) is None
    assert decided(best, Sampling(temperature=1.0, min_p=0.13)) is not None
    assert decided(best, Sampling(temperature=1.0, top_k=3)) is not None
    assert decided(weighing([1, 1, 1], (0.5, 1.5)), Sampling()) is None


def test_penalties_and_masks_widen_the_bounds() -> None:
    best, sampling = weighing([8, 4, 2, 1], (0.5, 0.5)), Sampling(temperature=1.0, top_p=0.75)
    found = decided(best, sampling)
    assert found is not None
    assert found.ids.tolist() == [0, 1]
    one = best.lower(best.scores, outside=0.4)
    assert decided(one, sampling) is not None
    assert decided(best.lower(np.where(np.arange(4) == 1, np.float32(-INF), best.scores)), sampling) is not None
    # Without all of the rest 0.78 of 15 lie before the third token, with it 0.80 of 15.5.
    tight = Sampling(temperature=1.0, top_p=0.79)
    assert decided(best, tight) is not None
    assert decided(best.lower(best.scores), tight) is None
    # A token outside that is made likelier than all: nothing is known.
    raised = adjust_best(best, Sampling(temperature=1.0, top_p=0.75, logit_bias={9: 5.0}), [], 0, 20)
    assert decided(raised, sampling) is None


def test_a_smaller_score_of_a_token_outside_may_change_otherwise_than_the_border() -> None:
    """The bounds hold for whatever logit it has: here 0 stays, and lower ones fall; 5 falls, and lower ones rise."""
    lower = adjust_best(weighing([8, 4, 2, 1], (0.5, 0.5)), Sampling(repetition_penalty=2.0), [9], 0, 20)
    assert (lower.border, lower.lowered, lower.raised) == (0.0, 1, ())
    best = Best(np.arange(2), np.array([9, 5], np.float32), 5.0, 9.0, (0.0, 0.001))
    both = adjust_best(best, Sampling(repetition_penalty=4.0, logit_bias={9: 2.0}), [9], 0, 20)
    assert (both.border, both.lowered, both.raised) == (5.0, 1, (1.75,))


def test_the_rest_is_bounded_by_what_a_log_sum_in_float32_may_be_off() -> None:
    """Whatever the runtime's log-sum is off by, up to 4e-6 of the sum: the true rest lies between the bounds."""
    row, total = PEAKED[0], float(np.exp(PEAKED[0].astype(np.float64) - float(PEAKED[0].max())).sum())
    top = np.sort(row)[::-1][:16].astype(np.float64)
    rest = total - float(np.exp(top - top[0]).sum())
    for error in (0.0, 3.9e-6, -3.9e-6):
        low, high = best_for(row, 16, 1.0, error).rest
        assert low <= rest <= high
        assert high - low == pytest.approx(2 * 4e-6 * total, rel=0.01), "and they are no wider"


def test_sums_that_differ_by_their_rounding_decide_nothing() -> None:
    """Weights 8 4 2 1 of 15: 12 lie before the third. A nucleus of 12/15 and a part in 10^9 more or less is open."""
    w = np.array([8.0, 4.0, 2.0, 1.0])
    for off, found in ((-2e-9, 2), (-5e-10, None), (5e-10, None), (2e-9, 3)):
        assert _nucleus(w, (0.0, 0.0), 12 / 15 * (1 + off)) == found
    assert _nucleus(w, (0.0, 0.0), 1e-12) == 1, "the likeliest always stays"
    assert _nucleus(w, (0.0, 0.0), 1.0) == 4, "all, and perhaps more"


def test_weights_beyond_all_numbers_decide_nothing() -> None:
    """The largest logit is masked, and at a low temperature its weight beside the others is no number."""
    best = Best(np.arange(3), np.array([8, 0, -1], np.float32), -1.0, 8.0, (0.0, 0.5))
    masked = best.lower(np.array([-INF, 0, -1], np.float32), outside=0)
    for temperature in (0.02, 0.01, 0.006, 1e-4):
        assert decided(masked, Sampling(temperature=temperature, top_p=0.5)) is None
        assert decided(masked, Sampling(temperature=temperature, min_p=0.5)) is not None


def test_a_row_without_a_finite_logit_is_refused() -> None:
    bad = np.array([np.nan, 1, 2], np.float32)
    with pytest.raises(UsageError, match="NaN"):
        best_for(bad, 2, 1.0)
    whole = best_for(np.array([1, 2, -INF], np.float32), 3, 1.0)
    with pytest.raises(UsageError, match="-inf"):
        decided(whole.lower(np.full(2, -INF, np.float32)), Sampling(temperature=1.0))


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    sampling = Sampling(logit_bias={50: 1.0})
    with pytest.raises(UsageError, match="token 50 is outside the vocabulary of 40"):
        adjust_best(best_for(np.arange(40, dtype=np.float32), 4, 1.0), sampling, [], 0, 40)


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.sampled_from([-INF, -1.0, 0.0, 0.5, 2.0, 3.0]), min_size=1, max_size=700), k=st.integers(1, 12)
)
def test_the_k_best_are_those_of_a_sort(values: list[float], k: int) -> None:
    row = np.array(values, np.float32)
    k = min(k, len(row))
    order = np.argsort(-row, kind="stable")
    assert kth_largest(row, k) == row[order[k - 1]]
    ids, scores = best_of(row[None], k)
    assert scores[0].tolist() == row[order[:k]].tolist()
    assert ids[0].tolist() == [int(i) if np.isfinite(row[i]) else -1 for i in order[:k]]


def test_log_probabilities_from_the_k_best() -> None:
    row = PEAKED[0]
    result = head_outputs(row[None], Outputs(top=16, logsum=True))
    assert result.ids is not None
    assert result.scores is not None
    assert result.logsum is not None
    token = int(result.ids[0, 9])
    own, top = best_logprobs(result.ids[0], result.scores[0], float(result.logsum[0]), token, 5)
    assert own == pytest.approx(logprob(row, token), abs=1e-9)
    assert [t for t, _ in top] == [t for t, _ in top_logprobs(row, 5)]
    assert [x for _, x in top] == pytest.approx([x for _, x in top_logprobs(row, 5)], abs=1e-9)
