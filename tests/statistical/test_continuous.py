"""Continuous acceptance keeps the target's joint law (Kolmogorov and Smirnov); wrong rules are caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf, exp, sqrt

import numpy as np
import pytest

from edgedec.decoding import continuous
from edgedec.decoding.continuous import Gaussian, Vector, generate, residual, verify

# With p = 1e-5 the statistic of n draws is above this over the root of n.
LIMIT = sqrt(-0.5 * np.log(1e-5 / 2))
TEXTS = 3000


def far(values: Sequence[float], upto: Callable[[float], float]) -> float:
    """The Kolmogorov-Smirnov statistic times the root of n: the largest distance to the distribution function.

    0.5 alone and an even law on [0, 1] -> 0.5
    """
    x = sorted(values)
    n = len(x)
    return max(max(abs((i + 1) / n - upto(v)), abs(i / n - upto(v))) for i, v in enumerate(x)) * sqrt(n)


def normal(x: float) -> float:
    return 0.5 * (1 + erf(x / sqrt(2)))


def target(path: Sequence[Vector]) -> Gaussian:
    """Depends on the two vectors before."""
    last = path[-1] if path else np.array([0.3, -0.2])
    before = path[-2] if len(path) > 1 else np.zeros(2)
    return Gaussian(0.6 * last[::-1] - 0.2 * before, 0.7 + 0.3 * np.abs(np.tanh(last)))


def draft(path: Sequence[Vector]) -> Gaussian:
    """A worse model: another mean, and other deviations."""
    last = path[-1] if path else np.zeros(2)
    return Gaussian(0.5 * last[::-1] + np.array([0.25, 0.0]), np.array([0.9, 0.8]))


def errors(length: int, first: int = 0) -> tuple[list[float], continuous.Counts]:
    """The largest statistics of texts of four vectors: each coordinate, and the radius, over the target's deviation
    about the target's mean, which are independent standard normal if the joint law is the target's."""
    rng = np.random.default_rng(3)
    z, counts = list[list[float]](), continuous.Counts()
    for _ in range(TEXTS):
        text, done = generate(target, draft, 4, length, rng, first)
        counts.calls, counts.accepted = counts.calls + done.calls, counts.accepted + done.accepted
        counts.tries += done.tries
        laws = [target(text[:i]) for i in range(4)]
        z.append([float(v) for x, law in zip(text, laws, strict=True) for v in (x - law.mean) / law.deviation])
    found = [far(column, normal) for column in zip(*z, strict=True)]
    radii = [[row[2 * i] ** 2 + row[2 * i + 1] ** 2 for row in z] for i in range(4)]
    found += [far(radius, lambda r: 1 - exp(-r / 2)) for radius in radii]
    sums = [[(row[2 * i] + row[2 * i + 2]) / sqrt(2) for row in z] for i in range(3)]
    return found + [far(one, normal) for one in sums], counts


@pytest.mark.parametrize(("length", "first"), [(1, 0), (3, 0), (3, 1)])
def test_the_joint_law_is_kept(length: int, first: int) -> None:
    found, counts = errors(length, first)
    assert max(found) < LIMIT
    assert counts.accepted > TEXTS
    assert counts.calls < (4 if length == 1 else 3.3) * TEXTS
    if first:
        assert counts.calls > errors(3, 0)[1].calls


def test_a_residual_takes_one_try_a_place_in_the_mean() -> None:
    """Not one a rejection: 1 / D tries, and a rejection has the probability D."""
    rng, counts, n = np.random.default_rng(0), continuous.Counts(), 20000
    p, q = Gaussian(np.array([0.4]), np.ones(1)), Gaussian(np.zeros(1), np.ones(1))
    for _ in range(n):
        verify([q.draw(rng)], [q], [p, p], rng, counts)
    assert counts.tries / n == pytest.approx(1.0, abs=0.12)
    assert counts.accepted / n == pytest.approx(2 * normal(-0.2), abs=0.03), "the overlap of both"


def test_the_worked_example() -> None:
    p, q = Gaussian(np.ones(1), np.ones(1)), Gaussian(np.zeros(1), np.ones(1))
    rng = np.random.default_rng(1)
    for x, chance in ((0.5, 1.0), (-0.5, exp(-1.0))):
        hits = sum(verify([np.array([x])], [q], [p, p], rng)[0][0] == x for _ in range(2000))
        assert hits / 2000 == pytest.approx(chance, abs=0.04)
    left = [float(residual(p, q, rng)[0]) for _ in range(2000)]
    mass = 2 * normal(0.5) - 1
    assert min(left) > 0.5, "below it q is larger"
    assert far(left, lambda x: (normal(x - 1) - normal(x) + mass) / mass if x > 0.5 else 0.0) < LIMIT


def own_even(law: Gaussian, x: Vector, deviation: Vector) -> float:
    z = (x - law.mean) / deviation
    return float(-0.5 * z @ z)


def unfair(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    if rule == "draws again from p":
        monkeypatch.setattr(continuous, "residual", lambda p, q, rng, counts=None: p.draw(rng))
    elif rule == "distances over 42":  # of acceptance only, as in the release
        own = Gaussian.log_density
        monkeypatch.setattr(Gaussian, "log_density", lambda self, x: own(self, self.mean + (x - self.mean) / 42))
        monkeypatch.setattr(continuous, "residual", lambda p, q, rng, counts=None: p.draw(rng))
    elif rule == "accepts all":
        monkeypatch.setattr(continuous, "log", lambda x: -1e9)
    elif rule == "no deviations":
        monkeypatch.setattr(Gaussian, "log_density", lambda self, x: -0.5 * float(((x - self.mean) ** 2).sum()))
    elif rule == "hundred tries":  # what the release does after a hundred tries, here after one

        def once(p, q, rng, counts=None):  # type: ignore[no-untyped-def]
            x = p.draw(rng)
            return x if rng.random() < 1 - exp(min(q.log_density(x) - p.log_density(x), 0)) else p.draw(rng)

        monkeypatch.setattr(continuous, "residual", once)


@pytest.mark.parametrize(
    "rule", ["draws again from p", "distances over 42", "accepts all", "no deviations", "hundred tries"]
)
def test_wrong_rules_are_caught(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    unfair(monkeypatch, rule)
    assert max(errors(3)[0]) > LIMIT


def test_far() -> None:
    assert far([0.5], lambda x: x) == pytest.approx(0.5)
    rng = np.random.default_rng(2)
    assert far(rng.standard_normal(3000).tolist(), normal) < LIMIT
    assert far((rng.standard_normal(3000) + 0.1).tolist(), normal) > LIMIT
