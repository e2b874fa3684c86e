"""Shared by drafters that make calls: their share of a forward's time, and calls without any block."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.decoding.allocation import Offer
from edgedec.decoding.messages import Completed, ForwardOn, Request
from edgedec.drafters import Draft, DrafterContext
from edgedec.runtime import Call, CallResult, Hidden, Outputs, Readout, Rows, Runtime

_EMBEDDING = Outputs(hidden=(-1,))
_KEPT = 1 << 18  # numbers in the embeddings that are kept: 1 MiB


def own_seconds(completed: Completed, call: Call) -> float:
    """A call's share of the seconds of its forward, by rows."""
    return completed.seconds * call.rows.count / max(completed.rows, 1)


class CallClock:
    """The runner of proposals that need calls. A shared forward's time is divided among its calls: `ran`: the seconds
    of the proposals' own shares; `waited`: the other seconds that passed meanwhile."""

    def __init__(self) -> None:
        self.waited = self.ran = 0.0

    def run(self, proposal: Generator[Request | Offer, Any, Draft]) -> Generator[Request | Offer, Any, Draft]:
        """The draft of a proposal."""
        completed: Any = None
        with closing(proposal):
            while True:
                try:
                    request = next(proposal) if completed is None else proposal.send(completed)
                except StopIteration as end:
                    draft: Draft = end.value
                    return draft
                since = perf_counter()
                completed = yield request
                if isinstance(request, Offer):
                    self.waited += perf_counter() - since
                    continue
                call = request.call if isinstance(request, ForwardOn) else request
                own = own_seconds(completed, call)
                self.ran += own
                self.waited += perf_counter() - since - own


class TokenEmbeddings:
    """The target's embeddings of tokens; the most recent ones are cached, for all sessions that share tables."""

    def __init__(self, host: DrafterContext) -> None:
        self._calls = EdgeCalls(host.runtime)
        self._most = max(_KEPT // host.runtime.spec.hidden_size, 1)
        self._known: dict[int, Hidden] = host.table("embeddings", dict)

    def of(self, tokens: Sequence[int]) -> Generator[Request, Completed, Hidden]:
        """The embeddings [n, hidden_size] of these tokens; one call for those that are not cached."""
        known = self._known
        rows = {token: known[token] for token in tokens if token in known}
        if missing := [token for token in dict.fromkeys(tokens) if token not in rows]:
            fresh = yield from self._calls.embed(missing)
            rows |= {token: fresh[i : i + 1] for i, token in enumerate(missing)}
            if len(known) + len(missing) > self._most:
                known.clear()
            if len(missing) <= self._most:
                known.update((token, rows[token].copy()) for token in missing)
        return rows[tokens[0]] if len(tokens) == 1 else np.concatenate([rows[token] for token in tokens])


class EdgeCalls:
    """Calls of the embedding or of the head alone, on a small cache that stays empty; the head's is reused."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._cache: Cache | None = None
        self.seconds = 0.0  # of the last call of the head

    def embed(self, tokens: Sequence[int]) -> Generator[Request, Completed, Hidden]:
        """The embeddings [n, hidden_size] of these tokens. The call's cache is released afterwards, because each token
        is embedded only once."""
        ids = np.asarray(tokens, np.int64)
        done = yield Call(Rows.chain(ids, 0), self._runtime.new_cache(len(ids)), (), outputs=_EMBEDDING)
        return done.result.hidden[-1]

    def best(
        self, hidden: Hidden, top: int, readout: Readout | None = None
    ) -> Generator[Request, Completed, CallResult]:
        """The `top` best tokens (of the readout's) after each hidden state [n, hidden_size], and their logits."""
        ids = np.zeros(len(hidden), np.int64)
        call = Call(Rows.chain(ids, 0), self._room(ids), (), hidden, Outputs(top=top, readout=readout))
        done = yield call
        self.seconds = own_seconds(done, call)
        return done.result

    def _room(self, ids: NDArray[np.int64]) -> Cache:
        if self._cache is None or self._cache.capacity < len(ids):
            self._cache = self._runtime.new_cache(len(ids))
        return self._cache
