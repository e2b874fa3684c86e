"""What texts have in common at their beginnings: read once, and held once where the cache can lie in two places."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from edgedec.decoding.context import Context

# Tokens that are worth moving into memory which two texts can read, and those worth waiting for.
_WORTH, _SOON = 64, 16


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first tokens two texts have in common."""
    most, at = min(len(a), len(b)), 0
    while at < most and list(a[at : at + _WORTH]) == list(b[at : at + _WORTH]):
        at += _WORTH
    pairs = zip(a[at : at + _WORTH], b[at : at + _WORTH], strict=False)
    return next((at + i for i, (x, y) in enumerate(pairs) if x != y), most)


class Loan(NamedTuple):
    """The first `n` cached tokens of `lender` are those of another text too; `later`: so will be more, if it waits."""

    lender: Context | None = None
    n: int = 0
    later: bool = False


class Prefixes:
    """Texts whose caches may be read by others: they must all be of one thread. Texts that are gone are forgotten."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[int, Context] = WeakValueDictionary()

    def add(self, context: Context) -> None:
        self._known[id(context)] = context

    def find(self, context: Context, reading: Collection[int]) -> Loan:
        """The longest beginning that another text's cache has; `reading`: ids of the contexts that go on reading."""
        best, own = Loan(), context.cache
        had, soon = own.length, 0
        for other in list(self._known.values()):
            if other is context or (same := common(context.ids, other.ids)) < _WORTH:
                continue
            there, lent = min(same, other.cache.length), min(same, other.cache.n_shared)
            had, soon = max(had, there), max(soon, same if id(other) in reading else 0)
            # What is lent already costs no more memory; to lend out more moves it, and few tokens are not worth that.
            n = there if there - max(lent, own.length) >= _WORTH or not lent else lent
            if n > best.n:
                best = Loan(other, n)
        if soon - had >= _SOON:
            return Loan(later=True)
        if best.lender is None or best.n < _WORTH or best.n <= own.n_shared:
            return Loan()
        return best
