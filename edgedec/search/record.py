"""The record of a search, for a page: each branch with its text, its worth, and when it was begun and dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from edgedec.search.branch import Branch


@dataclass(frozen=True)
class BranchTrace:
    """A branch when the search let go of it. first, last: forwards of the search before it was begun, and before it was
    dropped; logp, value, finish: as of `Branch`; rank: its place among the texts that the search ended with, -1 if it
    is none of them; chosen: whether it is the answer."""

    tokens: tuple[int, ...]
    first: int
    last: int
    logp: float
    value: float
    finish: str
    rank: int = -1
    chosen: bool = False


class SearchRecord:
    """Adds to `out` what becomes of each branch that the search keeps; holds none that it has dropped."""

    def __init__(self, out: list[BranchTrace]) -> None:
        self._out, self._live = out, dict[Branch, int]()
        self._noted = WeakKeyDictionary[Branch, int]()

    def keep(self, branches: Sequence[Branch], forwards: int) -> None:
        """Note that of all branches these live, after so many forwards."""
        kept = set(branches)
        for branch in [one for one in self._live if one not in kept]:
            self._note(branch, self._live.pop(branch), forwards)
        for branch in branches:
            self._live.setdefault(branch, forwards)

    def close(self, ranked: Sequence[Branch], chosen: Branch | None, forwards: int) -> None:
        """Note those that are left at the end, and which of all the search gives."""
        self.keep((), forwards)
        for branch in [*ranked, *([] if chosen is None else [chosen])]:
            if branch not in self._noted:  # an ended beam has no cache that was kept
                self._note(branch, forwards, forwards)
            at, rank = self._noted[branch], next((i for i, one in enumerate(ranked) if one is branch), -1)
            value = branch.value
            self._out[at] = replace(self._out[at], value=value, rank=rank, chosen=branch is chosen)

    def _note(self, branch: Branch, first: int, last: int) -> None:
        if branch in self._noted:  # dropped, and taken up again
            at = self._noted[branch]
            first = self._out[at].first
        else:
            at = self._noted[branch] = len(self._out)
            self._out.append(BranchTrace((), first, last, 0.0, 0.0, ""))
        tokens = tuple(map(int, branch.tokens))
        self._out[at] = BranchTrace(tokens, first, last, branch.logp, branch.value, branch.finish)
