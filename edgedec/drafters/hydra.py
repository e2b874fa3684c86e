"""Drafts with a Hydra head, which steps from drafted token to drafted token.

Level by level, the likeliest nodes are stepped on together: one run of a small graph a level. A node is
only stepped on while its path is among the best that the draft has room for (DySpec).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts, Proposal, State
from edgedec.drafters._calls import TokenEmbeddings
from edgedec.drafters._heads.levels import Levels
from edgedec.drafters._heads.online import OnlineCorrection
from edgedec.drafters._networks.heads import DraftHead, Floats, HeadInterface, open_head
from edgedec.drafters._options import Beam, TrainedLength
from edgedec.plugins import Opt
from edgedec.runtime import Outputs

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
HEAD = HeadInterface("hydra", inputs=("state", "embedding"), outputs=("state_out", "ids", "logprobs"))
_LEAST = 1e-4

FACTS = DrafterFacts(auto=9, head=HEAD.kind, guides=True, paper="Hydra; Online Speculative Decoding")


def make(
    host: DrafterContext,
    length: TrainedLength = 0,
    beam: Beam = 4,
    online: Annotated[bool, Opt("The head learns from verified tokens.")] = False,
) -> Hydra:
    head = open_head(host.bundle, HEAD, host.runtime.capabilities.threads)
    correction = OnlineCorrection(host.runtime.spec.hidden_size) if online else None
    return Hydra(head, host, length or head.facts.depth, beam, correction)


class Hydra(BaseDrafter):
    def __init__(
        self, head: DraftHead, host: DrafterContext, depth: int, beam: int, online: OnlineCorrection | None = None
    ) -> None:
        self._online = online
        self._head, self._depth, self._beam = head, depth, beam
        self._embeddings, self._block = TokenEmbeddings(host), host.runtime.spec.n_blocks - 1
        self.outputs = Outputs(hidden=(self._block,))
        self._hidden: Floats | None = None
        self._token = -1

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        # The observed state is that of the token before the last; the text may have ended earlier.
        if self._hidden is None or nodes < 1 or context.ids[-1] != self._token:
            return Draft()
        return self._search(self._hidden, nodes, max(min_path_prob, _LEAST))

    def observe(self, step: StepResult) -> None:
        if self._online is not None:
            self._online.learn(step.picked)
        last = step.root + step.path[-1]
        self._hidden, self._token = step.result.hidden[self._block][last : last + 1].copy(), step.picked[-1]

    def reset(self) -> None:
        self._hidden, self._token = None, -1
        if self._online is not None:
            self._online.begin()

    def state(self) -> State:
        return {} if self._online is None else self._online.state()

    def restore(self, state: State) -> None:
        if self._online is not None and state:
            self._online.restore(state)

    def report(self) -> dict[str, Any]:
        return {} if self._online is None else self._online.report()

    def _search(self, states: Floats, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        """The tree of the best nodes found."""
        levels, tokens = Levels(nodes, self._beam, min_path_prob), [self._token]
        paths: list[tuple[int, ...]] = [()]
        if self._online is not None:
            self._online.begin()
        for _ in range(self._depth):
            embedded = yield from self._embeddings.of(tokens)
            states, ids, logprobs = self._head.run(states, embedded)
            if self._online is not None:
                ids, logprobs = self._online.read(paths, states, ids, logprobs)
            levels.add(ids.tolist(), np.exp(logprobs).tolist())
            if not levels.frontier:
                break
            states, tokens = states[levels.rows], levels.tokens
            paths = [(*paths[row], token) for row, token in zip(levels.rows, tokens, strict=True)]
        return levels.draft()
