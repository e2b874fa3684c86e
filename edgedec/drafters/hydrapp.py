"""Hydra and Hydra++ heads as they are published (models/drafts/hydrapp.py).

Each depth has a head that reads a state and the tokens up to its place. Hydra++ makes that state with a layer that
attends to the target's states of the whole text.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, Proposal
from edgedec.drafters._calls import TokenEmbeddings
from edgedec.drafters._head_reader import HeadReader, facts_of
from edgedec.drafters._ladder import Ladder
from edgedec.drafters._levels import Levels
from edgedec.drafters._states import SeenStates
from edgedec.errors import UsageError
from edgedec.runtime import CallResult, Hidden, Outputs, Rows

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
AUTO = 8
DRAFT = "hydrapp"
_LEAST = 1e-4


def make(host: DrafterContext, depth: int = 0, beam: int = 4) -> HydraLadder:
    """depth: how many tokens ahead at most; 0: as many as there are heads. beam: nodes stepped on at once."""
    if depth < 0 or beam < 1:
        raise UsageError(f"drafter hydrapp: depth={depth}, beam={beam}: must be from 0 and from 1")
    return HydraLadder(host, depth, beam)


class HydraLadder(BaseDrafter):
    def __init__(self, host: DrafterContext, depth: int, beam: int) -> None:
        facts = facts_of(host, DRAFT)
        self._ladder, self._beam = Ladder(host, facts), beam
        self._depth = min(depth or facts.depth, facts.depth)
        self._reader = HeadReader(host, facts) if facts.stack else None
        self._seen, self._embeddings = SeenStates(facts.features), TokenEmbeddings(host)
        self.outputs = Outputs(hidden=facts.features)
        self.reads = self.outputs if facts.stack else Outputs()

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None]:
        assert self._reader is not None
        start = int(rows.positions[0]) + 1
        self._seen.read(rows, result, context.ids[start : start + len(rows)])
        yield from self._reader.read(self._seen.take(), context.ids, Outputs(), 0)

    def observe(self, step: StepResult) -> None:
        if self._reader is None:
            self._seen.take()  # the latest alone is read
        self._seen.observe(step)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        if nodes < 1 or len(context.ids) < 2:
            return Draft()
        return self._search(context, nodes, max(min_path_prob, _LEAST))

    def reset(self) -> None:
        self._seen.take()
        if self._reader is not None:
            self._reader.reset()

    def report(self) -> dict[str, Any]:
        return {} if self._reader is None else {"steps": self._reader.calls}

    def _search(self, context: Context, nodes: int, least: float) -> Generator[Request, Completed, Draft]:
        state = yield from self._state(context)
        if state is None:
            return Draft()
        levels, tokens, x = Levels(nodes, self._beam, least), context.ids[-1:], state
        for network in self._ladder.networks[: self._depth]:
            embedded = yield from self._embeddings.of(tokens)
            x = np.concatenate([x, embedded], axis=1)
            ids, logprobs = network.run(x)
            levels.add(ids.tolist(), np.exp(logprobs).tolist())
            if not levels.frontier:
                break
            x, tokens = x[levels.rows], levels.tokens
        return levels.draft()

    def _state(self, context: Context) -> Generator[Request, Completed, Hidden | None]:
        """What the heads read of the text [1, hidden_size]; None if no call has shown it."""
        ids, seen = context.ids, self._seen.take()
        if self._reader is not None:
            result = yield from self._reader.read(seen, ids, Outputs(hidden=(self._reader.last,)), 0)
            return self._reader.state(result) if result.hidden else None
        if not seen or seen[-1].follow[-1] != ids[-1] or seen[-1].start + len(seen[-1].follow) != len(ids) - 1:
            return None
        last = seen[-1].states[-1:, 0]
        return last if self._ladder.norm is None else self._ladder.norm(last)
