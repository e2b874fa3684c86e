"""Embeddings of rows that stand for several tokens: made once for each word, the latest ones are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.subwords import SubwordNetwork

_KEPT = 1 << 20  # numbers in the embeddings that are kept: 4 MiB
_AT_ONCE = 64
Hidden = NDArray[np.float32]
Ints = NDArray[np.int64]


class JoinedEmbeddings:
    """network: what makes one embedding of several; None: their mean. Safe to share between threads."""

    def __init__(self, network: SubwordNetwork | None) -> None:
        self.network, self._lock = network, Lock()
        self._known = OrderedDict[tuple[int, ...], Hidden]()

    def rows(self, ids: Sequence[int], embeddings: Hidden, ends: Ints) -> Hidden:
        """The embeddings [rows, hidden_size] of rows that end after so many tokens each. embeddings: the tokens' own
        [tokens, hidden_size]."""
        starts = np.concatenate([ends[:1] * 0, ends[:-1]])
        found: Hidden = embeddings[ends - 1]
        joined = np.flatnonzero(ends - starts > 1)
        words = {int(row): tuple(ids[starts[row] : ends[row]]) for row in joined}
        where = {word: int(starts[row]) for row, word in reversed(words.items())}
        made = self._taken(where)
        for count in range(2, max(map(len, where), default=0) + 1):
            missing = [word for word in where if len(word) == count and word not in made]
            for at in range(0, len(missing), _AT_ONCE):
                some = missing[at : at + _AT_ONCE]
                parts = np.stack([embeddings[where[word] : where[word] + count] for word in some])
                made |= dict(zip(some, self._made(parts), strict=True))
        self._keep(made)
        for row, word in words.items():
            found[row] = made[word]
        return found

    def _made(self, parts: Hidden) -> list[Hidden]:
        """One embedding of each word's parts [n, count, hidden_size]."""
        made = parts.mean(1, dtype=np.float32) if self.network is None else self.network.made(parts)
        return [row.copy() for row in made]

    def _taken(self, words: dict[tuple[int, ...], int]) -> dict[tuple[int, ...], Hidden]:
        with self._lock:
            return {word: self._known[word] for word in words if word in self._known}

    def _keep(self, made: dict[tuple[int, ...], Hidden]) -> None:
        with self._lock:
            for word, row in made.items():
                self._known[word] = row
                self._known.move_to_end(word)
            while self._known and len(self._known) * len(next(iter(self._known.values()))) > _KEPT:
                self._known.popitem(last=False)
