"""The shapes that a device computes with: any, or a few that its compiler fixed (buckets).

A call of fewer rows than its bucket is filled up with rows that nobody sees. So they cost what the call costs anyway,
and drafted rows that fill a bucket are free: `Capabilities.row_buckets` says so to the allocator.
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
    """As it is; the slots rounded up, so that they are no new shape with every token."""
    return CallShape(rows, max(_SHORTEST, -(-slots // _SHORTEST) * _SHORTEST))
