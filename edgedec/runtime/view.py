"""Views: the committed slots of a block that the rows of a call see, by kv head. The basis of sparse attention.

Slots are taken by pages of `PAGE`, whole, in the order of the block's slots; the slots of one cache and the rows of the
same call are seen as ever (a tree's rows their ancestors), and windows, sinks and softcap of the block hold on top.
Of a group of rows, and of each kv head, are seen

    sinks      the pages that hold the first `sinks` slots
    recent     the pages that hold a slot of the last `recent` before the group's first row, and the page not yet full
    pages      of the full pages left over, those with the highest bounds (all if None)
    chosen     pages by their numbers
    slots      slots by their numbers
    theta      slots left over, whose score is at most `theta` below the anchor
    runs       with `slots`: each stands for so many from there on (itself among them), which have its score (DeltaLLM).
               A run lies in one page; one of a page that is seen anyway stands for nothing

The *bound* of a page (Quest, LServe) is the most that a query can score there: the sum over dimensions of
max(q * min, q * max), min and max over the page's keys, rounded outward to bfloat16; of several queries (rows of the
group, heads of the kv head) the highest counts, of equal pages the first. The *anchor* (AnchorAttention) of a query
head is the mean over the group of each query's highest score among what it sees without `theta`; slots are scored by
the mean query.

Worked example, PAGE 4: 22 slots are committed, View(sinks=1, recent=6, pages=1), one row at slot 22

    page      0        1        2        3        4        5
    slots     0-3      4-7      8-11     12-15    16-19    20 21
              sinks    bound 7  bound 9  bound 9  recent   not full      -> pages 0 2 4 5: of two best the first
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

Ints = NDArray[np.int64]
PAGE = 64  # slots of a page, in every runtime

PerHead = int | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class View:
    """Numbers are of all kv heads alike or a tuple of one for each.

    `group`: how many consecutive rows share a selection (0: all rows of the call). With 1, a row sees the same whatever
    shares its call, provided that `recent` is at least as long as the tree that it is part of is deep.
    """

    sinks: PerHead = 0
    recent: PerHead = PAGE
    pages: int | tuple[int | None, ...] | None = 0
    chosen: Sequence[Ints] | None = None
    slots: Sequence[Ints] | None = None
    theta: float | None = None
    runs: Sequence[Ints] | None = None
    group: int = 1

    def numbers(self, name: str, kv_heads: int) -> tuple[int, ...]:
        """`sinks`, `recent` or `pages` of each kv head; -1: all pages."""
        value = getattr(self, name)
        given = value if isinstance(value, tuple) else (value,) * kv_heads
        return tuple(-1 if one is None else int(one) for one in given)

    def listed(self, name: str, head: int) -> Ints:
        """`chosen` or `slots` of a kv head, ascending, each once."""
        lists: Sequence[Ints] | None = getattr(self, name)
        if lists is None:
            return np.zeros(0, np.int64)
        found = np.asarray(lists[head], np.int64)
        return found if (found[1:] > found[:-1]).all() else np.unique(found)

    def stands_for(self, head: int) -> Ints:
        """The number of slots that each listed slot of a kv head represents."""
        slots = self.listed("slots", head)
        return np.ones(len(slots), np.int64) if self.runs is None else np.asarray(self.runs[head], np.int64)

    def groups(self, rows: int) -> Iterator[slice]:
        """The groups of so many computed rows."""
        step = self.group or max(1, rows)
        yield from (slice(at, min(at + step, rows)) for at in range(0, rows, step))

    @property
    def retrieves(self) -> bool:
        """Whether pages are selected by their bounds."""
        return any(
            count is None or count > 0 for count in (self.pages if isinstance(self.pages, tuple) else [self.pages])
        )

    def check(self, block: int, kv_heads: int, slots: int) -> None:
        """UsageError unless it is of a block with so many kv heads and committed slots."""
        for name in ("sinks", "recent", "pages"):
            numbers = self.numbers(name, kv_heads)
            if len(numbers) != kv_heads or min(numbers) < (-1 if name == "pages" else 0):
                raise _wrong(
                    block, f"{name} {getattr(self, name)}: needs a number from 0 on for each of {kv_heads} kv heads"
                )
        for name, most in (("chosen", slots // PAGE), ("slots", slots)):
            lists = getattr(self, name)
            if lists is not None and len(lists) != kv_heads:
                raise _wrong(block, f"{name} of {len(lists)} kv heads: the block has {kv_heads}")
            for head in range(0 if lists is None else kv_heads):
                found = self.listed(name, head)
                if len(found) and not (found[0] >= 0 and found[-1] < most):
                    raise _wrong(block, f"{name} {found[0]} to {found[-1]} of kv head {head}: the block holds {most}")
        for head in range(0 if self.runs is None else kv_heads):
            self._check_runs(block, head, slots)
        if self.theta is not None and self.slots is not None:
            raise _wrong(block, "theta and slots: give one of them")
        if self.group < 0:
            raise _wrong(block, f"group {self.group}: needs a number of rows, 0 for all of a call")

    def _check_runs(self, block: int, head: int, held: int) -> None:
        first = self.listed("slots", head)
        if self.slots is None or self.runs is None or len(self.runs) <= head or len(self.runs[head]) != len(first):
            raise _wrong(block, f"runs of kv head {head}: needs one for each of its slots")
        ends = first + self.stands_for(head)
        next_ = np.append(first[1:], held)
        if ((ends <= first) | (ends > next_) | ((ends - 1) // PAGE != first // PAGE)).any():
            raise _wrong(block, f"runs of kv head {head}: each from 1 on, in one page, up to the next slot")


def _wrong(block: int, what: str) -> UsageError:
    return UsageError(f"view of block {block}: {what}")
