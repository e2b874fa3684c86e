"""The governor: what to draft next, so that decoding is never slower than without (S41, S30, S40).

Every proposal is a tree of guesses. Claims are calibrated (`calibration`), the trees merged (`merger`, `proposals`) and
the nodes offered by the chance of their paths; how many run is decided for all sequences of the call, by what calls
cost (`costs`; `edgedec.decoding.allocation`). Guesses that are not run are still tested by what the model picks: that
costs no forward call. The drafters' own time is limited by a `budget`; those that do not gain it are backed off
(`backoff`, `accounts`) or never used (`prospects`); what is done while there is no budget is in `silence`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Any

from edgedec.decoding.allocation import Grant, Offer, Others, best_of_one
from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request, StepResult
from edgedec.drafters import Draft, Drafter, Effort, Proposal, State
from edgedec.runtime import CallResult, Outputs, Rows
from edgedec.speculation import members as every
from edgedec.speculation.accounts import Prices, UsualTime, judge_all, plain_seconds, reading_share, settle
from edgedec.speculation.backoff import STEPS, DrafterStats
from edgedec.speculation.budget import ALLOWANCE, Budget
from edgedec.speculation.calibration import due
from edgedec.speculation.compiled import compiled_merger
from edgedec.speculation.costs import Costs
from edgedec.speculation.cutting import allowed, cut, offer_of, probing
from edgedec.speculation.drawn import beyond
from edgedec.speculation.own_time import OwnTime
from edgedec.speculation.proposals import Proposals, drawn_limit
from edgedec.speculation.prospects import leave_out, unknown
from edgedec.speculation.readers import Readers, joined
from edgedec.speculation.selection import UsefulRows
from edgedec.speculation.shared import SharedLearning
from edgedec.speculation.silence import Silence
from edgedec.speculation.survey import Survey

# A drafter is expensive if its proposal takes such a share of a call.
_EXPENSIVE = 0.02
_SILENT, _OBSERVING, _ACTIVE = range(3)
_NONE, _QUIET = Draft(why="silent, drafting has not paid lately"), Outputs()
_UNMEASURED = Draft(why="the cost of a call is not measured yet")


class Governor:
    """A drafter made of drafters. `costs`: what calls cost; `survey` completes that. fixed: so many tokens at each
    call; 0: what pays. trees: False: chains only. `shared`: what other sessions learned."""

    def __init__(
        self,
        drafters: Sequence[tuple[str, Drafter]],
        costs: Callable[[], Costs],
        fixed: int = 0,
        trees: bool = True,
        survey: Callable[[Costs], Survey | None] = lambda costs: None,
        shared: SharedLearning | None = None,
    ) -> None:
        start = shared.calibrations.start if shared else lambda name: None
        self.members = [DrafterStats(name, drafter, start(name)) for name, drafter in drafters]
        self._readers = Readers([drafter for _, drafter in drafters])
        self.effort: Effort | None = None
        self._names = [member.name for member in self.members]
        self._measure, self._find_survey, self._shared = costs, survey, shared
        self._fixed, self._trees = fixed, trees
        self._costs: Costs | None = None
        self._survey: Survey | None = None
        self._budget = shared.budget if shared else Budget()
        self._phase, self._calls, self._affords, self._sequences = _ACTIVE, 0, True, 1
        self._plain, self._length, self._usual, self._useful = 0.0, 0, UsualTime(), UsefulRows(fixed)
        self._sizes: dict[int, int] = {}
        self._link()
        self._forget()

    def _link(self) -> None:
        """Use the drafters' tables as they are now."""
        drafters = [member.drafter for member in self.members]
        self._compiled = compiled_merger(drafters, [member.calibration for member in self.members])
        self._silence = Silence(self._compiled, drafters)

    def _forget(self) -> None:
        self._found: Proposals | None = None
        self._kept: list[int] = []
        self._drafted, self._read, self._spent, self._probing = 0, 0, 0.0, False

    @property
    def outputs(self) -> Outputs:
        wanted = self._readers.wanted(self._phase == _SILENT)
        return wanted if self._phase == _SILENT else joined((wanted, *[d.outputs for d in self._learners()]))

    @property
    def reads(self) -> Outputs:
        return self._readers.reads

    @property
    def prompt_rows(self) -> int:
        return max([drafter.prompt_rows for drafter in self._learners()], default=0)

    def _learners(self) -> list[Drafter]:
        return [m.drafter for m in self.members if self._phase != _SILENT and self._observes(m)]

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None]:
        return self._readers.read(context, rows, result)

    def _observes(self, member: DrafterStats) -> bool:
        """Does it observe the next call? With no budget left, not if it needs extra outputs now and then."""
        if member.hopeless:
            return False
        affords = self._affords or member.drafter.outputs == _QUIET
        return member.drafter.reads != _QUIET or (affords and not member.backed_off)

    @property
    def costs(self) -> Costs:
        """Found when first needed."""
        if self._costs is None:
            self._costs = self._measure()
            self._survey = self._find_survey(self._costs)
        return self._costs

    def prepare(self) -> None:
        """Nothing: costs are learned from calls."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        if self._silence.sleeps():
            return _NONE
        self._forget()
        costs, self._sequences = self.costs, context.concurrent + 1
        self._length, known = context.cache.length, costs.covers(self._sequences)
        self._plain = plain_seconds(costs, self._sequences, self._length)
        if known:
            self._budget.start(self._plain)
        probe = 0 if self._fixed or self._survey is None else self._survey.more(self._sequences, nodes)
        self._probing = probe > 0
        self._affords = bool(self._fixed) or self._budget.left > 0 or not known
        if nodes < 1:
            return _NONE
        if probe and self._phase == _SILENT:
            return probing(Draft(), probe, context, self._trees)
        if not (known or probe or self._fixed):
            return _UNMEASURED
        active = self._fixed or probe or self._phase == _ACTIVE
        drafts = active or self._silence.promising(context, nodes, costs, self._budget)
        return self._propose(context, nodes, min_path_prob, probe) if drafts else _NONE

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
        return draft

    def _room(self, member: DrafterStats, found: Proposals, context: Context, limit: int) -> int:
        """The most tokens that a drafter may propose now."""
        if self._fixed:
            return limit
        return drawn_limit(member, self.costs, self._sequences, context, limit) if self._uses(member, found) else 0

    def _uses(self, member: DrafterStats, found: Proposals) -> bool:
        """Does this drafter propose? An expensive one is judged by how much those before it let expect, and is not
        used while the budget could not pay for it."""
        costs = self.costs
        if self._phase != _ACTIVE:
            return member.drafter in self._silence.drafters and member.drafts(0)
        member.expensive = len(costs.seconds) > 1 and member.propose_s > _EXPENSIVE * costs.seconds[1]
        affordable = self._affords and self._budget.left > 2 * member.propose_s
        ready = member.observed and not member.hopeless and not unknown(member.drafter, costs)
        if not ready or ((member.expensive or member.draws) and not affordable):
            return member.skip()
        if not member.expensive:
            return member.drafts(0)
        order = self._order(found)
        chances = [found.merger.chances[node] for node in order]
        size = best_of_one(Offer(chances, self._sequences, 0, costs), Others(), costs.most).nodes
        return member.drafts(sum(sum(chances[:size]) > step for step in STEPS))

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
            grant = yield offer_of(found, context, order, self.costs, self._budget.trust)
            waited = perf_counter() - since
        self._found, self._kept = found, order[: grant.nodes]
        self._drafted = grant.drafted + found.drawn_rows
        self._sizes[len(self._kept)] = self._sizes.get(len(self._kept), 0) + 1
        if self._phase == _SILENT and not self._kept:
            self._silence.refused(self._plain)
        why = f"{len(self._kept)} of {len(found.merger)} guesses, {grant.speed:.2f}x expected"
        if probe:
            return probing(cut(found, context, self._kept, self._names, ""), probe, context, self._trees), waited
        return cut(found, context, self._kept, self._names, "fixed" if self._fixed else why), waited

    def observe(self, step: StepResult) -> None:
        if self._silence.asleep or (self._phase == _SILENT and self._found is None):
            self._observe_silently(step)
            return
        watch, costs = OwnTime(), self.costs
        self._measured(step, costs)
        drafted = max(self._drafted, len(step.rows) - step.root - 1 if self._found is not None else 0)
        prices = Prices.of(costs, self._sequences, step.total, min(drafted, step.total - 1), self._plain)
        if self._found is not None:
            judge_all(self._found, self._kept, step, self.members, self._budget, prices)
        (self._readers.observe if self._phase == _SILENT else self._learn)(step)
        if not self._fixed and prices.token:
            spent, opening = self._spent + watch.seconds(), 0.0
            if self._found is not None:
                costly, opening = every.times_apart(self.members)
                self._usual.proposed(spent, prices.call, costly)
            self._settle(step, prices, self._usual.cut(spent, prices.call, opening))

    def _measured(self, step: StepResult, costs: Costs) -> None:
        if step.whole and costs.add(step.total, step.seconds, step.cells):
            self._plain = plain_seconds(costs, self._sequences, self._length)
            if self._survey is not None:
                self._survey.add(step.seconds, self._plain)

    def _learn(self, step: StepResult) -> None:
        for member in self.members:
            member.observed = self._observes(member)
        every.observe_all(self.members, step, self._compiled)
        if self._shared is not None and self._found is not None and due(self._calls):
            every.share_calibrations(self.members, self._shared)

    def _observe_silently(self, step: StepResult) -> None:
        """As little as possible: what silence costs must be far below the allowance."""
        self._readers.observe(step)
        if self._silence.asleep:
            return
        self._budget.add_silence(self._plain / self._sequences, self._silence.passed())
        self._phase += self._budget.left > self._usual.idle
        if self._probing or self._silence.measures():
            self._measured(step, self.costs)
        if self._phase == _SILENT:
            self._silence.rest(self._plain / self._sequences, self._budget, self._usual.idle)

    def _settle(self, step: StepResult, prices: Prices, spent: float) -> None:
        """Update the budget, and choose whether drafters are used at the next call."""
        if self._found is None:
            self._budget.add_forced(len(step.picked) - 1)
        spent = max(0.0, spent - reading_share(step, self._read))
        own = 0 if self._probing or self._found is None else len(self._kept) + self._found.drawn_rows
        settle(self._budget, step, own, spent, prices)
        # With too little left for another proposal there is none, unless it costs next to nothing.
        quiet = self._budget.left <= self._usual.idle and self._usual.idle > ALLOWANCE * prices.token
        self._phase = _SILENT if quiet else min(self._phase + 1, _ACTIVE)
        self._readers.limit(prices.call, sum(m.observe_s for m in self.members if m.drafter.reads != _QUIET))

    def reset(self) -> None:
        for member in self.members:
            member.drafter.reset()
            member.restart()
        if self._compiled is not None:
            self._compiled.reset()
        self._silence.reset()
        leave_out(self.members, self.costs, self._readers, self._fixed)
        self._forget()

    def own_state(self) -> State:
        return every.calibration_states(self.members)

    def state(self) -> State:
        return every.table_states(self.members) | self.own_state()

    def restore(self, state: State) -> None:
        every.restore_all(self.members, state)
        self._link()

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, Governor):
            every.inherit_all(self.members, other.members, self._shared is None)
            self._link()

    def report(self) -> dict[str, Any]:
        return every.reports(self.members, self._silence.calls, self._sizes)
