"""Drafting with a head that has layers of its own: EAGLE-1 to 3, multi-token prediction.

The head reads the text up to its last token; then, level by level, the likeliest nodes are run together: one forward of
the head for all of them, and for all sequences of a batch. The tree grows where joint probability is largest, as in
EAGLE-2.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request
from edgedec.drafters import Draft, DrafterContext, Effort
from edgedec.drafters._head_reader import facts_of
from edgedec.drafters._levels import Levels
from edgedec.drafters._state_drafter import StateDrafter
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.runtime import CallResult, Outputs


class FeatureTree(StateDrafter):
    """depth: tokens ahead at most; beam: nodes run at once; k: tokens tried after each."""

    def __init__(self, host: DrafterContext, kind: str, depth: int, beam: int, k: int) -> None:
        if depth < 0 or beam < 1 or k < 1:
            raise UsageError(f"drafter {kind}: depth={depth}, beam={beam}, k={k}: must be from 0, from 1 and from 1")
        facts = facts_of(host, kind)
        super().__init__(host, facts)
        assert self._reader is not None
        self._depth, self._beam, self._head = depth or facts.depth, beam, self._reader
        self._outputs = Outputs(top=k, logsum=True, hidden=(self._head.last,))
        self._tokens = _tokens(host, facts.tokens) if facts.tokens else None
        self.effort = Effort(self._depth, self._head.share(host.runtime.spec))

    def _search(self, context: Context, nodes: int, least: float) -> Generator[Request, Completed, Draft]:
        reader, levels = self._head, Levels(nodes, self._beam, least)
        result = yield from reader.read(self._seen.take(), context.ids, self._outputs, self._beam * self._depth)
        if result.ids is None:
            return Draft()
        levels.add(*self._guesses(result))
        before = start = -1  # rows of the level before begin there
        for _ in range(1, self._depth):
            if not levels.frontier:
                break
            states, rows = reader.state(result), levels.rows
            parents = [-1 if before < 0 else before + row for row in rows]
            result = yield from reader.grow(levels.tokens, parents, states[rows], self._outputs)
            before, start = start + 1, start + len(rows)
            levels.add(*self._guesses(result))
        reader.end()
        return levels.draft()

    def _guesses(self, result: CallResult) -> tuple[list[list[int]], list[list[float]]]:
        """The target's tokens that may follow each row, and how likely each is."""
        assert result.ids is not None
        assert result.scores is not None
        assert result.logsum is not None
        ids = result.ids if self._tokens is None else self._tokens[result.ids]
        probs = np.exp(result.scores - result.logsum[:, None])
        probs[result.ids < 0] = 0.0
        return ids.tolist(), probs.tolist()


def _tokens(host: DrafterContext, file: str) -> NDArray[np.int32]:
    """The target's token of each token of the draft vocabulary."""
    path = host.bundle.file(file)
    found = np.fromfile(path, "<i4")
    if not len(found) or found.min() < 0 or found.max() >= host.runtime.spec.vocab_size:
        raise BundleCorrupt(f"{path}: leads outside the vocabulary of {host.runtime.spec.vocab_size}")
    return found
