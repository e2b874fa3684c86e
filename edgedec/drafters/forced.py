"""Drafts the tokens that a constraint leaves no choice about (jump-forward decoding).

A schema's punctuation and names of keys are known before the model runs, so they are rows of one call. They are a
draft like any other, for the model may spell the same text with other tokens: the output stays the same. They are
drafted before any guess, whatever the governor decides about guesses: nothing is more likely to be accepted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import Draft, Drafter, DrafterContext, Proposal
from edgedec.drafters._wrapped import Wrapped
from edgedec.drafters.off import Off

_MOST = 16
# Codes of `edgedec.speculation.reasons`, which is above this package.
_NO_ROOM, _USED = "no_room", "used"
# The smoothing of the acceptance rate, the rate below which nothing is drafted, and the calls until the next try.
_SMOOTH, _DOUBTFUL, _RETRY = 0.1, 0.3, 16


def make(host: DrafterContext) -> Forced:
    return Forced(Off())


class Forced(Wrapped):
    """Another drafter, used where nothing is forced."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.proposed = self.accepted = 0
        # Calls by the number of forced tokens in them.
        self._sizes = Counter[int]()
        self._sure, self._passed, self._pending = 1.0, 0, 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        tokens = context.hooks.forced() if nodes > 0 else ()
        if tokens:
            tokens = tokens[: min(nodes, self._limit())]
        self._pending = len(tokens)
        if not tokens:
            return self.drafter.propose(context, nodes, min_path_prob)
        self.drafter.propose(context, 0, 0.0)  # it has no draft in the next call
        self._sizes[len(tokens)] += 1
        draft = Draft.chain(tokens, [self._sure] * len(tokens))
        return Draft(draft.tokens, draft.parents, draft.p, by=("forced",) * len(tokens), why="forced")

    def _limit(self) -> int:
        """The lower the acceptance rate, the shorter: one token at least, none where the model hardly ever agrees."""
        if self._sure < _DOUBTFUL:
            self._passed += 1
            return self._passed % _RETRY == 0
        return 1 + int((_MOST - 1) * self._sure**4)

    def observe(self, step: StepResult) -> None:
        if self._pending:
            accepted = len(step.path) - 1
            self.proposed += self._pending
            self.accepted += accepted
            self._sure += (accepted / self._pending - self._sure) * _SMOOTH
        self.drafter.observe(step)

    def report(self) -> dict[str, Any]:
        """The other drafter's report, and what was forced, if anything was."""
        report, n = self.drafter.report(), self._sizes.total()
        if not n:
            return report
        forced = {"proposed": self.proposed, "accepted": self.accepted, "seconds": 0.0, "state": _USED, "asked": n}
        sizes = Counter({int(size): calls for size, calls in report.get("sizes", {}).items()}) + self._sizes
        # The other drafter counted these calls as calls without room.
        calls = Counter(report.get("calls", {}))
        counted = min(n, calls[_NO_ROOM])
        return {
            **report,
            "silent": report.get("silent", 0) - counted,
            "calls": dict(calls - Counter({_NO_ROOM: counted})),
            "sizes": {str(size): sizes[size] for size in sorted(sizes)},
            "drafters": {**report.get("drafters", {}), "forced": forced},
        }

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, Forced):
            self.drafter.inherit(other.drafter)
