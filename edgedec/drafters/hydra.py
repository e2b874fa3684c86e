"""Hydra (S20): a head trained on the model's last hidden state steps from drafted token to drafted token.

Level by level, the likeliest nodes are stepped on together: one run of a small graph a level. A node is
only stepped on while its path is among the best that the draft has room for (DySpec, S42).
"""

from __future__ import annotations

from math import exp

import numpy as np

from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, StepResult
from edgedec.errors import UsageError
from edgedec.runtime import Runtime, Outputs
from edgedec.speculation.heads import DraftHead, Floats, open_head

# (path probability, order, token, parent's order, own probability, level's row of the parent)
_Node = tuple[float, int, int, int, float, int]
_LEAST, _MOST = 1e-4, 0.999
_EMBEDDINGS = 1 << 18  # numbers in those that are kept: 1 MiB


def make(host: DrafterContext, depth: int = 0, beam: int = 4) -> Hydra:
    """depth: how many tokens ahead at most; 0 as many as the head was trained for. beam: nodes stepped on at
    once."""
    if depth < 0 or beam < 1:
        raise UsageError(f"drafter hydra: depth={depth}, beam={beam}: must be from 0 and from 1")
    head = open_head(host.bundle, "hydra", getattr(host.runtime, "threads", 1))
    drafter = Hydra(head, host.runtime, depth or head.facts.depth, beam)
    drafter._embeddings = host.table("embeddings", lambda: drafter._embeddings)
    return drafter


class Hydra(BaseDrafter):
    outputs = HIDDEN

    def __init__(self, head: DraftHead, runtime: Runtime, depth: int, beam: int) -> None:
        self._head, self._runtime, self._depth, self._beam = head, runtime, depth, beam
        self._hidden: Floats | None = None
        self._token = -1
        self._embeddings: dict[int, Floats] = {}

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        # What was observed belongs to the token before the last; the text may have ended earlier.
        if self._hidden is None or nodes < 1 or context.ids[-1] != self._token:
            return Draft()
        return _tree(self._search(nodes, max(min_path_prob, _LEAST)))

    def observe(self, step: StepResult) -> None:
        hidden = seen.output.hidden
        assert hidden is not None
        last = seen.path[-1]
        self._hidden, self._token = hidden[last : last + 1].copy(), seen.picked[-1]

    def reset(self) -> None:
        self._hidden, self._token = None, -1

    def _search(self, nodes: int, min_path_prob: float) -> list[_Node]:
        """The best nodes found, by falling path probability; a parent stands before its children."""
        assert self._hidden is not None
        states, frontier = self._hidden, [(-1.0, -1, self._token, -1, 1.0, 0)]
        found: list[_Node] = []
        order = 0
        for level in range(self._depth):
            if level:
                states = states[[node[5] for node in frontier]]
            states, ids, logprobs = self._head.hydra(states, self._embedded([node[2] for node in frontier]))
            fresh: list[_Node] = []
            for row, (node, tokens, scores) in enumerate(zip(frontier, ids.tolist(), logprobs.tolist())):
                for token, score in zip(tokens, scores):
                    p = min(exp(score), _MOST)
                    path = node[0] * p
                    if -path < min_path_prob:
                        break  # the likeliest come first
                    fresh.append((path, order, token, node[1], p, row))
                    order += 1
            found = sorted(found + fresh)[:nodes]
            last = found[-1] if len(found) == nodes else (0.0, 0)
            # Behind the worst of a full draft nothing fits: it would have to take its own parent's place.
            frontier = sorted(node for node in fresh if node < last)[: self._beam]
            if not frontier:
                break
        return found

    def _embedded(self, tokens: list[int]) -> Floats:
        """Their embeddings [n, H], each asked for once."""
        known, most = self._embeddings, max(_EMBEDDINGS // self._runtime.spec.hidden_size, 1)
        if len(known) + len(tokens) > most:
            known.clear()
        for token in tokens:
            if token not in known:
                known[token] = self._runtime.embed(np.array([token], np.int64))
        return known[tokens[0]] if len(tokens) == 1 else np.concatenate([known[token] for token in tokens])


def _tree(found: list[_Node]) -> Draft:
    place = {node[1]: i for i, node in enumerate(found)}
    place[-1] = -1
    return Draft([n[2] for n in found], [place[n[3]] for n in found], [n[4] for n in found])
