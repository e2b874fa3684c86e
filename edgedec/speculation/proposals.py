"""The proposals of all drafters for one call, merged."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgedec.decoding.allocation import Offer
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft
from edgedec.decoding.host_time import OwnTime
from edgedec.decoding.messages import Request, StepResult
from edgedec.drafters._calls import CallClock
from edgedec.speculation.bank import Bank
from edgedec.speculation.compiled import CompiledMerger
from edgedec.speculation.costs import Costs
from edgedec.speculation.prices import Prices
from edgedec.speculation.record import DrafterRecord
from edgedec.trees.merge import MergedTree, TreeMerger, is_chain


@dataclass
class Proposals:
    """`merger`: the guesses; `drawn`, `drawn_by`: a draft of drawn tokens and its drafter; `started`: a draft whose
    first blocks have run, and the nodes of its tokens; prompts: prompt rows below the draft, of the drafter
    `prompting`; seconds: of calls, by rows; asked: the numbers of the drafters that proposed."""

    merger: MergedTree = field(default_factory=TreeMerger)
    drawn: Draft | None = None
    drawn_by: DrafterRecord | None = None
    started: Draft | None = None
    started_places: Sequence[int] = ()
    prompts: int = 0
    prompting: int = -1
    clock: CallClock = field(default_factory=CallClock)
    seconds: Sequence[float] = ()
    asked: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, compiled: CompiledMerger | None, seconds: Sequence[float]) -> Proposals:
        """An empty value; the runtime merges the trees if it can."""
        if compiled is None:
            return cls(seconds=seconds)
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
        members: Sequence[tuple[int, DrafterRecord]],
        room: Callable[[DrafterRecord], int],
        context: Context,
        min_path_prob: float,
        trees: bool,
    ) -> Generator[Request | Offer, Any, None]:
        """Have these drafters, with their numbers, propose one after another, each at most `room` tokens."""
        for number, member in members:
            nodes = room(member)
            if not nodes:
                continue
            draft = yield from self._proposed(member, context, nodes, min_path_prob)
            self.asked.append(number)
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

    def _proposed(
        self, member: DrafterRecord, context: Context, nodes: int, min_path_prob: float
    ) -> Generator[Request | Offer, Any, Draft]:
        watch, waited, ran = OwnTime(), self.clock.waited, self.clock.ran
        proposal = member.drafter.propose(context, nodes, min_path_prob)
        draft = proposal if isinstance(proposal, Draft) else (yield from self.clock.run(proposal))
        took = watch.seconds(self.clock.waited - waited, self.clock.ran - ran)
        member.add_time(max(took - self.prepaid(draft, len(draft.tokens)), 0.0))
        return draft

    def order(self, trees: bool) -> list[int]:
        """The nodes to run first."""
        return self.merger.best_first() if trees else self.merger.best_chain()

    def promised(self, prices: Prices) -> float:
        """The expected accepted tokens of the guesses so far that are worth their rows."""
        self.merger.best_first()
        least = prices.added[min(1, len(prices.added) - 1)] / prices.token
        return sum(chance for chance in self.merger.chances if chance > least)

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


def judge(
    found: Proposals, kept: Sequence[int], step: StepResult, members: Sequence[DrafterRecord], bank: Bank
) -> tuple[list[float], list[int]]:
    """Test all guesses against the picked tokens. Returns, by drafter, the tokens that its guesses were expected to add
    and the rows that ran for it: a node counts for the first of its drafters, by its calibrated chance, which is less
    noisy than the outcome."""
    guesses, chances = found.merger.guesses, found.merger.chances
    path = found.merger.test(step.picked, [member.calibration for member in members])
    ran = set(kept)
    bank.add_guesses(sum(chances[node] for node in kept), len(ran.intersection(path)))
    tokens, rows = [0.0] * len(members), [0] * len(members)
    for node in kept:
        for number, _ in guesses[node]:
            members[number].proposed += 1
        tokens[guesses[node][0][0]] += chances[node]
        rows[guesses[node][0][0]] += 1
    for node in ran.intersection(path):
        for number, _ in guesses[node]:
            members[number].accepted += 1
    if found.prompts:
        rows[found.prompting] += found.prompts
    if found.drawn_by is not None:
        drawn = found.drawn_rows
        accepted, number = sum(0 < row <= drawn for row in step.path), members.index(found.drawn_by)
        found.drawn_by.add_drawn(drawn, accepted)
        tokens[number] += accepted
        rows[number] += drawn
    return tokens, rows


def drawn_limit(member: DrafterRecord, costs: Costs, rows: int, context: Context, nodes: int) -> int:
    """The most tokens that a drafter may propose: fewer for a drafter of drawn tokens with low acceptance."""
    if not member.draws or context.sampling.temperature <= 0:
        return nodes
    return min(nodes, member.drawn_length(costs, rows))
