"""Draws follow the distribution that each setting promises, and the tests would notice if they did not.

The promise is worked out here a second time, token by token in plain Python. `MUTANTS` are
seeded bugs: sampling.py with one piece of source replaced must fail the very same test.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from math import exp, inf, log
from types import ModuleType

import numpy as np
import pytest

from edgedec.errors import UsageError
from edgedec.sampling import distributions as sampling
from edgedec.testing.stats import chi_square, critical_value

DRAWS = 20_000
LOGITS = np.array([1.0, -0.5, 2.0, 0.3, 1.6, -1.2, 0.9, 1.2], np.float32)
CONTEXT = [0, 2, 5, 2, 2, 4, 7, 4]
N_PROMPT = 3

Scores = dict[int, float]


def _softmax(scores: Scores) -> Scores:
    total = sum(exp(s) for s in scores.values())
    return {t: exp(s) / total for t, s in scores.items()}


def _renormalised(p: Scores) -> Scores:
    return {t: x / sum(p.values()) for t, x in p.items()}


def _heated(temperature: float) -> Scores:
    return _softmax({t: float(s) / temperature for t, s in enumerate(LOGITS)})


def _top(p: Scores, k: int) -> Scores:
    best = sorted(p, key=lambda t: (-p[t], t))[:k]
    return _renormalised({t: p[t] for t in best})


def _nucleus(p: Scores, mass: float, key: Callable[[int], float]) -> Scores:
    """The fewest tokens, in the order of `key`, that reach `mass`."""
    kept: Scores = {}
    for t in sorted(p, key=key):
        if sum(kept.values()) < mass:
            kept[t] = p[t]
    return _renormalised(kept)


def _likely(p: Scores, mass: float) -> Scores:
    return _nucleus(p, mass, lambda t: -p[t])


def _typical(p: Scores, mass: float) -> Scores:
    entropy = -sum(x * log(x) for x in p.values())
    return _nucleus(p, mass, lambda t: abs(-log(p[t]) - entropy))


def _share(p: Scores, share: float) -> Scores:
    return _renormalised({t: x for t, x in p.items() if x >= share * max(p.values())})


def _shifted(shift: Callable[[int, float], float]) -> Scores:
    return _softmax({t: shift(t, float(s)) for t, s in enumerate(LOGITS)})


def _repeated(t: int, s: float) -> float:
    return s if t not in CONTEXT else s / 1.8 if s > 0 else s * 1.8


OUTPUT = Counter(CONTEXT[N_PROMPT:])
BIAS = {1: 2.0, 4: -1.0, 2: -inf}

PROMISES: dict[str, tuple[dict[str, object], Callable[[], Scores]]] = {
    "plain": ({}, lambda: _heated(1.0)),
    "temperature": ({"temperature": 0.6}, lambda: _heated(0.6)),
    "hot": ({"temperature": 2.5}, lambda: _heated(2.5)),
    "top_k": ({"top_k": 3}, lambda: _top(_heated(1.0), 3)),
    "top_p": ({"top_p": 0.75}, lambda: _likely(_heated(1.0), 0.75)),
    "min_p": ({"min_p": 0.25}, lambda: _share(_heated(1.0), 0.25)),
    "typical_p": ({"typical_p": 0.5}, lambda: _typical(_heated(1.0), 0.5)),
    "repetition_penalty": ({"repetition_penalty": 1.8}, lambda: _shifted(_repeated)),
    "presence_penalty": (
        {"presence_penalty": 0.9},
        lambda: _shifted(lambda t, s: s - 0.9 * (t in OUTPUT)),
    ),
    "frequency_penalty": (
        {"frequency_penalty": 0.6},
        lambda: _shifted(lambda t, s: s - 0.6 * OUTPUT[t]),
    ),
    "logit_bias": ({"logit_bias": BIAS}, lambda: _shifted(lambda t, s: s + BIAS.get(t, 0.0))),
    "top_k, top_p": ({"top_k": 4, "top_p": 0.8}, lambda: _likely(_top(_heated(1.0), 4), 0.8)),
    "top_p, min_p": (
        {"temperature": 1.5, "top_p": 0.8, "min_p": 0.5},
        lambda: _share(_likely(_heated(1.5), 0.8), 0.5),
    ),
    "top_p, typical_p": (
        {"temperature": 1.5, "top_p": 0.8, "typical_p": 0.5},
        lambda: _typical(_likely(_heated(1.5), 0.8), 0.5),
    ),
    "all the cuts": (
        {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.4, "typical_p": 0.8},
        lambda: _typical(_share(_likely(_top(_heated(1.5), 6), 0.9), 0.4), 0.8),
    ),
}


def _fit(module: ModuleType, name: str) -> tuple[float, float]:
    """Draws of `module` against the promise -> (statistic, critical value)."""
    settings, promise = PROMISES[name]
    s = module.Sampling(**{"temperature": 1.0, **settings})
    p = module.probs(LOGITS, s, CONTEXT, N_PROMPT)
    rng = np.random.default_rng(11)
    counts = Counter(module.draw(p, rng) for _ in range(DRAWS))
    want = promise()
    tokens = range(len(LOGITS))
    return chi_square([counts[t] for t in tokens], [want.get(t, 0.0) for t in tokens])


@pytest.mark.parametrize("name", PROMISES)
def test_draws_keep_the_promise(name: str) -> None:
    statistic, critical = _fit(sampling, name)
    assert statistic < critical


KEEP = "        ids, scores, p = _keep(ids, scores, p, keep)\n"
CUTS = (
    "    if mass < 1:\n" + KEEP + "        keep = nucleus(p / p.sum(), scores, mass)\n",
    "    if sampling.min_p > 0:\n" + KEEP + "        keep = p >= sampling.min_p * p.max()\n",
)
MUTANTS = [
    ("temperature", "p /= temperature", "p /= temperature**2", "temperature applied twice"),
    ("temperature", "p /= temperature", "p *= temperature", "temperature upside down"),
    ("temperature", "p /= temperature", "p /= 1.0", "temperature forgotten"),
    ("plain", "u * cdf[-1]", "u * u", "a number that is not uniform"),
    ("plain", ', side="right"))', ") + 1)", "draws the next token's neighbour"),
    ("top_k, top_p", "nucleus(p / p.sum(), scores, mass)", "nucleus(p, scores, mass)", "normalisation forgotten"),
    ("top_p, typical_p", " typical(p / p.sum(),", " typical(p,", "renormalisation forgotten"),
    ("top_k", "kth_largest(scores, k)", "kth_largest(scores, k + 1)", "top-k keeps one too many"),
    ("top_k", "kth_largest(scores, k)", "kth_largest(scores, k - 1)", "top-k keeps one too few"),
    ("top_p", "dropped > 1 - mass)), 1)", "dropped > 1 - mass)) - 1, 1)", "top-p keeps one too few"),
    ("top_p", "dropped > 1 - mass)), 1)", "dropped > 1 - mass)) + 1, 1)", "top-p keeps one too many"),
    ("top_p", "np.sum(dropped > 1 - mass)", "np.sum(dropped > mass)", "top-p drops what it should keep"),
    (
        "min_p",
        "sampling.min_p * p.max()",
        "sampling.min_p * p.sum()",
        "min-p absolute, not relative to the top",
    ),
    ("typical_p", "surprise - np.sum(p * surprise)", "surprise", "typical without the entropy"),
    (
        "typical_p",
        "np.cumsum(p[order]) < mass)",
        "np.cumsum(p[order]) < mass) - 1",
        "typical keeps one too few",
    ),
    (
        "repetition_penalty",
        "s * repetition, s / repetition",
        "s / repetition, s / repetition",
        "one rule for both signs",
    ),
    (
        "repetition_penalty",
        "context[context < len(scores)], sampling",
        "context[n_prompt:][context[n_prompt:] < len(scores)], sampling",
        "prompt ignored",
    ),
    ("presence_penalty", "context[max(first, n_prompt) :]", "context[first:]", "prompt counted"),
    (
        "presence_penalty",
        "presence + frequency * counts",
        "presence * counts",
        "presence counted like frequency",
    ),
    (
        "frequency_penalty",
        "frequency * counts",
        "frequency * (counts > 0)",
        "frequency counted like presence",
    ),
    ("frequency_penalty", "scores[used] -=", "scores[used] +=", "a penalty that rewards"),
    ("logit_bias", "scores[token] += bias", "scores[token] += bias / 2", "bias halved"),
    ("logit_bias", "scores[token] += bias", "pass", "bias forgotten"),
    ("top_p, min_p", "".join(CUTS), "".join(reversed(CUTS)), "cuts in another order"),
]


@pytest.mark.parametrize(("name", "old", "new"), [m[:3] for m in MUTANTS], ids=[m[3] for m in MUTANTS])
def test_seeded_bugs_are_caught(name: str, old: str, new: str) -> None:
    source = inspect.getsource(sampling)
    assert source.count(old) == 1, f"distributions.py was reworded: give this mutant new words for {old!r}"
    mutant = ModuleType(sampling.__name__)
    exec(compile(source.replace(old, new), "mutant", "exec"), mutant.__dict__)
    statistic, critical = _fit(mutant, name)
    assert statistic > critical


# --- chi_square itself ---


def test_the_worked_example() -> None:
    statistic, critical = chi_square([48, 52], [0.5, 0.5], p=0.05)
    assert statistic == pytest.approx(0.16)
    assert critical == pytest.approx(3.84, rel=0.03)


@pytest.mark.parametrize(
    ("degrees", "p", "table", "within"),
    [(2, 0.05, 5.991, 0.01), (10, 0.01, 23.209, 0.01), (30, 0.001, 59.703, 0.01), (3, 1e-4, 21.108, 0.04)],
)
def test_critical_values_against_the_table(degrees: int, p: float, table: float, within: float) -> None:
    assert critical_value(degrees, p) == pytest.approx(table, rel=within)


def test_what_cannot_happen_must_not_happen_once() -> None:
    assert chi_square([500, 500, 1], [0.5, 0.5, 0.0])[0] == inf


def test_small_bins_are_pooled_and_one_bin_is_no_test() -> None:
    assert chi_square([50, 40, 3, 3], [50, 40, 3, 3])[1] == critical_value(2, 1e-4)
    assert chi_square([50, 40, 3, 1], [50, 40, 3, 1])[1] == critical_value(1, 1e-4)
    for counts, expected in ([3, 3], [3, 3]), ([10], [10]), ([], []), ([1, 2], [1, 2, 3]):
        with pytest.raises(UsageError):
            chi_square(counts, expected)
