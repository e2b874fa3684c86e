"""Cuts in any order: each beside a naive form of its rule, and the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.sampling import Sampling, distribution
from edgedec.sampling.ordered import Candidates, apply_cuts, candidates, ordered_distribution
from edgedec.sampling.settings import CUTS

Law = dict[int, float]
LOGITS = st.lists(st.integers(-512, 512).map(lambda n: n / 64), min_size=2, max_size=40, unique=True)


def law(logits: Law) -> Law:
    most = max(logits.values())
    weights = {token: exp(x - most) for token, x in logits.items()}
    return {token: w / sum(weights.values()) for token, w in weights.items()}


def found(scores: list[float], chance: float = 0.0, **more: float | tuple[str, ...]) -> Law:
    sampling = Sampling(**{"temperature": 1.0, **more})  # type: ignore[arg-type]
    probs = ordered_distribution(np.array(scores, np.float32), sampling, lambda: chance)
    return dict(zip(probs.ids.tolist(), probs.p.tolist(), strict=True))


def same(one: Law, other: Law) -> None:
    assert one.keys() == other.keys()
    assert all(abs(p - other[token]) < 1e-7 for token, p in one.items())


def clear(values: list[float], bound: float) -> bool:
    """No value is so near the bound that rounding decides."""
    return all(abs(value - bound) > 1e-6 for value in values)


def entropy(p: Law) -> float:
    return -sum(x * log(x) for x in p.values() if x > 0)


# ---- one cut ----


def sigma(scores: list[float], n: float) -> Callable[[Law], Law] | None:
    mean = sum(scores) / len(scores)
    bound = max(scores) - n * sqrt(sum((x - mean) ** 2 for x in scores) / len(scores))
    return (lambda logits: {t: x for t, x in logits.items() if x >= bound}) if clear(scores, bound) else None


def epsilon(scores: list[float], bound: float) -> Callable[[Law], Law] | None:
    p = law(dict(enumerate(scores)))
    best = max(p, key=lambda token: p[token])
    keep = {token for token in p if p[token] >= bound or token == best}
    return (lambda logits: {t: x for t, x in logits.items() if t in keep}) if clear([*p.values()], bound) else None


def eta(scores: list[float], bound: float) -> Callable[[Law], Law] | None:
    h = entropy(law(dict(enumerate(scores))))
    return epsilon(scores, min(bound, sqrt(bound) * exp(-h)))


def top_h(scores: list[float], share: float) -> Callable[[Law], Law] | None:
    p = law(dict(enumerate(scores)))
    limit, before, keep = share * entropy(p), 0.0, list[int]()
    sums = list[float]()
    for token in sorted(p, key=lambda t: -p[t]):
        before -= p[token] * log(p[token])
        sums.append(before)
        if before <= limit or not keep:
            keep.append(token)
    return (lambda logits: {t: x for t, x in logits.items() if t in keep}) if clear(sums[:-1], limit) else None


def min_p(scores: list[float], part: float) -> Callable[[Law], Law] | None:
    p = law(dict(enumerate(scores)))
    bound = part * max(p.values())
    return (lambda logits: {t: x for t, x in logits.items() if p[t] >= bound}) if clear([*p.values()], bound) else None


def nucleus(scores: list[float], mass: float) -> Callable[[Law], Law] | None:
    p = law(dict(enumerate(scores)))
    before, keep, sums = 0.0, list[int](), list[float]()
    for token in sorted(p, key=lambda t: -p[t]):
        if before < mass:
            keep.append(token)
        before += p[token]
        sums.append(before)
    return (lambda logits: {t: x for t, x in logits.items() if t in keep}) if clear(sums, mass) else None


def typical(scores: list[float], mass: float) -> Callable[[Law], Law] | None:
    p = law(dict(enumerate(scores)))
    h = entropy(p)
    order = sorted(p, key=lambda t: abs(-log(p[t]) - h))
    far = [abs(-log(p[t]) - h) for t in order]
    before, keep, sums = 0.0, list[int](), list[float]()
    for token in order:
        if before < mass:
            keep.append(token)
        before += p[token]
        sums.append(before)
    distinct = all(b - a > 1e-6 for a, b in pairwise(far))
    return (lambda logits: {t: x for t, x in logits.items() if t in keep}) if distinct and clear(sums, mass) else None


@settings(deadline=None)
@given(scores=LOGITS, value=st.floats(0.02, 0.95))
@pytest.mark.parametrize(
    ("name", "setting", "oracle"),
    [
        ("top_n_sigma", "top_n_sigma", sigma),
        ("epsilon_cutoff", "epsilon_cutoff", epsilon),
        ("eta_cutoff", "eta_cutoff", eta),
        ("top_h", "top_h", top_h),
        ("min_p", "min_p", min_p),
        ("top_p", "top_p", nucleus),
        ("typical_p", "typical_p", typical),
    ],
)
def test_a_cut_is_its_rule(
    name: str,
    setting: str,
    oracle: Callable[..., Callable[[Law], Law] | None],
    scores: list[float],
    value: float,
    data: st.DataObject,
) -> None:
    rule = oracle([float(np.float32(x)) for x in scores], value)
    if rule is not None:
        same(found(scores, samplers=(name,), **{setting: value}), law(rule(dict(enumerate(scores)))))


def test_top_k_keeps_ties() -> None:
    assert list(found([1.0, 3.0, 2.0, 2.0, 0.0], samplers=("top_k",), top_k=2)) == [1, 2, 3]


@settings(deadline=None)
@given(LOGITS, st.floats(0.3, 3.0), st.floats(0.05, 2.5), st.floats(0.2, 3.0))
def test_the_temperature_follows_the_entropy(scores: list[float], base: float, spread: float, exponent: float) -> None:
    """llama.cpp's: from temp - range for a sure token to temp + range for equal chances."""
    p = law(dict(enumerate(scores)))
    low = max(0.0, base - spread)
    t = low + (base + spread - low) * (entropy(p) / log(len(p))) ** exponent
    if t > 1e-2:
        expected = law({token: x / t for token, x in enumerate(scores)})
        given_ = found(scores, temperature=base, dynatemp_range=spread, dynatemp_exponent=exponent, samplers=("temp",))
        same(given_, {token: x for token, x in expected.items() if x > 0})


