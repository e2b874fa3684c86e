"""What a pass shows of the masked positions of a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime import CallResult, best

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# The best tokens that schedules get of each position.
BEST = 2


class Line(NamedTuple):
    """A row of a call's result, which predicts one position."""

    result: CallResult
    at: int


@dataclass(frozen=True, eq=False)
class SeenBlock:
    """positions [m], ascending: masked, of the block. tokens [m, k]: the best tokens, never the mask; scores, p [m, k]:
    their logits and probabilities; entropy [m] in nats, None if the schedule does not need it. before: the pass before
    in the same block; left: the passes that are left for these positions, 0: any number. given: positions that this
    pass fills anyway, which are none of these: with them a schedule needs none of its own.

    A row of the model's distribution is over all tokens; the mask is only left out of the best ones.
    """

    positions: Ints
    tokens: Ints
    scores: Floats
    p: Floats
    entropy: Floats | None = None
    before: SeenBlock | None = None
    left: int = 0
    given: int = 0

    @property
    def sure(self) -> Floats:
        """The probability of each position's best token [m]."""
        return self.p[:, 0]

    def surest(self, n: int = 1) -> list[int]:
        """The n positions of the largest probability, the earliest of equals first; ascending. Those that are given
        count."""
        return self.at_least((), n - self.given)

    def at_least(self, chosen: Sequence[int], n: int) -> list[int]:
        """The chosen positions, and the surest others if they are fewer than n."""
        given = set(chosen)
        if len(given) >= n:
            return sorted(given)
        order = self.positions[np.argsort(-self.sure, kind="stable")].tolist()
        return sorted([*given, *[i for i in order if i not in given][: n - len(given)]])

    def where(self, which: NDArray[np.bool_]) -> list[int]:
        """The positions where `which` [m] is true; the surest one if there is none, and none is given."""
        return self.positions[which].tolist() or self.surest()

    def between(self, start: int, end: int) -> SeenBlock:
        """Of the positions from `start` to `end` (excluded) only."""
        return self.only((self.positions >= start) & (self.positions < end))

    def only(self, kept: NDArray[np.bool_]) -> SeenBlock:
        """Of the positions where `kept` [m] is true."""
        names = ("positions", "tokens", "scores", "p", "entropy")
        parts = {name: array[kept] for name in names if (array := getattr(self, name)) is not None}
        return replace(self, **parts)

    def scaled(self, tokens: frozenset[int], factor: float) -> SeenBlock:
        """With the probability of these tokens multiplied by a factor."""
        if factor == 1 or not tokens:
            return self
        return replace(self, p=np.where(np.isin(self.tokens, list(tokens)), self.p * factor, self.p))


def see(lines: Mapping[int, Line], mask: int, entropy: bool, before: SeenBlock | None, left: int = 0) -> SeenBlock:
    """What rows say of the positions that they predict."""
    positions = np.array(sorted(lines), np.int64)
    rows = [_row(lines[position], mask, entropy) for position in positions.tolist()]
    tokens, scores, logsum, nats = (np.array(column) for column in zip(*rows, strict=True))
    p = np.exp(scores - logsum[:, None])
    return SeenBlock(positions, tokens.astype(np.int64), scores, p, nats if entropy else None, before, left)


def _row(line: Line, mask: int, entropy: bool) -> tuple[Sequence[int], Sequence[float], float, float]:
    """Of one row: the best tokens but the mask, their logits, the log-sum, and the entropy (0 unless it is needed)."""
    result, at = line
    if result.logits is None:
        assert result.ids is not None
        assert result.scores is not None
        assert result.logsum is not None
        nats = 0.0 if result.entropy is None else float(result.entropy[at])
        kept = np.flatnonzero(result.ids[at] != mask)[:BEST]
        return result.ids[at][kept].tolist(), result.scores[at][kept].tolist(), float(result.logsum[at]), nats
    logits = result.logits[at]
    banned = logits.copy()
    banned[mask] = -np.inf
    ids, scores = best(banned[None], BEST)
    wide = logits.astype(np.float64)
    top = wide.max()
    weights = np.exp(wide - top)
    logsum = float(top + np.log(weights.sum()))
    nats = logsum - float((weights * np.where(weights > 0, wide, 0)).sum() / weights.sum()) if entropy else 0.0
    return ids[0].tolist(), scores[0].tolist(), logsum, nats
