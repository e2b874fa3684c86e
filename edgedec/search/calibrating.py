"""The entropy above which a model's likeliest token is more likely wrong than right (AdaDec, arXiv:2506.08980).

A logistic regression of "the true token is not the likeliest one" on the entropy of the next token, with both classes
weighing the same; the threshold is where it says one half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

_STEPS, _PULL = 100, np.array([1e-4, 0.0])


def threshold(entropies: Sequence[float] | NDArray[np.float64], wrong: Sequence[bool] | NDArray[np.bool_]) -> float:
    """The entropy at which the regression is undecided.

    Worked example: entropies 0, 1, 2, 3, of which 2 and 3 are wrong -> 1.5
    """
    x, y = np.asarray(entropies, np.float64), np.asarray(wrong, np.float64)
    if not 0 < y.sum() < len(y):
        raise UsageError("calibrate: needs tokens that the model ranks first and tokens that it does not")
    weights = np.where(y > 0, 0.5 / y.sum(), 0.5 / (len(y) - y.sum()))
    a, b = _fitted(x, y, weights)
    if a <= 0:
        raise UsageError("calibrate: the model is no less sure where it is wrong: look-ahead has no threshold here")
    return -b / a


def _fitted(x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, float]:
    """Slope and offset, by Newton's method with a slight pull of the slope towards 0, which separable data needs."""
    rows, found = np.stack([x, np.ones_like(x)], 1), np.zeros(2)
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(rows @ found, -40, 40)))
        gradient = rows.T @ (weights * (p - y)) + _PULL * found
        hessian = (rows * (weights * p * (1 - p))[:, None]).T @ rows + np.diag(_PULL)
        step = np.linalg.solve(hessian, gradient)
        found -= step
        if np.abs(step).max() < 1e-10:
            break
    return float(found[0]), float(found[1])


class NextLaw(Protocol):
    """A session, as far as this needs one."""

    def append(self, ids: Sequence[int]) -> None: ...

    def next_probs(self) -> NDArray[np.float64]: ...


def calibrate(new_session: Callable[[], NextLaw], texts: Iterable[Sequence[int]], most: int = 512) -> float:
    """The threshold of a model on texts of tokens, of which at most `most` tokens each are read."""
    entropies, wrong = list[float](), list[bool]()
    for text in texts:
        session = new_session()
        for before, token in pairwise(text[:most]):
            session.append([before])
            p = session.next_probs()
            known = p[p > 0]
            entropies.append(float(-(known * np.log(known)).sum()))
            wrong.append(int(np.argmax(p)) != token)
    return threshold(entropies, wrong)
