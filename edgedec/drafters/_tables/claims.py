"""How likely a table's tokens are to be right: claims, corrected by experience with their depth, context and rank."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.drafters._tables.ranked import total_of

ORDER = 3  # tokens of the longest context
_DEPTHS = 4  # deeper counts as this deep
_STRENGTH = 8.0  # claims that a cell must have made before experience weighs as much as they
_FORGET = 1024.0
_MOST = 0.97


class RankRecord:
    """Claims and outcomes, by cell [draft drawn or not, depth, order, rank]. `scale`: the factor on a cell's claims."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.shape = (2, _DEPTHS, ORDER, k)
        n = 2 * _DEPTHS * ORDER * k
        self.claimed, self.came, self.scale = [0.0] * n, [0.0] * n, [1.0] * n

    def cell(self, drawn: bool, depth: int, order: int) -> int:
        """Where the ranks of these nodes begin."""
        return ((drawn * _DEPTHS + min(depth, _DEPTHS - 1)) * ORDER + order - 1) * self.k

    def note(self, at: int, claim: float, came: bool) -> None:
        self.claimed[at] += claim
        self.came[at] += came
        if self.claimed[at] > _FORGET:
            self.claimed[at] /= 2
            self.came[at] /= 2
        self.scale[at] = (self.came[at] + _STRENGTH) / (self.claimed[at] + _STRENGTH)

    def take_up(self, claimed: list[float], came: list[float]) -> None:
        self.claimed, self.came = claimed, came
        self.scale = [(b + _STRENGTH) / (a + _STRENGTH) for a, b in zip(claimed, came, strict=True)]


def together(claims: Sequence[float]) -> list[float]:
    """Claims of siblings, each scaled by its own record: at most one of them comes true, so their sum is at most 1."""
    capped = [min(claim, _MOST) for claim in claims]
    total = total_of(capped)
    return [claim / total for claim in capped] if total > 1 else capped
