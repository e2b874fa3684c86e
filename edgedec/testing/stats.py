"""Statistics for tests of samplers: does a tally of draws fit a distribution? numpy only."""

from __future__ import annotations

from math import inf
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgedec.errors import UsageError

Floats = NDArray[np.float64]

SMALLEST_BIN = 5.0


def chi_square(counts: ArrayLike, expected: ArrayLike, p: float = 1e-4) -> tuple[float, float]:
    """Pearson's test. counts [n] observed, expected [n] -> (statistic, critical value at p).

    A sampler that is right exceeds the critical value with probability p; with a fixed seed it
    does so always or never. `expected` is scaled to the total of `counts`, so probabilities will do.
    Bins expecting fewer than 5 are merged; something observed where nothing is expected makes the
    statistic infinite, however small the tally.

        chi_square([48, 52], [0.5, 0.5], p=0.05) -> (0.16, about 3.75; the table says 3.84)
    """
    seen, want = np.asarray(counts, np.float64), np.asarray(expected, np.float64)
    if seen.shape != want.shape or seen.ndim != 1 or not seen.sum() > 0 or not want.sum() > 0:
        raise UsageError(f"chi_square: counts {seen.shape} and expected {want.shape}: one shape, not empty")
    if np.any(seen[want == 0] > 0):
        return inf, critical_value(max(len(seen) - 1, 1), p)
    seen, want = _merged(seen, want * (seen.sum() / want.sum()))
    if len(want) < 2:
        raise UsageError("chi_square: fewer than two bins expect 5, so the test could not fail; draw more")
    return float(((seen - want) ** 2 / want).sum()), critical_value(len(want) - 1, p)


def critical_value(degrees: int, p: float) -> float:
    """What a chi-square variable exceeds with probability p (Wilson and Hilferty 1931).

    Within 1% of the table at p = 0.05 from 2 degrees on (2% low at 1); at p = 1e-4 it is a little
    generous: 7% high at 1 degree, 3% at 3, under 1% from 10 on.
    """
    z = NormalDist().inv_cdf(1 - p)
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + z * spread**0.5) ** 3)


def _merged(seen: Floats, want: Floats) -> tuple[Floats, Floats]:
    """The bins in descending expectation, the small ones pooled; still small, the pool takes in one more.

    want 50 40 3 1 -> 50 44;  want 50 40 3 3 -> 50 40 6
    """
    order = np.argsort(-want, kind="stable")
    seen, want = seen[order], want[order]
    n = int(np.sum(want >= SMALLEST_BIN))
    if 0 < want[n:].sum() < SMALLEST_BIN:
        n = max(n - 1, 0)
    if want[n:].sum() == 0:
        return seen[:n], want[:n]
    return np.append(seen[:n], seen[n:].sum()), np.append(want[:n], want[n:].sum())
