"""The blocks that a draft skips: evenly spread at first (Unified Layer Skipping), then by trials on known tokens
(SWIFT)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.drafters import State
from edgedec.drafters._slices.stack import block_costs, payoff
from edgedec.errors import UsageError
from edgedec.spec import ModelSpec

# The number of wins after which a set is adopted.
_WINS = 2
# The prior mean and spread of a block's harm to the rate, and the noise of a trial.
_HARM, _SPREAD, _NOISE = 0.05, 0.1, 0.12
_DECAY = 0.9

Skipped = tuple[int, ...]


def even(spec: ModelSpec, share: float) -> Skipped:
    """The blocks of `share` of the layers, evenly spread, the first and the last layer kept.

    six layers of two blocks, 0.5: layers 0 2 5 are kept -> blocks 2 3 6 7 8 9
    """
    n = spec.n_layers
    many = min(max(round(share * n), 1), n - 2)
    if many < 1:
        return ()
    kept = {round(x) for x in np.linspace(0, n - 1, n - many)}
    return tuple(block for layer in range(n) if layer not in kept for block in spec.span(layer, layer + 1))


class Search:
    """The search for the blocks to skip: `skipped`: the set in use, ascending; `rate`: its recent acceptance rate.

    Each block i has a harm w[i]: the rate of a set is about 1 - sum of w over it. The posterior of w is a normal
    distribution: `_precision` [n, n], and `_weight` [n] = precision @ mean.
    """

    def __init__(self, spec: ModelSpec, start: Skipped, gamma: int) -> None:
        self._costs, self._head = block_costs(spec)
        self._movable = np.array(spec.span(1, max(spec.n_layers - 1, 1)), np.int64)
        self._gamma, self._rng = gamma, np.random.default_rng(0)
        self.skipped, self.rate = start, -1.0
        self.trials = self.stale = 0
        self._won, self._wins = start, 0
        n = len(self._movable)
        self._precision = np.eye(n) / _SPREAD**2
        self._weight = np.full(n, _HARM / _SPREAD**2)

    def cost(self, skipped: Skipped) -> float:
        """The cost of one drafted token, in plain calls."""
        return 1.0 - sum([self._costs[block] for block in skipped])

    def value(self, skipped: Skipped, rate: float) -> float:
        """The tokens in the time of a plain call."""
        return payoff(rate, self.cost(skipped), self._gamma)[0]

    def candidate(self) -> Skipped:
        """The set to try next: the set in use if it was never tried, a set that won once, else alternately a draw of
        the model and a random change."""
        if self.rate < 0:
            return self.skipped
        if self._wins:
            return self._won
        return self._drawn() if self.trials % 2 else self._swapped()

    def promises(self, skipped: Skipped, rate: float) -> bool:
        """Whether this rate is high enough to try the set in use on the same text."""
        return self.value(skipped, rate) > self.value(self.skipped, self.rate)

    def add_trial(self, skipped: Skipped, rate: float, rival: float | None) -> None:
        """Add a set's rate, and the rate of the set in use on the same text (None: not tried)."""
        self.trials, self.stale = self.trials + 1, self.stale + 1
        self._learn(skipped, rate)
        if skipped == self.skipped:
            self._remember(rate)
            return
        if rival is not None:
            self._learn(self.skipped, rival)
            self._remember(rival)
        if rival is None or self.value(skipped, rate) <= self.value(self.skipped, rival):
            self._wins = 0
            return
        self._won, self._wins = skipped, self._wins + 1
        if self._wins >= _WINS:
            self.skipped, self.rate, self.stale, self._wins = skipped, rate, 0, 0

    def _remember(self, rate: float) -> None:
        self.rate = rate if self.rate < 0 else _DECAY * self.rate + (1 - _DECAY) * rate

    def _learn(self, skipped: Skipped, rate: float) -> None:
        """Bayesian linear regression, one more sample."""
        x = np.isin(self._movable, skipped).astype(float)
        self._precision += np.outer(x, x) / _NOISE**2
        self._weight += x * (1.0 - rate) / _NOISE**2

    def _drawn(self) -> Skipped:
        """Thompson sampling: the best set under one draw of the harms."""
        root = np.linalg.cholesky(self._precision)
        mean = np.linalg.solve(self._precision, self._weight)
        harm = np.maximum(mean + np.linalg.solve(root.T, self._rng.standard_normal(len(mean))), 0.0)
        order = np.argsort(harm / np.array(self._costs)[self._movable], kind="stable")
        rates = np.maximum(1.0 - np.cumsum(harm[order]), 0.0).tolist()
        sets = [tuple(sorted(self._movable[order[: n + 1]].tolist())) for n in range(len(order))]
        return max(zip(sets, rates, strict=True), key=lambda pair: self.value(*pair))[0]

    def _swapped(self) -> Skipped:
        """One block in, one out, or one of the two."""
        skipped = set(self.skipped)
        outside = [b for b in self._movable.tolist() if b not in skipped]
        way = int(self._rng.integers(3))
        if way != 1 and len(skipped) > 1:
            skipped.remove(int(self._rng.choice(sorted(skipped))))
        if way != 2 and outside:
            skipped.add(int(self._rng.choice(outside)))
        return tuple(sorted(skipped))

    def state(self) -> State:
        if self.rate < 0:
            return {}
        return {
            "skipped": np.array(self.skipped, np.int64),
            "seen": np.array([self.rate, self.trials, self.stale], np.float64),
            "precision": self._precision,
            "weight": self._weight,
        }

    def restore(self, state: State) -> None:
        n = len(self._movable)
        shapes = {"seen": (3,), "precision": (n, n), "weight": (n,)}
        if state.keys() != {"skipped", *shapes} or any(state[key].shape != shape for key, shape in shapes.items()):
            raise UsageError("drafter skip: the state kept is not of this model and search; delete it")
        if not all(np.isfinite(state[key]).all() for key in shapes):
            raise UsageError("drafter skip: the state kept says what cannot be; delete it")
        try:
            np.linalg.cholesky(state["precision"])
        except np.linalg.LinAlgError:
            raise UsageError("drafter skip: the state kept says what cannot be; delete it") from None
        self._resume(state)
        self._precision, self._weight = state["precision"].astype(float), state["weight"].astype(float)

    def _resume(self, state: State) -> None:
        """Restore the set in use and its statistics."""
        skipped: Sequence[int] = state["skipped"].ravel().tolist()
        rate, trials, stale = state["seen"].tolist()
        known = 0 <= rate <= 1 and min(trials, stale) >= 0 and max(trials, stale) < np.inf
        if not known or not skipped or sorted(set(skipped) & set(self._movable.tolist())) != list(skipped):
            raise UsageError("drafter skip: the state kept says what cannot be; delete it")
        self.skipped, self.rate = tuple(skipped), float(rate)
        self.trials, self.stale, self._wins = int(trials), int(stale), 0
