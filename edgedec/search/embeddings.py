"""Embeddings of tokens, for steps that read mixtures of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from edgedec.decoding.messages import Completed
from edgedec.runtime import Call, Hidden, Outputs, Rows
from edgedec.search.room import Room

_EMBEDDING = Outputs(hidden=(-1,))
_KEPT = 1 << 18  # numbers in the embeddings that are kept: 1 MiB


class KnownEmbeddings:
    """Those of a model; the ones that were needed before are kept."""

    def __init__(self) -> None:
        self._known = dict[int, Hidden]()

    def of(self, room: Room, tokens: Sequence[int]) -> Generator[Call, Completed, Hidden]:
        """The embeddings of tokens [n, hidden_size]."""
        if missing := [token for token in dict.fromkeys(tokens) if token not in self._known]:
            done = yield Call(Rows.chain(missing, 0), room.new_cache(), (), outputs=_EMBEDDING)
            fresh = done.result.hidden[-1]
            if len(self._known) * fresh.shape[1] > _KEPT:
                self._known = {token: self._known[token] for token in tokens if token in self._known}
            self._known |= {token: fresh[i].copy() for i, token in enumerate(missing)}
        found: Hidden = np.stack([self._known[token] for token in tokens])
        return found

    def mixed(self, room: Room, tokens: Sequence[int], logs: Sequence[float]) -> Generator[Call, Completed, Hidden]:
        """The mean of the embeddings of tokens by the softmax of `logs` [1, hidden_size]."""
        rows = yield from self.of(room, tokens)
        p = np.exp(np.array(logs) - max(logs))
        found: Hidden = ((p / p.sum())[None, :] @ rows).astype(np.float32)
        return found
