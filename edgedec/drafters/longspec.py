"""Drafts with a LongSpec head, whose own cache is of constant size and which attends to the target's.

Its own state is of one size however long the text, and it is never shown the target's states: it can begin anywhere in
a text, at the price of reading a window. The tree grows level by level where joint probability is largest.

Layout and names of its tensors: `models/drafts/longspec.py`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts, Effort, Proposal
from edgedec.drafters._heads.guesses import guesses
from edgedec.drafters._heads.levels import Levels
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._heads.windowed import WindowedReader
from edgedec.drafters._options import Beam, Followers, Least, TrainedLength
from edgedec.runtime import Outputs

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
DRAFT = "longspec"
_LEAST = 1e-4

FACTS = DrafterFacts(auto=12, draft=DRAFT, guides=True, paper="LongSpec")


def make(
    host: DrafterContext, length: TrainedLength = 0, beam: Beam = 4, k: Followers = 8, least: Least = 0
) -> LongSpec:
    return LongSpec(host, length, beam, k, least)


class LongSpec(BaseDrafter):
    """A tree of guesses, level by level."""

    def __init__(self, host: DrafterContext, depth: int, beam: int, k: int, least: int) -> None:
        facts = facts_of(host, DRAFT)
        self._depth, self._beam, self._least = depth or facts.depth, beam, least
        self._head = WindowedReader(host, facts, 1 + beam * self._depth)
        self._outputs, self._tokens = Outputs(top=k, logsum=True), self._head.head.tokens
        self.effort = Effort(self._depth, self._head.share())

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        length = len(context.ids)
        if nodes < 1 or length < max(self._least, 2) or context.cache.length != length - 1:
            return Draft()
        return self._search(context, nodes, max(min_path_prob, _LEAST))

    def _search(self, context: Context, nodes: int, least: float) -> Generator[Request, Completed, Draft]:
        """The tree of paths with a chance of `least` or more, at most `nodes` of them."""
        head, levels = self._head, Levels(nodes, self._beam, least)
        result = yield from head.read(context, self._outputs)
        levels.add(*guesses(result, self._tokens))
        before = start = -1  # rows of the level before begin there
        for _ in range(1, self._depth):
            if not levels.frontier:
                break
            rows = levels.rows
            parents = [-1 if before < 0 else before + row for row in rows]
            result = yield from head.grow(levels.tokens, parents, self._outputs)
            before, start = start + 1, start + len(rows)
            levels.add(*guesses(result, self._tokens))
        head.end()
        return levels.draft()

    def reset(self) -> None:
        self._head.reset()

    def inherit(self, other: Drafter) -> None:
        """Do nothing: the state is computed from the text."""
        self._head.reset()

    def report(self) -> dict[str, Any]:
        return {"steps": self._head.calls, "state_bytes": self._head.nbytes}
