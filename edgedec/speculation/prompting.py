"""A governor with a drafter of prompt rows (parallel prompt decoding): they run below the chosen draft, if they pay."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any

from edgedec.decoding.allocation import Offer
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Drafter
from edgedec.decoding.host_time import OwnTime
from edgedec.decoding.messages import Request
from edgedec.drafters._prompting import Prompting, PromptPlan
from edgedec.speculation.governor import Governor
from edgedec.speculation.record import DrafterRecord


def has_prompts(drafters: Sequence[tuple[str, Drafter]]) -> bool:
    """Whether one of the drafters runs prompt rows."""
    return any(_runs_prompts(type(drafter)) for _, drafter in drafters)


@lru_cache(256)
def _runs_prompts(kind: type) -> bool:
    """`issubclass` with a protocol, which takes microseconds."""
    return issubclass(kind, Prompting)


class PromptingGovernor(Governor):
    """The governor of drafters of which one runs prompt rows. They are charged to that one and to the budget."""

    def _propose(
        self,
        context: Context,
        nodes: int,
        min_path_prob: float,
        asked: Sequence[tuple[int, DrafterRecord]],
        probe: int,
    ) -> Generator[Request | Offer, Any, Draft]:
        draft = yield from super()._propose(context, nodes, min_path_prob, asked, probe)
        number = next(i for i, member in enumerate(self.members) if isinstance(member.drafter, Prompting))
        drafter, found = self.members[number].drafter, self._found
        # Not with drawn rows, with rows whose first blocks have run, or under a policy, which may use attention
        # weights.
        fits = found is not None and found.drawn is None and draft.hidden is None and context.policy is None
        if probe or not fits or self.members[number] not in self._learners:
            return draft
        assert found is not None
        assert isinstance(drafter, Prompting)
        watch, waited, ran = OwnTime(), found.clock.waited, found.clock.ran
        draft = yield from found.clock.run(drafter.append(context, draft, self._plan(draft, nodes)))
        if draft.prompts is not None:
            found.prompts, found.prompting = len(draft.prompts.parents), number
            self._drafted += found.prompts
        self._spend(watch.seconds(found.clock.waited - waited, found.clock.ran - ran))
        return draft

    def _plan(self, draft: Draft, nodes: int) -> PromptPlan:
        assert self._found is not None
        chances = [self._found.merger.chances[node] for node in sorted(self._kept)]
        room, prices = min(nodes - len(draft.tokens), self._fixed or nodes), self._prices
        if self._fixed or prices is None:
            return PromptPlan(chances, room, 0.0)
        row = self.costs.row(self._sequences, max(len(self._kept), 1))
        return PromptPlan(chances, min(room, prices.affordable(self.account.left)), row / prices.token)
