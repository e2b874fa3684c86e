"""How products are written for a machine: what a tile holds, and how far ahead weights are asked for.

Whatever the schedule, an output is the same sums in the same order, so a choice changes the time and no byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgedec.bundle.manifest import Tensor

# Tiles are of at most so many rows.
MOST_ROWS = 8


@dataclass(frozen=True)
class Schedule:
    """vectors: of a tile of 1, 2, .. rows, how many native vectors of outputs stand beside each other; ahead: bytes of
    weights that are asked for before they are needed (0: the processor's own prefetching is enough)."""

    vectors: tuple[int, ...]
    ahead: int = 0

    @property
    def rows(self) -> int:
        """Rows of the largest tile."""
        return len(self.vectors)


@dataclass(frozen=True)
class ProductShape:
    """What a schedule is for: a matrix of n outputs and k inputs; glu: half of the outputs gate the others."""

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


# Without a measurement. Of a processor's vectors: sixteen registers of 8 lanes, or 32 of 16 or of 4.
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