def test_equal_chances_and_sure_tokens_have_the_ends_of_the_range() -> None:
    hot = Sampling(temperature=1.0, dynatemp_range=0.5)
    flat = apply_cuts(candidates(np.zeros(8, np.float32)), hot, float)
    assert np.allclose(flat.p, 1 / 8)
    sure = candidates(np.array([40.0, 0.0], np.float32))
    assert apply_cuts(sure, hot, float).logits[0] == pytest.approx(40 / 0.5)
    cold = Sampling(temperature=0.4, dynatemp_range=0.5)
    assert list(apply_cuts(sure, cold, float).probs.ids) == [0]
    equal = apply_cuts(Candidates(np.array([1, 4, 6]), np.zeros(3)), cold, float)
    assert np.allclose(equal.logits, 0)


P = [0.4, 0.3, 0.2, 0.1]


@pytest.mark.parametrize(
    ("threshold", "chance", "kept"),
    [(0.15, 0.2, [2, 3]), (0.25, 0.2, [1, 2, 3]), (0.35, 0.2, [0, 1, 2, 3]), (0.15, 0.5, [0, 1, 2, 3])],
)
def test_xtc_leaves_the_least_likely_of_the_likely(threshold: float, chance: float, kept: list[int]) -> None:
    given_ = found([log(p) for p in P], chance, xtc_probability=0.5, xtc_threshold=threshold)
    same(given_, {token: P[token] / sum(P[t] for t in kept) for token in kept})


def test_xtc_is_drawn_as_often_as_it_says_and_not_above_a_half() -> None:
    scores = [log(p) for p in P]
    assert len(found(scores, 0.49, xtc_probability=0.5, xtc_threshold=0.15)) == 2
    assert len(found(scores, 0.51, xtc_probability=0.5, xtc_threshold=0.15)) == 4
    assert len(found([log(0.5), log(0.5)], 0.0, xtc_probability=1.0, xtc_threshold=0.51)) == 2
    drawn = list[int]()
    sampling = Sampling(temperature=1.0, top_n_sigma=9.0)
    ordered_distribution(np.array(scores, np.float32), sampling, lambda: drawn.append(1) or 0.0)
    assert not drawn, "nothing is drawn where it is off"


