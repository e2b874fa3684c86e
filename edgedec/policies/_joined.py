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
        missing = [word for word in where if word not in made]
        for at in range(0, len(missing), _AT_ONCE):
            some = missing[at : at + _AT_ONCE]
            parts = [embeddings[where[word] : where[word] + len(word)] for word in some]
            made |= dict(zip(some, self._made(parts), strict=True))
        self._keep(made)
        for row, word in words.items():
            found[row] = made[word]
        return found

    def _made(self, parts: list[Hidden]) -> Sequence[Hidden]:
        if self.network is None:
            return [part.mean(0, dtype=np.float32) for part in parts]
        padded = np.zeros((len(parts), self.network.longest, parts[0].shape[1]), np.float32)
        for i, part in enumerate(parts):
            padded[i, : len(part)] = part
        made = self.network.made(padded, np.array([len(part) for part in parts]))
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
