"""Speculative decoding of continuous values: the acceptance rule for Gaussian heads (CSpD).

Wang et al. 2024, Continuous Speculative Decoding for autoregressive image generation (rule read in the authors' code,
github.com/MarkXCloud/CSpD). Each place of the text is a vector instead of a token, which a diffusion head draws; its
last denoising step is a Gaussian with a diagonal deviation. A draft's vector x is accepted with min(1, p(x) / q(x)),
densities in the place of probabilities; otherwise the vector is drawn from the residual (p - q)+, by rejection: x from
p, kept with the probability max(0, p(x) - q(x)) / p(x). What is rejected ends the draft, as with tokens. So the vectors
have the target's joint law exactly. The residual takes one try a place in the mean: 1 / D tries, where D is both the
probability of a rejection and that of keeping a try.

Worked example:  p = N(1, 1), q = N(0, 1): x = 0.5 is accepted for sure, x = -0.5 with exp(-1)

Exact for heads whose law is one Gaussian. The paper's heads take many denoising steps and share the noise of all but
the last between draft and target, with a factor for the deviations of the earlier ones. Its release also divides
distances by 42 and rejects vectors one by one instead of as a prefix, which changes the law; neither is done here.
`first` places come from the target alone, as in the paper, where the draft is worst (15 % of an image).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, pi

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gaussian:
    """mean, deviation [d]: independent in each dimension."""

    mean: Vector
    deviation: Vector

    def draw(self, rng: np.random.Generator) -> Vector:
        return self.mean + self.deviation * rng.standard_normal(len(self.mean))

    def log_density(self, x: Vector) -> float:
        z = (x - self.mean) / self.deviation
        return float(-0.5 * (z @ z) - np.log(self.deviation).sum() - 0.5 * len(x) * log(2 * pi))


# The law of the vector after some vectors.
Head = Callable[[Sequence[Vector]], Gaussian]


@dataclass
class Counts:
    """calls of the target, accepted drafts, tries for residuals."""

    calls: int = 0
    accepted: int = 0
    tries: int = 0


def residual(p: Gaussian, q: Gaussian, rng: np.random.Generator, counts: Counts | None = None) -> Vector:
    """A draw from (p - q)+, normalised; p and q must differ."""
    counts = counts or Counts()
    while True:
        counts.tries += 1
        x = p.draw(rng)
        if rng.random() < -np.expm1(min(q.log_density(x) - p.log_density(x), 0.0)):
            return x


def verify(
    drafted: Sequence[Vector],
    laws: Sequence[Gaussian],
    targets: Sequence[Gaussian],
    rng: np.random.Generator,
    counts: Counts | None = None,
) -> list[Vector]:
    """The accepted drafts and one vector more. laws: what each was drawn from; targets: the target's laws after none,
    one, two … of them, which one call of the target gives."""
    counts = counts or Counts()
    for i, (x, q) in enumerate(zip(drafted, laws, strict=True)):
        p = targets[i]
        if log(max(rng.random(), 1e-300)) >= p.log_density(x) - q.log_density(x):
            return [*drafted[:i], residual(p, q, rng, counts)]
        counts.accepted += 1
    return [*drafted, targets[len(drafted)].draw(rng)]


def generate(
    target: Head, draft: Head, n: int, length: int, rng: np.random.Generator, first: int = 0
) -> tuple[list[Vector], Counts]:
    """n vectors of the target's law, in drafts of `length`; the first so many come from the target alone."""
    found, counts = list[Vector](), Counts()
    while len(found) < n:
        drafted, laws = list[Vector](), list[Gaussian]()
        for _ in range(0 if len(found) < first else min(length, n - len(found) - 1)):
            laws.append(draft([*found, *drafted]))
            drafted.append(laws[-1].draw(rng))
        targets = [target([*found, *drafted[:i]]) for i in range(len(drafted) + 1)]
        counts.calls += 1
        found += verify(drafted, laws, targets, rng, counts)
    return found, counts
