"""The shapes that a device supports: any, or a few fixed at compile time (buckets).

A call of fewer rows than its bucket is padded with hidden rows. Drafted rows that fill a bucket are therefore free; the
draft allocator reads the buckets from `Capabilities.row_buckets`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

ROWS = (1, 4, 8, 32, 128)
_SHORTEST, _STEP = 64, 4


class CallShape(NamedTuple):
    """rows of a call, and the slots before them."""

    rows: int
    past: int

    @property
    def sizes(self) -> dict[str, int]:
        """The free sizes of the graphs."""
        return {"rows": self.rows, "past": self.past, "total": self.rows + self.past}


def lengths(context: int) -> tuple[int, ...]:
    """The buckets of a text's slots: four times as many from one to the next, the last for the whole context.

    1024 -> 64, 256, 1024
    """
    found, length = [], _SHORTEST
    while length < context:
        found.append(length)
        length *= _STEP
    return (*found, context)


def bucket(buckets: tuple[int, ...], n: int) -> int:
    """The smallest that holds n; the last if none does."""
    return buckets[min(bisect_left(buckets, n), len(buckets) - 1)]


def static_shape(rows: int, slots: int, context: int) -> CallShape:
    """The bucket of a call."""
    return CallShape(bucket(ROWS, rows), bucket(lengths(context), slots))


def free_shape(rows: int, slots: int) -> CallShape:
    """The shape with the slots rounded up, so that it does not change with every token."""
    return CallShape(rows, max(_SHORTEST, -(-slots // _SHORTEST) * _SHORTEST))
