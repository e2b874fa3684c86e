"""Hydra (S20): a head trained on the model's last hidden state steps from drafted token to drafted token.

Level by level, the likeliest nodes are stepped on together: one run of a small graph a level. A node is
only stepped on while its path is among the best that the draft has room for (DySpec, S42).
"""

from __future__ import annotations

from collections.abc import Generator
from math import exp
from typing import Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, Proposal, State
from edgedec.drafters._calls import EdgeCalls
from edgedec.drafters._online import OnlineCorrection
from edgedec.errors import UsageError
from edgedec.runtime import Outputs, Runtime
from edgedec.speculation.heads import DraftHead, Floats, HeadInterface, open_head

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
AUTO = 5
HEAD = HeadInterface("hydra", inputs=("state", "embedding"), outputs=("state_out", "ids", "logprobs"))
# (path probability, order, token, parent's order, own probability, level's row of the parent)
_Node = tuple[float, int, int, int, float, int]
_LEAST, _MOST = 1e-4, 0.999
_EMBEDDINGS = 1 << 18  # numbers in those that are kept: 1 MiB


def make(host: DrafterContext, depth: int = 0, beam: int = 4, online: int = 0) -> Hydra:
    """depth: how many tokens ahead at most; 0 as many as the head was trained for. beam: nodes stepped on at
    once. online: 1: the head learns from verified tokens."""
    if depth < 0 or beam < 1:
        raise UsageError(f"drafter hydra: depth={depth}, beam={beam}: must be from 0 and from 1")
    head = open_head(host.bundle, HEAD, host.runtime.capabilities.threads)
    correction = OnlineCorrection(host.runtime.spec.hidden_size) if online else None
    drafter = Hydra(head, host.runtime, depth or head.facts.depth, beam, correction)
    drafter._embeddings = host.table("embeddings", lambda: drafter._embeddings)
    return drafter


class Hydra(BaseDrafter):
    def __init__(
        self, head: DraftHead, runtime: Runtime, depth: int, beam: int, online: OnlineCorrection | None = None
    ) -> None:
        self._online = online
        self._head, self._depth, self._beam = head, depth, beam
        self._calls, self._block = EdgeCalls(runtime), runtime.spec.n_blocks - 1
        self._most = max(_EMBEDDINGS // runtime.spec.hidden_size, 1)
        self.outputs = Outputs(hidden=(self._block,))
        self._hidden: Floats | None = None
        self._token = -1
        self._embeddings: dict[int, Floats] = {}

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        # The observed state is that of the token before the last; the text may have ended earlier.
        if self._hidden is None or nodes < 1 or context.ids[-1] != self._token:
            return Draft()
        return self._search(self._hidden, nodes, max(min_path_prob, _LEAST))

    def observe(self, step: StepResult) -> None:
        if self._online is not None:
            self._online.learn(list(step.picked))
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
        """The tree of the best nodes found, by falling path probability; a parent comes before its children."""
        frontier: list[_Node] = [(-1.0, -1, self._token, -1, 1.0, 0)]
        found: list[_Node] = []
        order = 0
        if self._online is not None:
            self._online.begin()
        for level in range(self._depth):
            if level:
                states = states[[node[5] for node in frontier]]
            embedded = yield from self._embedded([node[2] for node in frontier])
            states, ids, logprobs = self._head.run(states, embedded)
            if self._online is not None:
                ids, logprobs = self._online.read([node[1] for node in frontier], states, ids, logprobs)
            fresh: list[_Node] = []
            for row, (node, tokens, scores) in enumerate(zip(frontier, ids.tolist(), logprobs.tolist())):
                for token, score in zip(tokens, scores):
                    p = min(exp(score), _MOST)
                    path = node[0] * p
                    if -path < min_path_prob:
                        break  # the likeliest come first
                    fresh.append((path, order, token, node[1], p, row))
                    order += 1
            if self._online is not None:
                for _, number, token, parent, *_ in fresh:
                    self._online.link(number, parent, token)
            found = sorted(found + fresh)[:nodes]
            last = found[-1] if len(found) == nodes else (0.0, 0)
            # After the worst of a full draft nothing fits: it would have to take its own parent's place.
            frontier = sorted(node for node in fresh if node < last)[: self._beam]
            if not frontier:
                break
        return _tree(found)

    def _embedded(self, tokens: list[int]) -> Generator[Request, Completed, Floats]:
        """Their embeddings [n, hidden_size]; one call for those that are not known yet."""
        known = self._embeddings
        rows = {token: known[token] for token in tokens if token in known}
        if missing := [token for token in dict.fromkeys(tokens) if token not in rows]:
            fresh = yield from self._calls.embed(missing)
            rows |= {token: fresh[i : i + 1] for i, token in enumerate(missing)}
            if len(known) + len(missing) > self._most:
                known.clear()
            known.update((token, rows[token].copy()) for token in missing)
        return rows[tokens[0]] if len(tokens) == 1 else np.concatenate([rows[token] for token in tokens])


def _tree(found: list[_Node]) -> Draft:
    place = {node[1]: i for i, node in enumerate(found)}
    place[-1] = -1
    return Draft([n[2] for n in found], [place[n[3]] for n in found], [n[4] for n in found])
