"""Draft with the target itself, some of its blocks skipped; which ones is searched while it serves.

Unified Layer Skipping (S13) gives the start: so many layers skipped, evenly spread, the first and the last kept.
SWIFT (S10) continues from there: now and then another set guesses the latest generated tokens, all in one call. If it
brings more tokens for the time of a plain call than the set in use does on the same text, twice, it takes over.
Sets to try are the one in use with something swapped, and draws from a Bayesian model of what each block is for.

The blocks before the first skipped one compute what they compute in the whole stack: verification continues after
them.
"""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, Proposal, State
from edgedec.drafters._block_search import Search, Skipped, even
from edgedec.drafters._calls import EdgeCalls, own_seconds
from edgedec.drafters._stack import (
    READING,
    Guess,
    Limits,
    Record,
    Slice,
    draft_chain,
    judged,
    require_slices,
)
from edgedec.errors import UsageError
from edgedec.runtime import Call, Outputs, Rows

# A trial guesses so many known tokens; it comes after so many calls at the earliest.
_WINDOW, _APART = 32, 16
# The search ends after so many trials that changed nothing.
_PATIENCE = 50


def make(host: DrafterContext, skip: float = 0.45, gamma: int = 6, search: float = 0.03) -> Skip:
    """skip: the share of layers to start with; gamma: the longest draft; search: the share of the calls' time
    that trials may take (0: the set stays as it is)."""
    if not 0 < skip < 1 or gamma < 1 or not search >= 0:
        raise UsageError(
            f"drafter skip: skip={skip}, gamma={gamma}, search={search}: need between 0 and 1, 1 or more, 0 or more"
        )
    require_slices("skip", host)
    return Skip(host, skip, gamma, search)


class Skip(BaseDrafter):
    def __init__(self, host: DrafterContext, skip: float, gamma: int, search: float) -> None:
        self._spec = spec = host.runtime.spec
        self._gamma, self._share, self._edge = gamma, search, EdgeCalls(host.runtime)
        self.search = Search(spec, even(spec, skip), gamma)
        self._guessed: list[Guess] = []
        self._calls, self._spent, self._time = 0, 0.0, 0.0
        self._record = Record()

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._guessed = []
        pending = len(context.ids) - context.cache.length
        if nodes < 1 or pending > READING or not self.search.skipped:
            return Draft()
        return self._draft(context, nodes, min_path_prob)

    def _draft(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        if self._due(context):
            yield from self._trial(context)
        skipped = self.search.skipped
        limits = Limits(
            min(self._gamma, nodes), max(min_path_prob, self.search.cost(skipped)), trust=self._record.trust
        )
        part, n = self._slice(skipped), self._spec.n_blocks
        draft, self._guessed = yield from draft_chain(context, part, limits, self._edge, n)
        return draft

    def observe(self, step: StepResult) -> None:
        self._calls += 1
        self._time += step.seconds * step.rows.count / max(step.total, 1)
        for hit, sure in judged(self._guessed, step.picked):
            self._record.add(hit, sure)
        self._guessed = []

    def reset(self) -> None:
        self._guessed = []

    def state(self) -> State:
        return self.search.state()

    def restore(self, state: State) -> None:
        if state:
            self.search.restore(state)

    def report(self) -> dict[str, Any]:
        search = self.search
        rate = round(self._record.rate, 3)
        return {"skipped": list(search.skipped), "trials": search.trials, "rate": rate, "tried": round(search.rate, 3)}

    def _slice(self, skipped: Skipped) -> Slice:
        return Slice(range(skipped[0]), [b for b in range(skipped[0], self._spec.n_blocks) if b not in skipped])

    def _due(self, context: Context) -> bool:
        """May a trial be made? Only on generated tokens; a set that won once is tried again soon, by the same
        rules."""
        if self.search.stale >= _PATIENCE or self._calls < _APART:
            return False
        if context.cache.length - _WINDOW + 1 < max(context.n_prompt, 1):
            return False
        return self._share > 0 and self._spent <= self._share * self._time

    def _trial(self, context: Context) -> Generator[Request, Completed, None]:
        search, self._calls = self.search, 0
        skipped = search.candidate()
        rate = yield from self._match(context, skipped)
        if rate is None:
            return
        rival = None
        if skipped != search.skipped and search.promises(skipped, rate):
            rival = yield from self._match(context, search.skipped)
        search.add_trial(skipped, rate, rival)

    def _match(self, context: Context, skipped: Skipped) -> Generator[Request, Completed, float | None]:
        """How much of the latest known tokens the set guesses, on a fork of the cache: positions and all that came
        before are right, and the text's own cache stays as it is. None if a recurrent block cannot go back so far."""
        began = perf_counter()
        stop = context.cache.length
        start = stop - _WINDOW
        fork = context.cache.fork(start)
        if fork.length < start:
            return None
        part, rows = self._slice(skipped), Rows.chain(context.ids[start:stop], start)
        call = Call(rows, fork, part.blocks, None, Outputs(top=1), context.adapter)
        self._spent += perf_counter() - began
        done = yield call
        self._spent += own_seconds(done, call)
        assert done.result.ids is not None
        return float(np.mean(done.result.ids[:, 0] == context.ids[start + 1 : stop + 1]))
