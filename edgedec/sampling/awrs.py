"""Draws under a constraint that is checked a token at a time, each with a weight.

Adaptive weighted rejection sampling (Lipkin et al., 2025; text and authors' code): tokens are drawn from the law
without replacement until one is allowed. That one is drawn as if the law had been masked; what masking loses, the mass
of what is allowed, is estimated by the weight, without bias whatever was drawn: E[w 1{x}] = p(x).

    q_i = p_i / (1 - mass rejected before); token t is the first that is allowed
    w = prod_{i<t} (1 - q_i) x (1 if the next draw is allowed too, else q_t)

If a token has p of at least 2/3, draws with replacement need fewer checks: with r rejections before a = 2 accepted
draws, w = (a - 1) / (a + r - 1). Repeated draws are counted without being checked again.

After `most` checks the mask of all tokens is asked for, and the rest of the draws is made with it (our own choice): the
first allowed one from the masked law, with the weight that is expected, or with replacement with drawn numbers of
rejections. The law of tokens and E[w 1{x}] stay the same.

Worked example, p = (.5, .5), of which the second is allowed: if it is drawn first, the next draw is not allowed, and
w = q = .5; if it is drawn second, w = (1 - .5) x 1 = .5. Both are the mass of what is allowed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from math import inf, log, log1p
from typing import NamedTuple

import numpy as np

from edgedec.sampling.distributions import Floats, Mask, Probs

# From this probability on draws are made with replacement: 1 + 2 (1 - p) / p checks, below 2.
GEOMETRIC = 2 / 3
MOST = 4
# Below this share of the law's mass nothing is left.
_NOTHING = 1e-12


class Checks:
    """The checks of one draw. valid: of single tokens; mask: of all, after `most` of these; count: those made."""

    def __init__(
        self, valid: Callable[[Sequence[int]], Sequence[bool]], mask: Callable[[], Mask], most: int = MOST
    ) -> None:
        self._valid, self._mask, self._most, self.count, self.masked = valid, mask, most, 0, False

    def allowed(self, tokens: Sequence[int]) -> Sequence[bool]:
        self.count += len(tokens)
        return self._valid(tokens)

    @property
    def spent(self) -> bool:
        return self.count >= self._most

    def all(self, law: Probs) -> Probs | None:
        """The law of what is allowed, not normalised; None if that is nothing."""
        self.masked = True
        kept = self._mask()[law.ids] & (law.p > 0)
        return Probs(law.ids[kept], law.p[kept]) if kept.any() else None


class Weighed(NamedTuple):
    """A drawn token, -1 if none with mass is allowed, and the logarithm of its weight."""

    token: int
    log_weight: float


NONE = Weighed(-1, -inf)


def weighed_draw(law: Probs, checks: Checks, rng: np.random.Generator) -> Weighed:
    """Draw a token that is allowed from a law, with its weight."""
    draw = _with_replacement if float(law.p.max()) >= GEOMETRIC else _without_replacement
    return draw(law, checks, rng)


class _Left:
    """What is left of a law, of which tokens are drawn and taken out."""

    def __init__(self, law: Probs, rng: np.random.Generator) -> None:
        self._ids, self._rng = law.ids, rng
        self._p: Floats = law.p.astype(np.float64, copy=False)
        self._sums: Floats = np.cumsum(self._p)
        self._taken = list[int]()
        self.mass = float(self._sums[-1])

    def draw(self) -> int:
        """A place, drawn from what is left."""
        u = self._rng.random() * self.mass
        for place in self._taken:  # in order: a number above a taken place's beginning is one further on
            if u < self._sums[place] - self._p[place]:
                break
            u += float(self._p[place])
        place = int(np.searchsorted(self._sums, u, side="right"))
        return place if place < len(self._p) and self._has(place) else self._last()

    def _has(self, place: int) -> bool:
        return self._p[place] > 0 and place not in self._taken

    def _last(self) -> int:
        """The last place with mass: rounding may lead past it."""
        return next(int(place) for place in np.flatnonzero(self._p)[::-1] if place not in self._taken)

    def token(self, place: int) -> int:
        return int(self._ids[place])

    def take(self, place: int) -> float:
        """Take a place out; returns its share of what was left."""
        share = float(self._p[place]) / self.mass
        insort(self._taken, place)
        left = self.mass - float(self._p[place])
        # A difference of nearly equal numbers is none: what is left of little is added up anew.
        self.mass = left if left > 0.01 * float(self._sums[-1]) else self._added()
        return share

    def _added(self) -> float:
        kept = np.ones(len(self._p), bool)
        kept[self._taken] = False
        return float(self._p[kept].sum())


def _without_replacement(law: Probs, checks: Checks, rng: np.random.Generator) -> Weighed:
    left, log_weight = _Left(law, rng), 0.0
    total = left.mass
    ahead: list[tuple[int, float, bool]] = []
    while True:
        if not ahead:
            if left.mass <= _NOTHING * total:
                return NONE
            if checks.spent:
                return _from_mask(law, checks, rng)
            ahead = _checked(left, checks, 2)
        place, q, fine = ahead.pop(0)
        if fine:
            # The next draw, too: only the last may lack one.
            ahead = ahead or (_checked(left, checks, 1) if left.mass > _NOTHING * total else [])
            return Weighed(left.token(place), log_weight + (0.0 if ahead and ahead[0][2] else log(q)))
        log_weight += log1p(-q) if q < 1 else -inf


def _checked(left: _Left, checks: Checks, n: int) -> list[tuple[int, float, bool]]:
    """The next draws, at most n: places, their shares of what was left, and whether they are allowed."""
    drawn: list[tuple[int, float]] = []
    whole = left.mass
    while len(drawn) < n and left.mass > _NOTHING * whole:
        place = left.draw()
        drawn.append((place, left.take(place)))
    fine = checks.allowed([left.token(place) for place, _ in drawn])
    return [(place, share, valid) for (place, share), valid in zip(drawn, fine, strict=True)]


def _from_mask(law: Probs, checks: Checks, rng: np.random.Generator) -> Weighed:
    """A draw from all that is allowed; its weight is their mass."""
    kept = checks.all(law)
    if kept is None:
        return NONE
    left = _Left(kept, rng)
    return Weighed(left.token(left.draw()), log(left.mass / float(law.p.sum())))


def _with_replacement(law: Probs, checks: Checks, rng: np.random.Generator) -> Weighed:
    left, allowed = _Left(law, rng), set[int]()
    total, rejected, accepted, first = left.mass, 0, 0, -1
    while accepted < 2:
        if left.mass <= _NOTHING * total:
            return NONE
        # Draws of tokens that were rejected before are rejected again: their number is drawn.
        if (kept := left.mass / total) < 1:
            rejected += int(rng.geometric(kept)) - 1
        place = left.draw()
        if place not in allowed:
            if checks.spent:
                return _counted(law, checks, rng, first, (accepted, rejected))
            if not checks.allowed([left.token(place)])[0]:
                rejected += 1
                left.take(place)
                continue
            allowed.add(place)
        first = left.token(place) if first < 0 else first
        accepted += 1
    return Weighed(first, -log(1 + rejected))


def _counted(law: Probs, checks: Checks, rng: np.random.Generator, first: int, counts: tuple[int, int]) -> Weighed:
    """The rest of the draws with replacement, once the mass of what is allowed is known."""
    found, (accepted, rejected) = _from_mask(law, checks, rng), counts
    if found.token < 0:
        return NONE
    mass = min(float(np.exp(found.log_weight)), 1.0)
    rejected += sum(int(rng.geometric(mass)) - 1 for _ in range(2 - accepted))
    return Weighed(found.token if first < 0 else first, -log(1 + rejected))
