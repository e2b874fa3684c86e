"""The constants of sampling at both of their sides: how many tokens a rule looks at, the largest factors, the first
shortlist, and below which share nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log

import numpy as np
import pytest

from edgedec.sampling import Probs, Sampling
from edgedec.sampling import best as room
from edgedec.sampling.awrs import NONE, Checks, _Left, weighed_draw
from edgedec.sampling.best import Best, _above, _shortlists, quick_distribution
from edgedec.sampling.ordered import Candidates, candidates, ordered_distribution
from edgedec.sampling.places import decayed
from edgedec.sampling.repeats import dry_penalty
from edgedec.sampling.steering import State, shape


def test_top_h_looks_at_a_hundred_tokens() -> None:
    """Of 300 alike each of the first 100 has a hundredth of their entropy."""
    found = ordered_distribution(np.zeros(300, np.float32), Sampling(temperature=1.0, top_h=0.505), float)
    assert found.ids.tolist() == list(range(50))


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"eta_cutoff": 0.25}, [0, 1, 2]),  # entropy 1.03: the bound is sqrt(.25) exp(-1.03) = .18
        ({"eta_cutoff": 0.16}, [0, 1, 2]),
        ({"eta_cutoff": 0.36}, [0, 1]),  # .21
        ({"epsilon_cutoff": 0.25}, [0, 1]),
        ({"epsilon_cutoff": 0.6}, [0]),  # the likeliest stays below every bound
    ],
)
def test_bounds_of_probabilities_by_hand(cut: dict[str, float], kept: list[int]) -> None:
    scores = np.log([0.5, 0.3, 0.2]).astype(np.float32)
    found = ordered_distribution(scores, Sampling(temperature=1.0, **cut), float)  # type: ignore[arg-type]
    assert found.ids.tolist() == kept


def test_mirostat_1_fits_a_hundred_tokens() -> None:
    """The likeliest 100 follow an exponent of 1.4, the others fall much faster."""
    s, n, mu = 1.4, 200, 6.0
    logs = -s * np.log(np.arange(1, n + 1, dtype=float))
    logs[100:] = logs[99] - np.arange(1, 101)
    e = s - 1
    k = int((e * 2**mu / (1 - n**-e)) ** (1 / s))
    found = shape(Candidates(np.arange(n), logs), State(mu), Sampling(temperature=1.0, mirostat=1), n)
    assert found.probs.ids.tolist() == list(range(k))


def test_the_wish_to_end_stops_growing_at_e_to_the_69() -> None:
    row, ends = np.array([1.0, 2.0], np.float32), np.array([1])
    for steps, wanted in ((60, exp(60)), (69, exp(69)), (75, exp(69)), (5000, exp(69))):
        assert decayed(row, ends, 4 + steps, 4, exp(1)).tolist() == [1, pytest.approx(2 * wanted, rel=1e-5)]


def test_the_exponent_of_dry_stops_at_the_largest_float32() -> None:
    """llama.cpp's: 127 for a base of 2."""
    dry = Sampling(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=2)
    assert dry_penalty(2 + 126, dry) == 0.5 * 2.0**126
    assert dry_penalty(2 + 127, dry) == dry_penalty(2 + 128, dry) == 0.5 * 2.0**127


# ── shortlists ──

SCORES = np.array([3.0, 1.0, -40.0, -80.0, 2.0], np.float32)


def test_a_row_is_shortlisted_from_2048_scores_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()
    monkeypatch.setattr(room, "_shortlists", lambda scores, sampling: seen.append(len(scores)) or iter(()))
    for n in (2047, 2048, 2049):
        for sampling in (Sampling(temperature=1.0, top_p=0.5), Sampling(), Sampling(temperature=1.0, top_k=3)):
            quick_distribution(np.zeros(n, np.float32), sampling)
    assert seen == [2048, 2049]


@pytest.mark.parametrize(("min_p", "found"), [(0.0, 0), (5e-31, 0), (2e-30, 1), (0.05, 1)])
def test_what_min_p_drops_is_below_the_line(min_p: float, found: int) -> None:
    lists = list(_shortlists(SCORES, Sampling(temperature=2.0, min_p=min_p)))
    assert len(lists) == found
    for one in lists:
        assert one.border == pytest.approx(3 + 2 * (log(min_p) - 1e-3), rel=1e-6)
        assert one.rest == (0.0, inf)


