"""Schedules of products for a machine: tile sizes and prefetch distance of weights.

The order of sums does not depend on the schedule, so it changes the time but no byte of the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgedec.bundle.manifest import Tensor

# Tiles are of at most so many rows.
MOST_ROWS = 8


@dataclass(frozen=True)
class Schedule:
    """vectors: the number of native vectors of outputs in a tile of 1, 2, .. rows; ahead: prefetch distance in bytes of
    weights (0: leave it to the processor)."""

    vectors: tuple[int, ...]
    ahead: int = 0

    @property
    def rows(self) -> int:
        """Rows of the largest tile."""
        return len(self.vectors)


@dataclass(frozen=True)
class ProductShape:
    """The key of a schedule: a matrix of n outputs and k inputs; glu: half of the outputs gate the others."""

    format: str
    block: int
    zeros: bool
    n: int
    k: int
    glu: bool

    @classmethod
    def of(cls, t: Tensor, n: int, glu: bool) -> ProductShape:
        return cls(t.format, t.block, bool(t.zeros), n, t.shape[-1], glu)

    def __str__(self) -> str:
        zeros, glu = (word if is_so else "" for word, is_so in ((" zeros", self.zeros), (" glu", self.glu)))
        return f"{self.format} {self.block}{zeros} {self.n}x{self.k}{glu}"


# Defaults without a measurement, by lanes of a vector: sixteen registers of 8 lanes, or 32 of 16 or of 4.
DEFAULTS = {
    "x86-64-v3": Schedule((2, 2, 2, 2), 2048),
    "x86-64-v4": Schedule((1,) * MOST_ROWS, 2048),
    "aarch64-linux": Schedule((4, 4, 2, 2)),
    "aarch64-linux-i8mm": Schedule((4, 4, 2, 2)),
    "aarch64-android": Schedule((4, 4, 2, 2)),
}


@dataclass(frozen=True)
class Schedules:
    """The schedules of one machine: those that were measured, by product; and one for the rest."""

    machine: str
    measured: Mapping[str, Schedule] = field(default_factory=dict)

    def of(self, product: ProductShape) -> Schedule:
        return self.measured.get(str(product), DEFAULTS[self.machine])
