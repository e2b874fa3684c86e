"""A draft model that drafts in a thread of its own, ahead of the text: a chain of its likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition, Thread
from time import perf_counter

from edgedec.decoding.messages import Completed, ForwardOn
from edgedec.decoding.runner import run_requests
from edgedec.drafters._models.reader import BEST, DraftReader, shares
from edgedec.runtime import CallResult, Runtime
from edgedec.sampling import Floats, Sampling
from edgedec.trees.calibration import kind_of

# A chain less likely than this is not continued.
_LEAST = 0.02
_PACE = 0.1


class Ahead:
    """The text and the draft model's chain after it. The thread drafts while the chain is shorter than `limit`, also
    while the target model runs; a text that diverges from the chain discards it."""

    def __init__(self, runtime: Runtime, vocab: int, estimates: Floats) -> None:
        """estimates: the acceptance rate of each kind of claim; the caller updates them."""
        self._runtime, self._vocab, self._reader = runtime, vocab, DraftReader(runtime)
        self._estimates = estimates
        self._state, self._thread = Condition(), Thread(target=self._work, name="edgedec-draft", daemon=True)
        self._text: list[int] = []
        self._chain: list[tuple[int, float]] = []
        self._sampling = Sampling()
        self._worth = 1.0
        # Incremented when the text diverges from the draft: the result of a forward in progress is then discarded.
        self._version = self._limit = 0
        self._fresh = self._stopped = False
        self.steps, self.step_seconds, self.trouble = 0, 0.0, ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the forward that it is in."""
        with self._state:
            self._stopped, self._limit = True, 0
            self._state.notify_all()

    def forget(self) -> None:
        """Another text begins."""
        with self._state:
            self._text, self._fresh = [], True
            self._drop()
            self._limit = 0

    def pause(self) -> None:
        """Start no more forwards until the next `follow`."""
        with self._state:
            self._limit = 0

    def follow(self, ids: Sequence[int], limit: int, sampling: Sampling) -> bool:
        """Set the text to `ids` and draft up to `limit` tokens after it; returns whether the new tokens match the
        draft."""
        with self._state:
            new = list(ids[len(self._text) :])
            held = [token for token, _ in self._chain[: len(new)]]
            self._text += new
            kept = held == new and self._sampling == sampling
            if kept:
                del self._chain[: len(new)]
                self._reckon()
            else:
                self._drop()
            self._limit, self._sampling = limit, sampling
            self._state.notify_all()
            return kept

    def chain(self, n: int, seconds: float) -> list[tuple[int, float]]:
        """The tokens drafted so far, with their claims; waits for n tokens, but at most `seconds`."""
        until = perf_counter() + seconds
        with self._state:
            while self._busy() and len(self._chain) < n and (left := until - perf_counter()) > 0:
                self._state.wait(left)
            return list(self._chain)

    def _busy(self) -> bool:
        return not self.trouble and bool(self._text) and len(self._chain) < self._limit and self._worth > _LEAST

    def _drop(self) -> None:
        self._chain = []
        self._version += 1
        self._worth = 1.0

    def _reckon(self) -> None:
        self._worth = 1.0
        for _, p in self._chain:
            self._worth *= self._estimates.item(kind_of(p))

    def _work(self) -> None:
        while True:
            with self._state:
                while not self._stopped and not self._busy():
                    self._state.wait()
                if self._stopped:
                    return
                ids, settled = [*self._text, *(token for token, _ in self._chain)], len(self._text)
                version, sampling = self._version, self._sampling
                if self._fresh:
                    self._reader.reset()
                    self._fresh = False
            try:
                found = shares(self._read(ids, settled), sampling, self._vocab)
            except Exception as error:  # the text goes on without drafts, and the report says why
                found, self.trouble = [], f"{type(error).__name__}: {error}"
            with self._state:
                if version == self._version:
                    self._chain.append(found[0] if found else (-1, 0.0))
                    self._worth *= self._estimates.item(kind_of(self._chain[-1][1]))
                self._state.notify_all()

    def _read(self, ids: Sequence[int], settled: int) -> CallResult:
        """The draft model's outputs after `ids`; only the first `settled` of these belong to the text."""
        reading = self._reader.read(ids, BEST, 1, settled)
        done: Completed | None = None
        while True:
            try:
                request = next(reading) if done is None else reading.send(done)
            except StopIteration as end:
                result: CallResult = end.value
                return result
            assert isinstance(request, ForwardOn)
            began = perf_counter()
            (done,) = run_requests(self._runtime, [request])
            self.steps += 1
            if request.call.rows.count == 1:
                seconds = perf_counter() - began
                self.step_seconds += (seconds - self.step_seconds) * (_PACE if self.step_seconds else 1.0)
