"""The governor: chooses what to draft next, so that decoding is not slower than without drafts.

Every proposal is a tree of guesses. The drafters' probabilities are calibrated (`calibration`), the trees merged
(`merger`, `proposals`) and the nodes offered by the chance of their paths; the number that runs is decided for all
sequences of the call by the cost of calls (`costs`; `edgedec.decoding.allocation`). Guesses that do not run are still
compared with the model's picks, which costs no forward call. The drafters' own time is limited by a `budget`; drafters
that gain less than their time are backed off (`backoff`, `accounts`) or never used (`prospects`). `silence` has the
behaviour without budget.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Any

from edgedec.decoding.allocation import Grant, Offer
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Drafter, Effort, Proposal
from edgedec.decoding.messages import Request, StepResult
from edgedec.speculation import members as every
from edgedec.speculation.accounts import Prices, UsualTime, judge_all, plain_seconds, reading_share, settle
from edgedec.speculation.backoff import STEPS, DrafterStats
from edgedec.speculation.budget import Budget
from edgedec.speculation.costs import Costs
from edgedec.speculation.cutting import allowed, cut, offer_of, probing, promised
from edgedec.speculation.drawn import beyond
from edgedec.speculation.governed import ACTIVE, SILENT, Governed
from edgedec.speculation.outside import OutsideCalls, Usual
from edgedec.speculation.own_time import OwnTime
from edgedec.speculation.proposals import Proposals, drawn_limit
from edgedec.speculation.prospects import leave_out, unknown
from edgedec.speculation.quick import QuickDraft
from edgedec.speculation.selection import UsefulRows
from edgedec.speculation.shared import SharedLearning
from edgedec.speculation.silence import RESTING
from edgedec.speculation.survey import Survey
from edgedec.trees.calibration import due

# A drafter is expensive if its proposal takes such a share of a call.
_EXPENSIVE = 0.02
_NONE = Draft(why=RESTING)
_UNMEASURED = Draft(why="the cost of a call is not measured yet")


class Governor(Governed):
    """A drafter made of drafters. `costs`: the cost of calls; `survey` completes them. fixed: the tokens of each draft;
    0: chosen by cost. trees: False for chains only. `shared`: the learning that sessions share."""

    def __init__(
        self,
        drafters: Sequence[tuple[str, Drafter]],
        costs: Callable[[], Costs],
        fixed: int = 0,
        trees: bool = True,
        survey: Callable[[Costs], Survey | None] = lambda costs: None,
        shared: SharedLearning | None = None,
    ) -> None:
        super().__init__(drafters, shared)
        self.effort: Effort | None = None
        self._measure, self._find_survey = costs, survey
        self._fixed, self._trees = fixed, trees
        self._costs: Costs | None = None
        self._survey: Survey | None = None
        self._budget = shared.budget if shared else Budget()
        self._calls, self._sequences = 0, 1
        self._plain, self._length, self._usual, self._useful = 0.0, 0, UsualTime(), UsefulRows(fixed)
        self._outside = OutsideCalls(Usual())
        self._forget()

    def _forget(self) -> None:
        self._found: Proposals | None = None
        self._kept: list[int] = []
        self._drafted, self._read, self._spent, self._probing = 0, 0, 0.0, False
        self._watching = None
        self._quick: QuickDraft | None = None

    @property
    def costs(self) -> Costs:
        """The costs of calls, created on first use."""
        if self._costs is None:
            self._costs = self._measure()
            self._survey = self._find_survey(self._costs)
            self._outside.usual = self._costs.usual
        return self._costs

    def prepare(self) -> None:
        """Do nothing: costs are learned from calls."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        if self._silence.sleeps(context.ids):
            return _NONE if self._readers.any else self._silence.rests
        self._forget()
        costs, self._sequences = self.costs, context.concurrent + 1
        self._outside.begin(context.gaps, self._sequences)
        self._length, known = context.cache.length, costs.covers(self._sequences)
        self._plain = plain_seconds(costs, self._sequences, self._length)
        if known:
            self._budget.start(self._plain)
            if not self._calls and not self._fixed and self._budget.lacks(self._needed, self._worth):
                self._phase = SILENT  # other texts have already used up the budget
        probe = 0 if self._fixed or self._survey is None else self._survey.more(self._sequences, nodes)
        self._probing = probe > 0
        self._affords = bool(self._fixed) or self._budget.left > 0 or not known
        if nodes < 1:
            return _NONE
        if probe and self._phase == SILENT:
            self._outside.add_draft()
            return probing(Draft(), probe, context, self._trees)
        if not (known or probe or self._fixed):
            return _UNMEASURED
        if not self._fixed and self._outside.lacks(self._worth, self._sequences):
            return _UNMEASURED
        active = self._fixed or probe or self._phase == ACTIVE
        look = self._silence.promising
        found = 0 if active else look(context, nodes, costs, self._budget, self._outside)
        if found and self._trees and self._sequences == 1 and context.hooks.allowed is None:
            return self._propose_found(found)
        return self._propose(context, nodes, min_path_prob, probe) if active or found else _NONE

    def _propose_found(self, nodes: int) -> Draft:
        """A draft of the best `nodes` nodes that a check found, without further decisions."""
        assert self._compiled is not None
        began = perf_counter()
        self._quick = QuickDraft.of(self._compiled, nodes, self._names)
        self._sizes[nodes] = self._sizes.get(nodes, 0) + 1
        self._outside.add_draft()
        self._spent = perf_counter() - began
        return self._quick.draft

    def _propose(
        self, context: Context, nodes: int, min_path_prob: float, probe: int
    ) -> Generator[Request | Offer, Any, Draft]:
        watch, self._read = OwnTime(), len(context.ids)
        found = Proposals.of(self._compiled, self.costs.seconds)
        self._calls += 1
        if self._useful.update(self.costs, self._sequences):
            leave_out(self.members, self.costs, self._readers, self._fixed)
        limit = min(nodes, max(self._useful.limit, probe))
        if limit:
            least = max(min_path_prob, self._useful.least)
            yield from found.collect(
                self.members, lambda member: self._room(member, found, context, limit), context, least, self._trees
            )
        draft, waited = yield from self._chosen(found, context, limit, probe)
        self._spent = found.own(watch, waited, draft)
        self._outside.count(max(self._spent - found.clock.ran, 0.0))
        if self._kept or found.own_rows:
            self._outside.add_draft()
        return draft

    def _room(self, member: DrafterStats, found: Proposals, context: Context, limit: int) -> int:
        """The most tokens that a drafter may propose now."""
        if self._fixed:
            return limit
        return drawn_limit(member, self.costs, self._sequences, context, limit) if self._uses(member, found) else 0

    def _uses(self, member: DrafterStats, found: Proposals) -> bool:
        """Whether this drafter proposes. An expensive one is judged by the tokens expected of those before it, and
        needs enough budget."""
        costs = self.costs
        if self._phase != ACTIVE:
            return member.drafter in self._silence.drafters and member.drafts(0)
        member.expensive = len(costs.seconds) > 1 and member.propose_s > _EXPENSIVE * costs.seconds[1]
        affordable = self._affords and self._budget.left > 2 * member.propose_s
        ready = member.observed and not member.hopeless and not unknown(member.drafter, costs)
        if not ready or ((member.expensive or member.draws) and not affordable):
            return member.skip()
        if not member.expensive:
            return member.drafts(0)
        tokens = promised(found, self._order(found), self._sequences, costs, self._outside.usual)
        return member.drafts(sum(tokens > step for step in STEPS))

    @property
    def _worth(self) -> float:
        """The seconds of a token without drafts."""
        return self._plain / self._sequences + self._outside.usual.plain

    def _order(self, found: Proposals) -> list[int]:
        """The nodes to run first."""
        return found.merger.best_first() if self._trees else found.merger.best_chain()

    def _chosen(
        self, found: Proposals, context: Context, limit: int, probe: int
    ) -> Generator[Offer, Grant, tuple[Draft, float]]:
        """The draft that runs, and the seconds that were spent waiting for the decision."""
        order, drawn, waited = self._order(found), found.drawn, 0.0
        if drawn is not None:
            order = beyond(drawn, found.merger, order) if self._trees else []
        row = self.costs.row(self._sequences, min(len(order), limit))
        order = allowed(context, found, order[:limit], row)[: max(limit - found.drawn_rows, 0)]
        grant = Grant(len(order), len(order), 1.0)
        if probe:
            order = order[:probe]
        elif not self._fixed and (order or drawn is not None):
            since = perf_counter()
            grant = yield offer_of(found, context, order, self.costs, self._budget.trust, self._outside.usual)
            waited = perf_counter() - since
        self._found, self._kept = found, order[: grant.nodes]
        self._drafted = grant.drafted + found.drawn_rows
        self._sizes[len(self._kept)] = self._sizes.get(len(self._kept), 0) + 1
        if self._phase == SILENT and not self._kept:
            self._silence.refused(self._worth)
        why = f"{len(self._kept)} of {len(found.merger)} guesses, {grant.speed:.2f}x expected"
        if probe:
            return probing(cut(found, context, self._kept, self._names, ""), probe, context, self._trees), waited
        return cut(found, context, self._kept, self._names, "fixed" if self._fixed else why), waited

    def observe(self, step: StepResult) -> None:
        if self._quick is not None:
            self._observe_found(self._quick, step)
            return
        if self._silence.asleep or (self._phase == SILENT and self._found is None):
            self._observe_silently(step)
            return
        watch, costs = OwnTime(), self.costs
        beyond = self._outside.charge(self._sequences)
        self._measured(step, costs)
        drafted = max(self._drafted, len(step.rows) - step.root - 1 if self._found is not None else 0)
        plain, usual = self._plain, self._outside.usual.plain
        prices = Prices.of(costs, self._sequences, step.total, min(drafted, step.total - 1), plain, usual)
        if self._found is not None:
            judge_all(self._found, self._kept, step, self.members, self._budget, prices)
        (self._readers.observe if self._phase == SILENT else self._learn)(step)
        if not self._fixed and prices.token:
            learned, opening = watch.seconds(), 0.0
            self._outside.count(learned)
            spent = self._spent + learned + beyond
            if self._found is not None:
                costly, opening = every.times_apart(self.members)
                self._outside.usual.add_trial(self._usual.proposed(spent, prices.call, costly))
            self._settle(step, prices, self._usual.cut(spent, prices.call, opening))

    def _measured(self, step: StepResult, costs: Costs) -> None:
        if step.whole and costs.add(step.total, step.seconds, step.cells):
            self._plain = plain_seconds(costs, self._sequences, self._length)
            if self._survey is not None:
                self._survey.add(step.seconds, self._plain)

    def _learn(self, step: StepResult) -> None:
        learners, self._watching = self._learners(), None
        for member in self.members:
            member.observed = member in learners
        every.observe_all(self.members, step, self._compiled)
        if self._shared is not None and self._found is not None and due(self._calls):
            every.share_calibrations(self.members, self._shared)

    def _observe_found(self, quick: QuickDraft, step: StepResult) -> None:
        """Record the result of a draft that a check found."""
        assert self._compiled is not None
        self._quick, outside, drafted = None, self._outside, len(quick.draft.tokens)
        beyond = outside.charge(1)
        self._measured(step, self.costs)
        prices = Prices.of(self.costs, 1, step.total, drafted, self._plain, outside.usual.plain)
        cut = self._usual.cut(self._spent + beyond, prices.call)
        spent, gain = quick.settle(self._compiled, self.members, self._budget, prices, step, cut)
        self._readers.observe(step)
        outside.count(max(spent - beyond, 0.0))
        took = max(spent - outside.usual.draft, 0.0)
        self._silence.drafted(drafted, len(step.picked) - 1, took, gain, self.costs.finds)

    def _observe_silently(self, step: StepResult) -> None:
        """Do as little as possible: the cost of silence must be far below the allowance."""
        self._readers.observe(step)
        if self._silence.asleep:
            return
        self._silence.looked(self._outside.charge(self._sequences), self._budget)
        self._budget.add_silence(self._worth, self._silence.passed())
        self._phase += self._budget.left > self._needed
        if self._probing or self._silence.measures():
            self._measured(step, self.costs)
        if self._phase == SILENT:
            self._silence.rest(self._worth, self._budget, self._needed)

    def _settle(self, step: StepResult, prices: Prices, spent: float) -> None:
        """Update the budget, and choose whether drafters are used at the next call."""
        if self._found is None:
            self._budget.add_forced(len(step.picked) - 1)
        spent = max(0.0, spent - reading_share(step, self._read))
        own = 0 if self._probing or self._found is None else len(self._kept) + self._found.own_rows
        gain = settle(self._budget, step, own, spent, prices)
        if self._phase == SILENT and own:
            took = max(spent - self._outside.usual.draft, 0.0)
            self._silence.drafted(own, len(step.picked) - 1, took, gain, self.costs.finds)
        # Without budget for another proposal the phase is silent, unless a proposal is negligible.
        self._phase = SILENT if self._budget.lacks(self._needed, prices.token) else min(self._phase + 1, ACTIVE)
        self._readers.limit(prices.call, every.reading_time(self.members))

    @property
    def _needed(self) -> float:
        """The seconds of a trial: the larger of this text's recent minimum and the mean of the runtime's texts."""
        return max(self._usual.idle, self._outside.usual.trial)

    def reset(self) -> None:
        every.restart_all(self.members)
        if self._compiled is not None:
            self._compiled.reset()
        self._silence.reset()
        leave_out(self.members, self.costs, self._readers, self._fixed)
        self._forget()
