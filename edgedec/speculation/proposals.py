"""The proposals of all drafters for one call, merged."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgedec.decoding.allocation import Offer
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft
from edgedec.decoding.messages import Request
from edgedec.drafters._calls import CallClock
from edgedec.speculation.backoff import DrafterStats
from edgedec.speculation.compiled import CompiledMerger
from edgedec.speculation.costs import Costs
from edgedec.speculation.own_time import OwnTime
from edgedec.trees.merge import MergedTree, TreeMerger, is_chain


@dataclass
class Proposals:
    """`merger`: the guesses; `drawn`, `drawn_by`: a draft of drawn tokens and its drafter; `started`: a draft whose
    first blocks have run, and the nodes of its tokens; prompts: prompt rows below the draft, of the drafter
    `prompting`; seconds: of calls, by rows."""

    merger: MergedTree = field(default_factory=TreeMerger)
    drawn: Draft | None = None
    drawn_by: DrafterStats | None = None
    started: Draft | None = None
    started_places: Sequence[int] = ()
    prompts: int = 0
    prompting: int = -1
    clock: CallClock = field(default_factory=CallClock)
    seconds: Sequence[float] = ()

    @classmethod
    def of(cls, compiled: CompiledMerger | None, seconds: Sequence[float]) -> Proposals:
        """An empty value; the runtime merges the trees if it can."""
        if compiled is None:
            return cls(seconds=seconds)
        compiled.clear()
        return cls(compiled, seconds=seconds)

    @property
    def drawn_rows(self) -> int:
        return 0 if self.drawn is None else len(self.drawn.tokens)

    @property
    def own_rows(self) -> int:
        """The rows that run besides guesses: drawn tokens and prompt rows."""
        return self.drawn_rows + self.prompts

    def collect(
        self,
        members: Sequence[DrafterStats],
        room: Callable[[DrafterStats], int],
        context: Context,
        min_path_prob: float,
        trees: bool,
    ) -> Generator[Request | Offer, Any, None]:
        """Have all drafters propose, one after another, each at most `room` tokens."""
        done = self._propose_tables(members, room, context, min_path_prob)
        for number, member in enumerate(members):
            nodes = 0 if number in done else room(member)
            if not nodes:
                continue
            draft = yield from self._proposed(member, context, nodes, min_path_prob)
            if draft.sampled is not None and draft.tokens and context.sampling.temperature > 0:
                member.draws = True
                if not trees and not is_chain(draft):
                    continue
                if self.drawn is None:
                    self.drawn, self.drawn_by = draft, member
                    continue
            places = self.merger.add(number, draft, member.calibration.estimates)
            if draft.hidden is not None:  # the cache holds the rows of the last such draft
                self.started, self.started_places = draft, places

    def _propose_tables(
        self,
        members: Sequence[DrafterStats],
        room: Callable[[DrafterStats], int],
        context: Context,
        min_path_prob: float,
    ) -> Sequence[int]:
        """Let the runtime's own tables propose, all in one call; returns their numbers."""
        merger = self.merger
        if not isinstance(merger, CompiledMerger):
            return ()
        rooms = {number: nodes for number in merger.numbers if (nodes := room(members[number]))}
        if rooms:
            merger.propose(context, max(rooms.values()), min_path_prob, sum(1 << number for number in rooms))
            seconds = merger.seconds.tolist()
            for number in rooms:
                members[number].add_proposal(seconds[number])
        return merger.numbers

    def _proposed(
        self, member: DrafterStats, context: Context, nodes: int, min_path_prob: float
    ) -> Generator[Request | Offer, Any, Draft]:
        watch, waited, ran = OwnTime(), self.clock.waited, self.clock.ran
        proposal = member.drafter.propose(context, nodes, min_path_prob)
        draft = proposal if isinstance(proposal, Draft) else (yield from self.clock.run(proposal))
        took = watch.seconds(self.clock.waited - waited, self.clock.ran - ran)
        member.add_proposal(max(took - self.prepaid(draft, len(draft.tokens)), 0.0))
        return draft

    def own(self, watch: OwnTime, waited: float, draft: Draft) -> float:
        """The drafters' own part of the time until this draft was chosen; waited: seconds of waiting for the grant."""
        seconds = watch.seconds(waited + self.clock.waited, self.clock.ran)
        return max(seconds - self.prepaid(draft, len(draft.tokens)), 0.0)

    def prepaid(self, draft: Draft, tokens: int) -> float:
        """The seconds that the call of a draft's first `tokens` tokens saves because its rows' first blocks have
        run."""
        if draft.hidden is None or len(self.seconds) < 2:
            return 0.0
        return draft.done * self.seconds[min(1 + tokens, len(self.seconds) - 1)]


def drawn_limit(member: DrafterStats, costs: Costs, rows: int, context: Context, nodes: int) -> int:
    """The most tokens that a drafter may propose: fewer for a drafter of drawn tokens with low acceptance."""
    if not member.draws or context.sampling.temperature <= 0:
        return nodes
    return min(nodes, member.drawn_length(costs, rows))
