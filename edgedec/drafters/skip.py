"""Draft with the target itself, some attention and MLP blocks skipped; which ones is searched while it serves.

Unified Layer Skipping (S13) gives the start: so many layers skipped, evenly spread, the first and the last kept.
SWIFT (S10) goes on from there: now and then another set guesses the latest known tokens, all in one call. If it
brings more tokens for the time of a plain call than the set in use does on the same text, twice, it takes over.
Sets to try are the one in use with something swapped, and draws from a Bayesian model of what each block is for.

The blocks before the first skipped one say what they say in the whole stack: verification goes on behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, StepResult, State
from edgedec.drafters._stack import (
    READING,
    Guess,
    Limits,
    Record,
    Slice,
    Strand,
    block_costs,
    draft_chain,
    guesses,
    judged,
    payoff,
)
from edgedec.errors import UsageError
from edgedec.spec import ModelSpec

# A trial guesses so many known tokens; it comes after so many calls at the earliest.
_WINDOW, _APART = 32, 16
# The search ends after so many trials that changed nothing; a set must win so often to be taken.
_PATIENCE, _WINS = 50, 2
# What skipping a block costs of the rate: before anything is known, and how far a trial may be off.
_HARM, _SPREAD, _NOISE = 0.05, 0.1, 0.12
_DECAY = 0.9

Floats = NDArray[np.float64]
Skipped = tuple[int, ...]


def make(host: DrafterContext, skip: float = 0.45, gamma: int = 6, search: float = 0.03) -> Skip:
    """skip: the share of layers to start with; gamma: the longest draft; search: the share of the calls' time
    that trials may take (0: the set stays as it is)."""
    if not 0 < skip < 1 or gamma < 1 or not search >= 0:
        raise UsageError(
            f"drafter skip: skip={skip}, gamma={gamma}, search={search}: need between 0 and 1, 1 or more, 0 or more"
        )
    return Skip(host, skip, gamma, search)


class Skip(BaseDrafter):
    def __init__(self, host: DrafterContext, skip: float, gamma: int, search: float) -> None:
        self._runtime, self._gamma, self._share = host.runtime, gamma, search
        self.search = Search(host.runtime.spec, even(host.runtime.spec.n_layers, skip), gamma)
        self._guessed: list[Guess] = []
        self._calls, self._spent, self._time = 0, 0.0, 0.0
        self._record = Record()

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self._guessed = []
        pending = context.pending()
        if nodes < 1 or len(pending) > READING or not self.search.skipped:
            return Draft()
        if self._due(context):
            self._trial(context)
        part = self._slice(self.search.skipped)
        least = max(min_path_prob, self.search.cost(self.search.skipped))
        limits = Limits(min(self._gamma, nodes), least, trust=self._record.trust)
        draft, self._guessed = draft_chain(Strand(self._runtime, context.cache, pending), part, limits)
        return draft

    def observe(self, step: StepResult) -> None:
        self._calls += 1
        self._time += seen.seconds
        for hit, sure in judged(self._guessed, seen.picked):
            self._record.saw(hit, sure)
        self._guessed = []

    def reset(self) -> None:
        self._guessed = []

    def state(self) -> State:
        return self.search.state()

    def restore(self, state: State) -> None:
        if state:
            self.search.restore(state)

    def report(self) -> dict[str, Any]:
        search = self.search
        rate = round(self._record.rate, 3)
        return {"skipped": list(search.skipped), "trials": search.trials, "rate": rate, "tried": round(search.rate, 3)}

    def _slice(self, skipped: Skipped) -> Slice:
        blocks = self._runtime.spec.blocks()
        rest = [block for block in blocks[skipped[0] :] if block not in skipped]
        return Slice(blocks[: skipped[0]], rest)

    def _due(self, context: Context) -> bool:
        """May a trial be made? A set that won once is heard again soon, by the same rules."""
        if self.search.stale >= _PATIENCE or self._calls < _APART or context.cache.length <= _WINDOW:
            return False
        return self._share > 0 and self._spent <= self._share * self._time

    def _trial(self, context: Context) -> None:
        began = perf_counter()
        search, self._calls = self.search, 0
        skipped = search.candidate()
        rate = self._match(context, skipped)
        rival = None
        if skipped != search.skipped and search.promises(skipped, rate):
            rival = self._match(context, search.skipped)
        search.tried(skipped, rate, rival)
        self._spent += perf_counter() - began

    def _match(self, context: Context, skipped: Skipped) -> float:
        """How much of the latest known tokens the set guesses. It runs where they lie in the cache, so that
        positions and all that came before are right; what lay there is put back."""
        cache, n = context.cache, _WINDOW
        stop = cache.length
        start = stop - n
        kept = cache.rows(start, stop).copy()
        try:
            cache.truncate(start)
            part = self._slice(skipped)
            strand = Strand(self._runtime, cache, context.ids[start:stop])
            hidden = strand.run(strand.begin(part.shared), part.rest)
            found = guesses(self._runtime, cache, hidden, 1)[0][:, 0]
        finally:
            cache.truncate(start)
            cache.append(kept)
        return float(np.mean(found == context.ids[start + 1 : stop + 1]))


def even(n_layers: int, share: float) -> Skipped:
    """The blocks of `share` of the layers, evenly spread, the first and the last layer kept.

    even(6, 0.5): layers 0 2 5 are kept -> blocks 2 3 6 7 8 9
    """
    many = min(max(round(share * n_layers), 1), n_layers - 2)
    if many < 1:
        return ()
    kept = {round(x) for x in np.linspace(0, n_layers - 1, n_layers - many)}
    return tuple(block for block in range(2 * n_layers) if block // 2 not in kept)


class Search:
    """Which blocks to skip: `skipped` is the set in use, ascending, `rate` how much it guessed of late.

    Each block i has a harm w[i]: the rate of a set is about 1 - sum of w over it. Known of w is a normal
    distribution: `_precision` [n, n], and `_weight` [n] = precision @ mean.
    """

    def __init__(self, spec: ModelSpec, start: Skipped, gamma: int) -> None:
        self._costs, self._head = block_costs(spec)
        self._movable = np.arange(2, 2 * spec.n_layers - 2)
        self._gamma, self._rng = gamma, np.random.default_rng(0)
        self.skipped, self.rate = start, -1.0
        self.trials = self.stale = 0
        self._won, self._wins = start, 0
        n = len(self._movable)
        self._precision = np.eye(n) / _SPREAD**2
        self._weight = np.full(n, _HARM / _SPREAD**2)

    def cost(self, skipped: Skipped) -> float:
        """Of one drafted token, in plain calls."""
        return 1.0 - sum([self._costs[block] for block in skipped])

    def value(self, skipped: Skipped, rate: float) -> float:
        """Tokens for the time of a plain call."""
        return payoff(rate, self.cost(skipped), self._gamma)[0]

    def candidate(self) -> Skipped:
        """The set to try now: the one in use if it never was, a winner again, else by model and by chance in turn."""
        if self.rate < 0:
            return self.skipped
        if self._wins:
            return self._won
        return self._drawn() if self.trials % 2 else self._swapped()

    def promises(self, skipped: Skipped, rate: float) -> bool:
        """Is that worth asking the set in use about the same text?"""
        return self.value(skipped, rate) > self.value(self.skipped, self.rate)

    def tried(self, skipped: Skipped, rate: float, rival: float | None) -> None:
        """A set's rate, and on the same text that of the set in use (None: not asked)."""
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
        """Thompson sampling: the best set if the harms were such as one draw of them says."""
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
            raise UsageError("drafter skip: the state kept is not of this model; delete it")
        skipped: Sequence[int] = state["skipped"].ravel().tolist()
        rate, trials, stale = state["seen"].tolist()
        known = all(np.isfinite(state[key]).all() for key in shapes) and 0 <= rate <= 1 and min(trials, stale) >= 0
        if not known or not skipped or sorted(set(skipped) & set(self._movable.tolist())) != list(skipped):
            raise UsageError("drafter skip: the state kept says what cannot be; delete it")
        try:
            np.linalg.cholesky(state["precision"])
        except np.linalg.LinAlgError:
            raise UsageError("drafter skip: the state kept says what cannot be; delete it") from None
        self.skipped, self.rate = tuple(skipped), float(rate)
        self.trials, self.stale, self._wins = int(trials), int(stale), 0
        self._precision, self._weight = state["precision"].astype(float), state["weight"].astype(float)
