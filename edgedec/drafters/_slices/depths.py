"""Which exit to take, and how far to draft: what DEL (S12) chooses, by seconds that were measured.

A draft of n levels by the exit after layer E costs n calls of E layers and a readout, E layers for the last level, and
the other layers with the head for n + 1 rows. It brings 1 + r + ... + r^n tokens, r being how often this exit guesses
what the model says. The pair with the most tokens a second is taken, and none if plain decoding has more. What exits
that were used did bring a second outweighs that within some rounds, and corrects it for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.drafters import State
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters._slices.stack import Record
from edgedec.errors import UsageError
from edgedec.spec import ModelSpec

# An exit within this of the best is compared at every call; the others are at one call in so many.
_NEAR, SELDOM = 0.85, 8
# Rounds that the estimate is worth beside what was measured; another exit must promise so much more.
_WORTH, _BETTER, _FADE, _SLOW = 24.0, 1.04, 0.98, 0.99


class Depths:
    """What is known of some exits. `chosen`: its place in `layers`; `length`: levels to draft, 0: none pays."""

    def __init__(self, spec: ModelSpec, layers: Sequence[int], gamma: int) -> None:
        self.layers, self.costs = list(layers), SliceCosts(spec)
        self.ends = [spec.span(0, layer).stop for layer in layers]
        self.records = [Record(decay=_SLOW) for _ in layers]
        self.chosen, self.length, self._gamma, self._n = 0, gamma, gamma, spec.n_blocks
        self.near = [True] * len(self.layers)
        # Of the rounds that each exit drafted in: tokens, seconds, how many; fading.
        self._earned = [[0.0, 0.0, 0.0] for _ in layers]

    def level_seconds(self, place: int, readout: float) -> float:
        """Of one level; readout: its share of the multiply-adds of the head."""
        return self.costs.seconds(self.costs.blocks(0, self.ends[place]), self.costs.head * readout, 1)

    def row_seconds(self) -> float:
        """What one more row adds to a call of the whole stack."""
        costs, blocks = self.costs, self.costs.blocks(0, self._n)
        return max(0.0, costs.seconds(blocks, costs.head, 2) - costs.seconds(blocks, costs.head, 1))

    def payoff(self, place: int, readout: float) -> tuple[float, int]:
        """Tokens for the time of a plain call at the best length, and this length."""
        costs, end, rate = self.costs, self.ends[place], self.records[place].rate
        level, plain = self.level_seconds(place, readout), costs.plain
        last, rest = costs.seconds(costs.blocks(0, end), 0.0, 1), costs.blocks(end, self._n)
        found, best, tokens, power = 0.0, 1, 1.0, 1.0
        for n in range(1, self._gamma + 1):
            power *= rate
            tokens += power
            speed = tokens * plain / (n * level + last + costs.seconds(rest, costs.head, n + 1))
            if speed > found:
                found, best = speed, n
        return found, best

    def earn(self, tokens: int, seconds: float) -> None:
        """A round of the exit in use brought so many tokens in so many seconds."""
        for place, earned in enumerate(self._earned):
            new = (float(tokens), seconds, 1.0) if place == self.chosen else (0.0, 0.0, 0.0)
            earned[:] = [_FADE * old + more for old, more in zip(earned, new, strict=True)]

    def values(self, readout: float) -> list[float]:
        """Tokens for the time of a plain call, of each exit: as estimated, and as measured where it was used."""
        estimates, plain = [self.payoff(place, readout)[0] for place in range(len(self.layers))], self.costs.plain
        used = [(e, t / s * plain, n) for e, (t, s, n) in zip(estimates, self._earned, strict=True) if s]
        # How far estimates are off, by the exits that were used.
        rounds = sum(n for _, _, n in used)
        scale = (sum(n * real / e for e, real, n in used) + _WORTH) / (rounds + _WORTH)
        found = []
        for estimate, (tokens, seconds, n) in zip(estimates, self._earned, strict=True):
            real = tokens / seconds * plain if seconds else 0.0
            found.append((_WORTH * estimate * scale + n * real) / (_WORTH + n))
        return found

    def choose(self, readout: float) -> None:
        """The exit with the most tokens a second, and its length; no length if none beats plain decoding."""
        values = self.values(readout)
        best = max(values)
        if values[self.chosen] * _BETTER < best or not self.length:
            self.chosen = values.index(best)
        self.length = self.payoff(self.chosen, readout)[1] if best > 1.0 else 0
        self.near = [value >= _NEAR * best for value in values]

    def state(self) -> State:
        if not any(record.tested for record in self.records):
            return {}
        seen = [[record.right, record.tested, record.claimed] for record in self.records]
        return {"layers": np.array(self.layers, np.int64), "seen": np.array(seen)}

    def restore(self, state: State) -> None:
        layers, seen = state.get("layers"), state.get("seen")
        if layers is None or seen is None or layers.tolist() != self.layers or seen.shape != (len(layers), 3):
            raise UsageError(f"drafter exit: the state kept is not of exits {self.layers}; delete it")
        right, tested, claimed = seen.T
        if not bool(
            np.all((right >= 0) & (right <= tested) & (claimed >= 0) & (claimed <= tested) & (tested < np.inf))
        ):
            raise UsageError("drafter exit: the state kept counts what cannot be; delete it")
        self.records = [Record(right, tested, claimed, _SLOW) for right, tested, claimed in seen.tolist()]
