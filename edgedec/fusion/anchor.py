"""Anchored decoding: as near to a risky model as a budget of divergence from a safe one allows (lossy).

The rule rests on a third party's copy of the authors' library. With k nats for each token, the
budget of token t is k_t = max(0, (t + 1) k - debt - spent), `spent` being the sum of KL(p | safe) of the tokens before:
what is not spent is kept. The risky distribution is taken as it is where KL(risky | safe) <= k_t; else
p ~ safe^(1-θ) risky^θ with KL(p | safe) = k_t, by Newton's method within bounds and bisections, of which the lower end
counts. So the sum stays within (t + 1) k at every prefix. It is the divergence of distributions, not of the text drawn.

Both distributions are those after penalties, constraint, temperature and cuts. Greedy takes the likeliest token of p at
temperature 1. debt: mean of the n largest log(risky / safe) > 0 of the prompt's tokens; the authors' n was not to be
found, so it is an option, 0 (no debt) by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log
from typing import Annotated, Self

import numpy as np

from edgedec.decoding.gathering import Gathering, GatheringStep
from edgedec.decoding.logits import Early
from edgedec.errors import UsageError
from edgedec.fusion._base import WithCompanion, after
from edgedec.fusion._companion import Companion
from edgedec.fusion._facts import FusionFacts
from edgedec.fusion._prompt_gaps import prompt_gaps
from edgedec.fusion._source import Source, source_of
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.sampling import Floats, Logits, Probs

FACTS = FusionFacts(paper="Anchored Decoding", rests="a third party's copy of the authors' code")
# As in that code.
_NEWTON, _HALVINGS = 20, 12


def make(
    host: OpenedModel,
    k: Annotated[float, Opt("Nats of divergence from the safe model for each token; 0 is the safe model.", 0)],
    bundle: Annotated[str, Opt("The safe model, with the same tokens.")] = "",
    adapter: Annotated[str, Opt("The safe adapter: a file, or none for the model without one.")] = "",
    prompt: Annotated[str, Opt("The prompt of the safe text.")] = "",
    debt: Annotated[int, Opt("Charge the prompt's tokens: the mean of so many of the largest log-ratios.", 0)] = 0,
) -> Anchored:
    if not (bundle or adapter or prompt):
        raise UsageError("fuse anchor: needs bundle=, adapter= or prompt=: what is safe")
    if prompt and debt:
        raise UsageError("fuse anchor: debt: not with prompt=, whose text has another prompt")
    companion = Companion(source_of(host, "fuse anchor", bundle, adapter, prompt), "fuse anchor")
    return Anchored(companion, k, debt, Source(host.runtime), host.eos)


class Anchored(WithCompanion):
    """risky: where the text's own model runs, for the debt; special: tokens that it does not count."""

    def __init__(
        self,
        companion: Companion,
        k: float,
        debt: int = 0,
        risky: Source | None = None,
        special: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(companion)
        self._k, self._counted, self._risky, self._special = k, debt, risky, special
        self._start()

    def _start(self) -> None:
        self.debt: float | None = None if self._counted else 0.0
        self.tokens, self.spent = 0, 0.0
        self._costs: dict[tuple[int, ...], float] = {}

    def gather(self, step: GatheringStep) -> Gathering:
        """The safe text's rows, after both readings of the prompt if there is a debt to measure."""
        if self.debt is None and self._risky is not None:
            gaps = yield from prompt_gaps(step.context, self._risky, self.companion.source)
            ids = step.context.ids[1 : step.context.n_prompt]
            some = sorted((gap for gap, token in zip(gaps, ids, strict=True) if gap > 0 and token not in self._special))
            largest = some[-self._counted :]
            self.debt = sum(largest) / len(largest) if largest else 0.0
        yield from super().gather(step)

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        return logits

    def other(self, path: Sequence[int]) -> Logits:
        return self.companion.logits(path)

    def fuse(self, own: Probs, other: Probs, path: Sequence[int]) -> Probs:
        """own: risky; other: safe."""
        found, cost = anchored(own, other, self.budget(path))
        self._costs[tuple(path)] = cost
        return found

    def budget(self, path: Sequence[int] = ()) -> float:
        """k_t of the token after a path."""
        if self._k == inf:
            return inf
        spent = self.spent + sum(self._costs[tuple(path[:n])] for n in range(len(path)))
        return max(0.0, (self.tokens + len(path) + 1) * self._k - (self.debt or 0.0) - spent)

    def accept(self, token: int) -> None:
        super().accept(token)
        self.tokens, self.spent = self.tokens + 1, self.spent + self._costs.get((), 0.0)
        left = ((after(path, token), cost) for path, cost in self._costs.items())
        self._costs = {path: cost for path, cost in left if path is not None}

    def reset(self) -> None:
        super().reset()
        self._start()

    def fork(self) -> Self:
        twin = super().fork()
        twin._costs = dict(self._costs)
        return twin


def anchored(risky: Probs, safe: Probs, budget: float) -> tuple[Probs, float]:
    """The distribution nearest to `risky` on the path from `safe`, and its divergence from `safe`: at most `budget`.

    Worked example, risky .9 .1, safe .5 .5, budget .1:  θ = .43 -> .72 .28
    """
    if budget == inf:
        return risky, 0.0  # not counted: nothing is ever short
    if budget <= 0:
        return safe, 0.0
    _, at_risky, at_safe = np.intersect1d(risky.ids, safe.ids, assume_unique=True, return_indices=True)
    if not len(at_safe):
        return safe, 0.0
    tilt = _Tilt(safe.p[at_safe], risky.p[at_risky])
    whole = len(at_risky) == len(risky.ids)
    if (cost := tilt.cost(1.0)) <= budget:
        return (risky if whole else Probs(risky.ids[at_risky], tilt.p(1.0))), cost
    if tilt.cost(0.0) > budget:
        return safe, 0.0
    theta = tilt.solve(budget)
    p = tilt.p(theta)
    kept = p > 0
    return Probs(safe.ids[at_safe][kept], p[kept] / p[kept].sum()), tilt.cost(theta)


class _Tilt:
    """safe^(1-θ) risky^θ, normalised, on the tokens that both have."""

    def __init__(self, safe: Floats, risky: Floats) -> None:
        self._safe = np.log(safe)
        self._ratio = np.log(risky) - self._safe

    def p(self, theta: float) -> Floats:
        weights = self._safe + theta * self._ratio
        weights = np.exp(weights - weights.max())
        found: Floats = weights / weights.sum()
        return found

    def cost(self, theta: float) -> float:
        """The divergence from the safe distribution, which rises with θ."""
        weights = self._safe + theta * self._ratio
        top = weights.max()
        normaliser = top + log(float(np.exp(weights - top).sum()))
        return max(theta * float((self.p(theta) * self._ratio).sum()) - normaliser, 0.0)

    def slope(self, theta: float) -> float:
        """The derivative of the cost: θ times the variance of the log-ratio."""
        p = self.p(theta)
        mean = float((p * self._ratio).sum())
        return theta * float((p * (self._ratio - mean) ** 2).sum())

    def solve(self, budget: float) -> float:
        """The largest θ, but for the width of the last bisection, that costs no more than the budget."""
        low, high, theta = 0.0, 1.0, budget / (1 + budget)
        for _ in range(_NEWTON):
            gap = self.cost(theta) - budget
            low, high = (theta, high) if gap <= 0 else (low, theta)
            slope = self.slope(theta)
            theta -= gap / slope if slope > 0 else inf
            if not low < theta < high:
                theta = (low + high) / 2
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.cost(middle) <= budget else (low, middle)
        return low
