"""A draft model that is left early: its first layers are models of their own, with the norm and head of the whole.

Rows wait before the layers that they did not need, and run through them together when a later row needs them. Rows of
the text stay pending in the model's cache until all have passed all layers, or until they are many.

    sub-models of 2 and 4 layers; rows a b c left after 2 layers, d does not: layers 3 and 4 run a b c d in one call
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import exp

import numpy as np

from edgedec.decoding.messages import Completed, ForwardOn, Request
from edgedec.drafters._calls import own_seconds
from edgedec.runtime import Call, CallResult, Hidden, Outputs, Rows, Runtime

# So many rows wait at most; more of the text are read by whole calls.
_WAITING = 32
_TOP = 4

# The likeliest token, its probability, and the sub-model that said it.
Said = tuple[int, float, int]


class NestedReader:
    """ends: the block after each sub-model, the last one the whole model's."""

    def __init__(self, runtime: Runtime, ends: Sequence[int]) -> None:
        self._runtime, self._ends = runtime, ends
        self._chunk = runtime.capabilities.prefill_chunk
        self._cache = runtime.new_cache(runtime.spec.context_length)
        self._forget()
        self.seconds = 0.0
        self.calls = self.rows = 0  # of the model: calls, and rows in them

    def _forget(self) -> None:
        self._cache.truncate(0)
        self._ids = list[int]()  # committed
        self._waiting = list[int]()  # rows below them
        self._states: list[Hidden | None] = [None] * len(self._ends)

    @property
    def capacity(self) -> int:
        return self._cache.capacity

    def read(self, ids: Sequence[int], room: int) -> Generator[Request, Completed, None]:
        """Take the text; its last row waits to be run. room: rows to come below it."""
        self.seconds = 0.0
        self._keep_common(ids)
        fresh = list(ids[len(self._ids) + len(self._waiting) :])
        if self._waiting and (self._passed(len(self._ends) - 1) == len(self._waiting) or _many(self._waiting, fresh)):
            yield from self._whole(self._waiting)
        while len(fresh) > _WAITING:
            size = min(self._chunk, len(fresh) - 1)
            yield from self._whole(fresh[:size])
            fresh = fresh[size:]
        self._waiting += fresh

    def climb(self, thresholds: Sequence[float]) -> Generator[Request, Completed, Said]:
        """What follows the last row, by the first sub-model whose likeliest token is likelier than its threshold, or
        by the whole model."""
        for i in range(len(self._ends)):
            result = yield from self._through(i)
            assert result.ids is not None
            assert result.scores is not None
            assert result.logsum is not None
            token, p = int(result.ids[-1, 0]), exp(float(result.scores[-1, 0] - result.logsum[-1]))
            if i == len(self._ends) - 1 or p > thresholds[i]:
                break
        return token, p, i

    def add(self, token: int) -> None:
        """A row below the last."""
        self._waiting.append(token)

    def _keep_common(self, ids: Sequence[int]) -> None:
        """Forget what is not the text's; its last row is run in any case."""
        known, common = [*self._ids, *self._waiting], 0
        while common < min(len(known), len(ids) - 1) and known[common] == ids[common]:
            common += 1
        if common < len(self._ids):
            self._cache.truncate(common)
            self._ids = self._ids[: self._cache.length]
            common = 0
        keep = max(common - len(self._ids), 0)
        self._waiting = self._waiting[:keep]
        self._states = [None if x is None or not keep else x[:keep] for x in self._states]

    def _passed(self, i: int) -> int:
        """Rows that have passed sub-model i's layers."""
        states = self._states[i]
        return 0 if states is None else len(states)

    def _through(self, i: int) -> Generator[Request, Completed, CallResult]:
        """Run all rows that wait before sub-model i's own layers; those before have been run."""
        first, entering, end = self._passed(i), self._states[i - 1] if i else None, self._ends[i]
        begin, n = self._ends[i - 1] if i else 0, len(self._waiting)
        places = np.arange(self._cache.length, self._cache.length + n)
        rows = Rows(np.asarray(self._waiting, np.int64), places, np.arange(-1, n - 1), first=first)
        wanted = Outputs(top=_TOP, logsum=True, hidden=(end - 1,), logits_from=rows.count - 1)
        hidden = None if entering is None else entering[first:]
        result = yield from self._run(Call(rows, self._cache, range(begin, end), hidden, wanted))
        fresh, passed = result.hidden[end - 1], self._states[i]
        self._states[i] = fresh if passed is None else np.concatenate([passed, fresh])
        return result

    def _whole(self, tokens: Sequence[int]) -> Generator[Request, Completed, None]:
        """Commit rows of the text: those that wait, whose missing layers are run, or new ones."""
        if self._waiting:
            for i in range(len(self._ends)):
                if self._passed(i) < len(self._waiting):
                    yield from self._through(i)
        else:
            yield from self._run(Call(Rows.chain(tokens, self._cache.length), self._cache))
        self._cache.commit(range(len(tokens)))
        self._ids += tokens
        self._waiting, self._states = [], [None] * len(self._ends)

    def _run(self, call: Call) -> Generator[Request, Completed, CallResult]:
        done = yield ForwardOn(self._runtime, call)
        self.calls, self.rows = self.calls + 1, self.rows + call.rows.count
        self.seconds += own_seconds(done, call)
        return done.result


def _many(waiting: Sequence[int], fresh: Sequence[int]) -> bool:
    return len(waiting) + len(fresh) > _WAITING
