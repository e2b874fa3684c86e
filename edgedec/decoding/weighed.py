"""Draws under a constraint by checks of single tokens (`edgedec.sampling.awrs`), in a generation.

The random numbers of a token's draws come from the one number that any token takes, so that speculation repeats them.
The weights of tokens that are not in the text yet are kept by their path.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import numpy as np

from edgedec.decoding.constraint import Constraint, validated
from edgedec.decoding.logits import BaseProcessor, ConstraintMask, Early
from edgedec.decoding.messages import Stats
from edgedec.errors import UsageError
from edgedec.sampling import Logits, Probs, Sampling, distribution
from edgedec.sampling.awrs import Checks, Weighed, weighed_draw

_SEEDS = 2**53


def weighed_token(
    constraint: Constraint, scores: Logits, sampling: Sampling, u: float, stats: Stats, path: Sequence[int] = ()
) -> Weighed:
    """A token that is allowed after `path`, drawn by one number u in [0, 1), with its weight. stats: of the checks."""
    law, rng = distribution(scores, sampling), np.random.default_rng(int(u * _SEEDS))
    checks = Checks(lambda tokens: validated(constraint, tokens, path), lambda: constraint.mask(path))
    found = weighed_draw(law, checks, rng)
    if found.token < 0:
        raise UsageError("awrs: a dead end: no token that has any probability is allowed")
    stats.checks, stats.masks = stats.checks + checks.count, stats.masks + checks.masked
    return found


class Follower(BaseProcessor):
    """Follows the text with a constraint, in the place of its mask."""

    def __init__(self, mask: ConstraintMask) -> None:
        self._mask = mask

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        return logits

    def accept(self, token: int) -> None:
        self._mask.accept(token)

    def reset(self) -> None:
        self._mask.reset()

    def fork(self) -> Follower:
        return Follower(self._mask.fork())


class WeighedDraws:
    """The draws of one generation. stats: where weights and checks are counted."""

    def __init__(self, constraint: Constraint | None, sampling: Sampling, stats: Stats | None) -> None:
        if constraint is None or stats is None:
            raise UsageError("awrs: needs a constraint, and a model that writes one token after another")
        cuts = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0 or sampling.typical_p < 1
        if cuts or sampling.extended:
            raise UsageError(
                "awrs: weighs the whole law: leave out top_k, top_p, min_p and other cuts (top_k 0, top_p 1)"
            )
        self._constraint, self._sampling, self._stats = constraint, sampling, stats
        self._weights: dict[tuple[int, ...], float] = {}
        self._path: list[int] = []

    def draw(self, scores: Logits, path: Sequence[int], u: float) -> int:
        """The token after `path`; greedy: the largest that is allowed, without a weight."""
        self._begin(path)
        if self._sampling.temperature == 0:
            return self._largest(scores, path)
        found = weighed_token(self._constraint, scores, self._sampling, u, self._stats, path)
        self._weights[tuple(path)] = found.log_weight
        return found.token

    def masked(self, scores: Logits, path: Sequence[int]) -> Probs:
        """The law after `path` under the constraint, for verifiers that draw by themselves; its mass is the weight."""
        self._begin(path)
        law, mask = distribution(scores, self._sampling), self._constraint.mask(path)
        kept = mask[law.ids]
        mass = float(law.p[kept].sum())
        if mass <= 0:
            raise UsageError("awrs: a dead end: no token that has any probability is allowed")
        self._weights[tuple(path)] = float(np.log(mass))
        return Probs(law.ids[kept], law.p[kept] / mass)

    def accept(self, token: int) -> None:
        """Count the weight of a token that is in the text now."""
        self._stats.log_weight += self._weights.get(tuple(self._path), nan)
        self._path.append(int(token))

    def _begin(self, path: Sequence[int]) -> None:
        """Forget the paths of the call before."""
        if not path:
            self._weights.clear()
            self._path.clear()

    def _largest(self, scores: Logits, path: Sequence[int]) -> int:
        order = np.argsort(-scores, kind="stable")
        self._weights[tuple(path)] = 0.0
        for i in range(0, len(order), 4):
            some = order[i : i + 4].tolist()
            self._stats.checks += len(some)
            for token, fine in zip(some, validated(self._constraint, some, path), strict=True):
                if fine:
                    return int(token)
        raise UsageError("awrs: a dead end: no token is allowed")
