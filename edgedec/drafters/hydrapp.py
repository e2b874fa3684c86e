"""Drafts with published Hydra and Hydra++ heads.

Each depth has a head that reads a state and the tokens up to its place. Hydra++ makes that state with a layer that
attends to the target's states of the whole text.

Layout and names of its tensors: `models/drafts/hydrapp.py`.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import Draft, DrafterContext, DrafterFacts
from edgedec.drafters._calls import TokenEmbeddings
from edgedec.drafters._heads.ladder import Ladder
from edgedec.drafters._heads.levels import Levels
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._heads.state_drafter import StateDrafter
from edgedec.drafters._options import Beam, TrainedLength
from edgedec.runtime import Hidden, Outputs

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
DRAFT = "hydrapp"

FACTS = DrafterFacts(auto=8, draft=DRAFT, guides=True, paper="Hydra++")


def make(host: DrafterContext, length: TrainedLength = 0, beam: Beam = 4) -> HydraLadder:
    return HydraLadder(host, length, beam)


class HydraLadder(StateDrafter):
    def __init__(self, host: DrafterContext, depth: int, beam: int) -> None:
        facts = facts_of(host, DRAFT)
        super().__init__(host, facts)
        self._ladder, self._beam = Ladder(host, facts), beam
        self._depth = min(depth or facts.depth, facts.depth)
        self._embeddings = TokenEmbeddings(host)

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
