"""Fair shares of a call: its rows are divided between clients, then between the requests of a client.

Only where more rows wait than fit into a call, and belong to several: what fits runs. An owner is counted the rows that
it has had, and the sequence that would have had the fewest with its own goes first (weighted fair queueing), so that a
token never waits for the chunks of prompts before it. An owner that had all it asked for is not credited with the rest.
Large calls would never come first then; so the first place belongs to the owner that the last calls left out longest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

Owner = tuple[Hashable, ...]
"""Whose a sequence is, from the outside in: a client, a request of it. Of equal length in a batch."""


class Sharing(Protocol):
    """A sequence with an owner, and the rows of its next call."""

    owner: Owner

    @property
    def rows(self) -> int: ...


T = TypeVar("T", bound=Sharing)


class RowShares:
    """The rows of one batch's calls: `choose` the sequences of a call, then `note` them."""

    def __init__(self) -> None:
        self._had = Counter[Owner]()
        # Owners whose first sequence did not run in the last call, the longest first; sequences that do not fit into
        # this call, and the first one of each owner.
        self._left: dict[Owner, None] = {}
        self._waiting: Sequence[Sharing] = ()
        self._first: dict[Owner, Sharing] = {}

    def choose(self, jobs: Sequence[T], rows: Sequence[int], most: int) -> list[T]:
        """Those that share the next call, at most `most` rows; those in front first where they have one owner."""
        self._waiting, self._first = (), {}
        if sum(rows) <= most:
            return list(jobs)
        depth = len(jobs[0].owner) if len({job.owner for job in jobs}) > 1 else 0
        order = list(range(len(jobs)))
        for level in range(depth, 0, -1):
            owners = [job.owner[:level] for job in jobs]
            self._first |= {owners[i]: jobs[i] for i in reversed(order)}
            order = self._order(order, owners, rows)
        chosen, waiting, taken = list[T](), list[T](), 0
        for i in order:
            fits = not chosen or taken + rows[i] <= most
            (chosen if fits else waiting).append(jobs[i])
            taken += rows[i] if fits else 0
        self._waiting = waiting if depth else ()
        return chosen

    def note(self, jobs: Sequence[Sharing]) -> None:
        """Count the rows of a call, drafted ones included."""
        if not self._waiting and not self._left:
            return
        ran = set(jobs)
        for level in range(1, len(jobs[0].owner) + 1):
            owners = {job.owner[:level] for job in jobs}
            passed = {owner: None for owner, first in self._first.items() if len(owner) == level and first not in ran}
            kept = {owner: None for owner in self._left if owner not in owners or owner in passed}
            self._left = kept | passed
            if self._waiting:
                for job in jobs:
                    self._had[job.owner[:level]] += job.rows
                self._lift(owners, {job.owner[:level] for job in self._waiting})

    def keep(self, owners: Iterable[Owner]) -> None:
        """Forget all but these owners."""
        if self._had:
            known = {owner[:level] for owner in set(owners) for level in range(1, len(owner) + 1)}
            self._had = Counter({owner: had for owner, had in self._had.items() if owner in known})
            self._left = {owner: None for owner in self._left if owner in known}

    def _order(self, order: Sequence[int], owners: Sequence[Owner], rows: Sequence[int]) -> list[int]:
        """Sort sequences by the rows that their owners will have had with them; by its place the first of the owner
        that was left out longest."""
        self._enter(owners)
        present, longest = set(owners), dict[Owner, Owner]()
        for owner in self._left:
            if owner in present:
                longest.setdefault(owner[:-1], owner)
        first, had, place = set(longest.values()), self._had.copy(), dict[int, int]()
        for i in order:
            had[owners[i]] += rows[i]
            place[i] = -1 if owners[i] in first else had[owners[i]]
            first.discard(owners[i])
        return sorted(order, key=place.__getitem__)

    def _enter(self, owners: Iterable[Owner]) -> None:
        """New owners have had as much as the least of those beside them."""
        new = [owner for owner in owners if owner not in self._had]
        if new:
            least = dict[Owner, int]()
            for owner, had in self._had.items():
                least[owner[:-1]] = min(had, least.get(owner[:-1], had))
            self._had.update({owner: least.get(owner[:-1], 0) for owner in new})

    def _lift(self, ran: Iterable[Owner], waiting: Iterable[Owner]) -> None:
        """Take from owners without anything left what they did not use."""
        least = dict[Owner, int]()
        for owner in waiting:
            least[owner[:-1]] = min(self._had[owner], least.get(owner[:-1], self._had[owner]))
        for owner in set(ran).difference(waiting):
            self._had[owner] = max(self._had[owner], least.get(owner[:-1], 0))


def divide(room: int, wanted: Sequence[int], owners: Sequence[Owner]) -> list[int]:
    """Rows for each that wants some: equal shares of owners, from the outside in; what one leaves is for the others.

    >>> divide(10, [9, 9, 2], [("a", 1), ("a", 2), ("b", 3)])
    [4, 4, 2]
    """
    if not any(owners):
        return _equal(room, wanted)
    groups = dict[Hashable, list[int]]()
    for i, owner in enumerate(owners):
        groups.setdefault(owner[0], []).append(i)
    shares = _equal(room, [sum(wanted[i] for i in group) for group in groups.values()])
    found = [0] * len(wanted)
    for share, group in zip(shares, groups.values(), strict=True):
        own = divide(share, [wanted[i] for i in group], [owners[i][1:] for i in group])
        for i, n in zip(group, own, strict=True):
            found[i] = n
    return found


def _equal(room: int, wanted: Sequence[int]) -> list[int]:
    found, left = [0] * len(wanted), len(wanted)
    for i in sorted(range(len(wanted)), key=wanted.__getitem__):
        found[i] = min(wanted[i], room // left)
        room, left = room - found[i], left - 1
    return found
