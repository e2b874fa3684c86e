"""The choice of an exit and of a draft length (DEL), by measured seconds.

A draft of n levels by the exit after layer E costs n calls of E layers and a readout, E layers for the last level, and
the other layers with the head for n + 1 rows. It gives 1 + r + ... + r^n tokens, r being the acceptance rate of this
exit. The pair with the most tokens per second is chosen, or none if plain decoding is faster. The measured tokens per
second of exits in use outweigh this estimate after some rounds, and correct it for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.drafters import State
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters._slices.stack import Record
from edgedec.errors import UsageError
from edgedec.spec import ModelSpec

# Exits within this factor of the best are compared at every call, the others at one call in SELDOM.
_NEAR, SELDOM = 0.85, 8
# The weight of the estimate in rounds; the factor by which another exit must be better; the decay of measurements.
_WORTH, _BETTER, _FADE, _SLOW = 24.0, 1.04, 0.98, 0.99


class Depths:
    """The statistics of the exits. `chosen`: the index of the exit in use in `layers`; `length`: levels to draft, 0 if
    none pays."""

    def __init__(self, spec: ModelSpec, layers: Sequence[int], gamma: int) -> None:
        self.layers, self.costs = list(layers), SliceCosts(spec)
        self.ends = [spec.span(0, layer).stop for layer in layers]
        self.records = [Record(decay=_SLOW) for _ in layers]
        self.chosen, self.length, self._gamma, self._n = 0, gamma, gamma, spec.n_blocks
        self.near = [True] * len(self.layers)
        # For each exit in use: tokens, seconds and number of its rounds, with decay.
        self._earned = [[0.0, 0.0, 0.0] for _ in layers]

    def level_seconds(self, place: int, readout: float) -> float:
        """The seconds of one level; readout: its share of the head's multiply-adds."""
        return self.costs.seconds(self.costs.blocks(0, self.ends[place]), self.costs.head * readout, 1)

    def row_seconds(self) -> float:
        """The seconds that one more row adds to a call of the whole stack."""
        costs, blocks = self.costs, self.costs.blocks(0, self._n)
        return max(0.0, costs.seconds(blocks, costs.head, 2) - costs.seconds(blocks, costs.head, 1))

    def payoff(self, place: int, readout: float) -> tuple[float, int]:
        """The tokens in the time of a plain call at the best length, and this length."""
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
        """Add the tokens and seconds of a round of the exit in use."""
        for place, earned in enumerate(self._earned):
            new = (float(tokens), seconds, 1.0) if place == self.chosen else (0.0, 0.0, 0.0)
            earned[:] = [_FADE * old + more for old, more in zip(earned, new, strict=True)]

    def values(self, readout: float) -> list[float]:
        """The tokens in the time of a plain call for each exit: estimated, and measured if it was used."""
        estimates, plain = [self.payoff(place, readout)[0] for place in range(len(self.layers))], self.costs.plain
        used = [(e, t / s * plain, n) for e, (t, s, n) in zip(estimates, self._earned, strict=True) if s]
        # The mean error of the estimates of exits in use.
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
