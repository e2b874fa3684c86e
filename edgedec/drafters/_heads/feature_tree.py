"""Drafting with a head that has layers of its own: EAGLE-1 to 3, multi-token prediction.

The head reads the text up to its last token; then, level by level, the likeliest nodes are run together: one forward of
the head for all of them, and for all sequences of a batch. The tree grows where joint probability is largest, as in
EAGLE-2.
"""

from __future__ import annotations

from collections.abc import Generator

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import Draft, DrafterContext, Effort
from edgedec.drafters._heads.foreseen import Foreseen, Likeliest, upcoming
from edgedec.drafters._heads.levels import Levels
from edgedec.drafters._heads.pace import LevelPace
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._heads.state_drafter import LEAST, StateDrafter


class FeatureTree(StateDrafter):
    """depth: tokens ahead at most; beam: nodes run at once; k: tokens tried after each."""

    def __init__(self, host: DrafterContext, kind: str, depth: int, beam: int, k: int) -> None:
        facts = facts_of(host, kind)
        super().__init__(host, facts)
        assert self._reader is not None
        self._depth, self._beam, self._head = depth or facts.depth, beam, self._reader
        self._k, self._tokens = k, self._head.head.tokens
        self._pace = LevelPace()
        self._likeliest = Likeliest(k, (self._head.last,), self._tokens)
        self.effort = Effort(self._depth, self._head.head.macs)

    def observe(self, step: StepResult) -> None:
        super().observe(step)
        self._pace.add_call(step)

    def _sight(self, context: Context) -> Likeliest | Foreseen:
        """The reading of the head's outputs: the likeliest tokens, or the tokens that will be drawn."""
        if context.sampling.temperature <= 0:
            return self._likeliest
        numbers = upcoming(context, self._depth)
        return Foreseen(self._k, (self._head.last,), self._tokens, context.sampling, numbers)

    def _search(self, context: Context, nodes: int, least: float) -> Generator[Request, Completed, Draft]:
        reader, levels, sight = self._head, Levels(nodes, self._beam, least), self._sight(context)
        result = yield from reader.read(self._seen.take(), context.ids, sight.outputs, self._beam * self._depth)
        found = sight.guesses(result, 0)
        if found is None:
            return Draft()
        levels.add(*found)
        before = start = -1  # rows of the level before begin there
        for level in range(1, self._depth):
            if not levels.frontier or (least > LEAST and not self._pace.pays(levels.together)):
                break
            states, rows = reader.state(result), levels.rows
            parents = [-1 if before < 0 else before + row for row in rows]
            result = yield from reader.grow(levels.tokens, parents, states[rows], sight.outputs)
            self._pace.add_level(reader.seconds)
            before, start = start + 1, start + len(rows)
            found = sight.guesses(result, level)
            assert found is not None
            levels.add(*found)
        reader.end()
        return levels.draft()
