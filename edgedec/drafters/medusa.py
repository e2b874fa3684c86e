"""Medusa (S20): heads trained on the model's last hidden state, one for each token ahead, guess independently.

One run of a small graph gives candidates for every depth; the tree takes their likeliest combinations.
"""

from __future__ import annotations

from math import exp

from edgedec.decoding.context import Context
from edgedec.decoding.step import StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext
from edgedec.errors import UsageError
from edgedec.runtime import Outputs
from edgedec.speculation.heads import DraftHead, Floats, HeadInterface, open_head
from edgedec.speculation.tree import Follower, grow

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
AUTO = 6
HEAD = HeadInterface("medusa", inputs=("hidden",), outputs=("ids", "logprobs"))
_LEAST, _MOST = 1e-4, 0.999


def make(host: DrafterContext, depth: int = 0) -> Medusa:
    """depth: how many tokens ahead at most; 0 as many as the head has."""
    if depth < 0:
        raise UsageError(f"drafter medusa: depth={depth}: must be 0 or more")
    head = open_head(host.bundle, HEAD, host.runtime.capabilities.threads)
    return Medusa(head, min(depth or head.facts.depth, head.facts.depth), host.runtime.spec.n_blocks - 1)


class Medusa(BaseDrafter):
    def __init__(self, head: DraftHead, depth: int, block: int) -> None:
        """block: the model's last, whose output the head reads."""
        self._head, self._depth, self._block = head, depth, block
        self.outputs = Outputs(hidden=(block,))
        self._hidden: Floats | None = None
        self._token = -1

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        # The observed state is that of the token before the last; the text may have ended earlier.
        if self._hidden is None or nodes < 1 or context.ids[-1] != self._token:
            return Draft()
        ids, logprobs = self._head.run(self._hidden)  # [1, depth, top] each, the likeliest first
        levels = list(zip(ids[0].tolist(), logprobs[0].tolist()))[: self._depth]
        followers = [_followers(*level, depth) for depth, level in enumerate(levels, 1)]
        followers.append([])
        return grow(0, followers.__getitem__, nodes, min_path_prob)

    def observe(self, step: StepResult) -> None:
        last = step.root + step.path[-1]
        self._hidden, self._token = step.result.hidden[self._block][last : last + 1].copy(), step.picked[-1]

    def reset(self) -> None:
        self._hidden, self._token = None, -1


def _followers(ids: list[int], logprobs: list[float], depth: int) -> list[Follower[int]]:
    """Of every node above this depth the same; the unlikely are left out."""
    return [(token, min(p, _MOST), depth) for token, p in zip(ids, map(exp, logprobs)) if p >= _LEAST]
