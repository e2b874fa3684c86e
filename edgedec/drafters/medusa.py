"""Medusa (S20): heads trained on the model's last hidden state, one for each token ahead, guess independently.

One run of a small graph gives candidates for every depth; the tree takes their likeliest combinations.
"""

from __future__ import annotations

from math import exp

from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, StepResult
from edgedec.errors import UsageError
from edgedec.runtime import Outputs
from edgedec.speculation.heads import DraftHead, Floats, open_head
from edgedec.speculation.tree import Follower, grow

_LEAST, _MOST = 1e-4, 0.999


def make(host: DrafterContext, depth: int = 0) -> Medusa:
    """depth: how many tokens ahead at most; 0 as many as the head has."""
    if depth < 0:
        raise UsageError(f"drafter medusa: depth={depth}: must be 0 or more")
    head = open_head(host.bundle, "medusa", getattr(host.runtime, "threads", 1))
    return Medusa(head, min(depth or head.facts.depth, head.facts.depth))


class Medusa(BaseDrafter):
    outputs = HIDDEN

    def __init__(self, head: DraftHead, depth: int) -> None:
        self._head, self._depth = head, depth
        self._hidden: Floats | None = None
        self._token = -1

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        # What was observed belongs to the token before the last; the text may have ended earlier.
        if self._hidden is None or nodes < 1 or context.ids[-1] != self._token:
            return Draft()
        ids, logprobs = self._head.medusa(self._hidden)
        levels = list(zip(ids[0].tolist(), logprobs[0].tolist()))[: self._depth]
        followers = [_followers(*level, depth) for depth, level in enumerate(levels, 1)]
        followers.append([])
        return grow(0, followers.__getitem__, nodes, min_path_prob)

    def observe(self, step: StepResult) -> None:
        hidden = seen.output.hidden
        assert hidden is not None
        last = seen.path[-1]
        self._hidden, self._token = hidden[last : last + 1].copy(), seen.picked[-1]

    def reset(self) -> None:
        self._hidden, self._token = None, -1


def _followers(ids: list[int], logprobs: list[float], depth: int) -> list[Follower[int]]:
    """Of every node above this depth the same; the unlikely are left out."""
    return [(token, min(p, _MOST), depth) for token, p in zip(ids, map(exp, logprobs)) if p >= _LEAST]