# ---- all together ----


def test_the_default_order_without_new_cuts_is_the_other_path() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        scores = rng.normal(0, 3, 60).astype(np.float32)
        sampling = Sampling(
            temperature=float(rng.uniform(0.3, 2)),
            top_k=int(rng.integers(0, 40)),
            top_p=float(rng.uniform(0.5, 1)),
            min_p=float(rng.uniform(0, 0.2)),
            typical_p=float(rng.choice([1.0, 0.8])),
        )
        one, other = distribution(scores, sampling), ordered_distribution(scores, sampling, float)
        assert list(one.ids) == list(other.ids)
        assert np.allclose(one.p, other.p, atol=1e-6)


def test_the_order_is_followed_and_what_is_not_named_is_off() -> None:
    """0.5 0.3 0.2: top-p 0.6 before the temperature keeps two, after it (0.25) one."""
    scores = [log(0.5), log(0.3), log(0.2)]
    options = {"temperature": 0.25, "top_p": 0.6, "top_k": 1}
    assert len(found(scores, samplers=("top_p", "temperature"), **options)) == 2
    assert len(found(scores, samplers=("temperature", "top_p"), **options)) == 1
    assert len(found(scores, samplers=("temperature",), **options)) == 3
    assert found(scores, samplers=("top_p",), **options)[0] == pytest.approx(0.5 / 0.8), "no temperature"


@pytest.mark.parametrize(
    ("given_", "ours"),
    [
        (
            "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",
            "top_n_sigma;top_k;typical_p;top_p;min_p;xtc;temperature",
        ),
        ("top-k; TEMP", "top_k;temperature"),
        (("top_p", "min_p"), "top_p;min_p"),
        ("", ""),
    ],
)
def test_names_of_llama_cpp(given_: str | tuple[str, ...], ours: str) -> None:
    assert Sampling(samplers=given_).samplers == tuple(filter(None, ours.split(";")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"samplers": "top_k;tfs"}, "no cut 'tfs'"),
        ({"samplers": "top_k;top_k"}, "once"),
        ({"samplers": "top_k;dry"}, "first"),
        ({"mirostat": 3}, "mirostat"),
        ({"mirostat": 1.5}, "mirostat"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
        ({"dry_sequence_breakers": ("",)}, "dry_sequence_breakers"),
        ({"top_h": 1.1}, "top_h"),
        ({"epsilon_cutoff": 1.0}, "epsilon_cutoff"),
        ({"xtc_probability": 1.1}, "xtc_probability"),
        ({"adaptive_target": 1.5}, "adaptive_target"),
        ({"adaptive_decay": 1.0}, "adaptive_decay"),
        ({"top_n_sigma": float("nan")}, "top_n_sigma"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Sampling(**options)  # type: ignore[arg-type]


def test_forbidden_tokens_are_no_candidates_and_greedy_takes_the_largest() -> None:
    scores = np.array([-np.inf, 1.0, 3.0, -np.inf, 2.0], np.float32)
    assert list(candidates(scores).ids) == [1, 2, 4]
    assert list(ordered_distribution(scores, Sampling(top_n_sigma=1.0), float).ids) == [2]
    with pytest.raises(UsageError, match="logits"):
        candidates(np.full(3, -np.inf, np.float32))
    tiny = Candidates(np.array([3, 7]), np.array([0.0, -800.0])).probs
    assert (list(tiny.ids), list(tiny.p)) == ([3], [1.0])


@pytest.mark.parametrize("name", CUTS)
def test_each_cut_is_off_by_default(name: str) -> None:
    scores = np.array([0.3, 2.0, -1.0], np.float32)
    assert np.allclose(
        apply_cuts(candidates(scores), Sampling(temperature=1.0, samplers=(name,)), float).logits, scores
    )