@pytest.mark.parametrize(
    ("temperature", "found"), [(0.005, 0), (0.011, 2), (0.5, 2), (30.0, 2), (90.0, 2), (101.0, 0), (199.0, 0)]
)
def test_what_top_p_drops_is_below_the_line(temperature: float, found: int) -> None:
    """A part of .005 of what may be dropped, then what all tokens together cannot exceed."""
    lists = list(_shortlists(SCORES, Sampling(temperature=temperature, top_p=0.9)))
    assert len(lists) == found
    total = float(np.exp((SCORES.astype(np.float64) - 3) / temperature).sum())
    for one, share in zip(lists, (0.005 * 0.1, 0.1 / 5), strict=False):
        assert one.border == pytest.approx(3 + temperature * log(total * share), rel=1e-4, abs=1e-4)


def test_the_sum_below_the_line_has_an_error() -> None:
    weights = np.exp(SCORES - np.float32(3))
    found = _above(SCORES, 3.0, 1.5, weights.copy())
    assert (found.ids.tolist(), found.scores.tolist()) == ([0, 4], [3.0, 2.0])
    rest = float(weights[[1, 2, 3]].sum())
    assert found.rest == (pytest.approx(rest * (1 - 2e-5), rel=1e-7), pytest.approx(rest * (1 + 2e-5), rel=1e-7))
    assert found.rest[0] < rest < found.rest[1]
    assert 1.0 in _above(SCORES, 3.0, 1.0).scores, "a score at the border is above the line"


def test_the_k_best_of_a_runtime() -> None:
    """Weights 8 4 2 of 15: what is outside weighs 1 / 8 of the first, and one token of it 2 / 8 at most."""
    ids, scores = np.array([5, 1, 3], np.int32), np.log(np.array([8, 4, 2])).astype(np.float32)
    found = Best.of(ids, scores, 9, log(15))
    assert (found.ids.tolist(), found.border, found.peak) == ([1, 3, 5], scores[2], scores[0])
    assert np.mean(found.rest) == pytest.approx(1 / 8, rel=1e-5)
    assert found.least == pytest.approx(2 / 8)
    warm = Best.of(ids, scores, 9, log(8**0.5 + 4**0.5 + 2**0.5 + 1), 2.0)
    assert np.mean(warm.rest) == pytest.approx((1 / 8) ** 0.5, rel=1e-5)
    whole = Best.of(ids, scores, 3, log(14))
    assert (whole.border, whole.rest) == (-inf, (0.0, inf)), "there is none outside"


# ── draws under a constraint ──


def draws(p: Sequence[float], allowed: set[int]) -> list[int]:
    """What is drawn with 20 seeds, without tokens that were drawn before."""
    law = Probs(np.arange(len(p)), np.array(p))

    def valid(tokens: Sequence[int]) -> list[bool]:
        return [token in allowed for token in tokens]

    found = list[int]()
    for seed in range(20):
        checks = Checks(valid, lambda: np.isin(np.arange(len(p)), list(allowed)), 9)
        found.append(weighed_draw(law, checks, np.random.default_rng(seed)).token)
    return found


@pytest.mark.parametrize("first", [(1.0,), (0.5, 0.5)])
def test_a_share_below_a_million_millionth_is_nothing(first: tuple[float, ...]) -> None:
    """One likely token is drawn with replacement, two without."""
    n = len(first)
    assert draws([*first, 5e-13], {n}) == [NONE.token] * 20
    assert draws([*first, 3e-12], {n}) == [n] * 20


def test_little_that_is_left_is_added_up_anew() -> None:
    left = _Left(Probs(np.arange(3), np.array([0.995, 0.003, 0.002])), np.random.default_rng(0))
    assert left.take(0) == 0.995
    assert left.mass == 0.003 + 0.002 != 1 - 0.995
    assert left.take(2) == pytest.approx(0.4)
    assert left.mass == 0.003


def test_no_score_is_no_candidate() -> None:
    assert candidates(np.array([1.0, -np.inf, np.finfo(np.float32).min], np.float32)).ids.tolist() == [0, 2]
