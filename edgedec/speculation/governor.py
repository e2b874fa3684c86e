"""The governor: what to draft next, so that decoding is never slower than without (S41, S30, S40).

Every proposal of its drafters is a tree of guesses. The governor calibrates their claims (`calibration`), merges the
trees (`merger`, `proposals`) and offers the nodes by the chance of their paths; how many of them run is decided for all
sequences of the call (`edgedec.decoding.allocation`), by what calls cost on this host (`costs`). Guesses that are not
run are still tested against what the model then picks, which costs no forward call. It costs the drafters' own time,
which is limited by a `budget`; drafters that do not gain their time are backed off (`backoff`, `accounts`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import reduce
from operator import or_
from time import perf_counter
from typing import Any

from edgedec.decoding.allocation import Grant, Offer, Others, best_of_one
from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request, StepResult
from edgedec.drafters import Draft, Drafter, Proposal, State
from edgedec.runtime import CallResult, Outputs, Rows
from edgedec.speculation import members as every
from edgedec.speculation.accounts import Prices, UsualTime, judge, judge_drawn, plain_seconds, reading_share, settle
from edgedec.speculation.backoff import STEPS, DrafterStats
from edgedec.speculation.budget import ALLOWANCE, Budget
from edgedec.speculation.calibration import due
from edgedec.speculation.compiled import compiled_merger
from edgedec.speculation.costs import Costs
from edgedec.speculation.cutting import allowed, cut, offer_of, probing
from edgedec.speculation.drawn import beyond
from edgedec.speculation.own_time import OwnTime
from edgedec.speculation.peek import Peek
from edgedec.speculation.prompting import prompting, with_prompt_rows
from edgedec.speculation.proposals import Proposals, drawn_limit
from edgedec.speculation.readers import Readers
from edgedec.speculation.selection import useful
from edgedec.speculation.shared import SharedLearning
from edgedec.speculation.survey import Survey, rows_due

# Calls until the largest useful tree is worked out again; it is as well where sequences come or go by such a share, and
# where the cost of more calls is known.
_AGAIN, _CHANGED = 256, 0.1
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
        self._prompting = prompting(self.members)
        self._readers = Readers([drafter for _, drafter in drafters])
        self.reads, self._names = self._readers.reads, [member.name for member in self.members]
        self._calibrations = [member.calibration for member in self.members]
        self._measure, self._find_survey, self._shared = costs, survey, shared
        self._fixed, self._trees = fixed, trees
        self._costs: Costs | None = None
        self._survey: Survey | None = None
        self._budget = shared.budget if shared else Budget()
        self._phase, self._silent, self._calls, self._affords = _ACTIVE, 0, 0, True
        # Sequences in the call, rows of use beside them, and the least chance of a path.
        self._sequences, self._useful_for, self._known, self._limit, self._least = 1, 0, 0, fixed, 0.0
        self._plain, self._usual = 0.0, UsualTime()
        self._sizes: dict[int, int] = {}
        self._link()
        self._forget()

    def _link(self) -> None:
        """Use the drafters' tables as they are now."""
        drafters = [member.drafter for member in self.members]
        self._compiled = compiled_merger(drafters, self._calibrations)
        self._peek = Peek(self._compiled, drafters)

    def _forget(self) -> None:
        """No last proposal."""
        self._found: Proposals | None = None
        self._kept: list[int] = []
        self._drafted, self._read, self._spent, self._probing = 0, 0, 0.0, False

    @property
    def outputs(self) -> Outputs:
        return reduce(or_, [d.outputs for d in self._learners()], self._readers.wanted(self._phase == _SILENT))

    @property
    def prompt_rows(self) -> int:
        return max([d.prompt_rows for d in self._learners()], default=0)

    def _learners(self) -> list[Drafter]:
        return [m.drafter for m in self.members if self._phase != _SILENT and self._observes(m)]

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None]:
        return self._readers.read(context, rows, result)

    def _observes(self, member: DrafterStats) -> bool:
        """Does it observe the next call? With no budget left, not if it needs extra outputs now and then."""
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
        self._forget()
        costs, self._sequences = self.costs, context.concurrent + 1
        self._plain, known = plain_seconds(costs, self._sequences, context.cache.length), costs.covers(self._sequences)
        if known:
            self._budget.start(self._plain)
        self._probing = (probe := 0 if self._fixed else rows_due(self._survey, self._sequences, nodes)) > 0
        if probe and self._phase == _SILENT:
            return probing(Draft(), probe, context, self._trees)
        quiet = known and not (self._fixed or probe or self._phase == _ACTIVE)
        if quiet and nodes > 0 and self._peek.promising(context, nodes, costs, self._budget):
            return self._propose(context, nodes, min_path_prob, 0)
        if nodes < 1 or (self._phase == _SILENT and not self._fixed):
            return _NONE
        self._affords = bool(self._fixed) or self._budget.left > 0 or not known
        if not self._fixed and not probe and not known:
            return _UNMEASURED
        if self._phase != _ACTIVE and not self._fixed and not probe:
            return _NONE
        return self._propose(context, nodes, min_path_prob, probe)

    def _propose(
        self, context: Context, nodes: int, min_path_prob: float, probe: int
    ) -> Generator[Request | Offer, Any, Draft]:
        watch, self._read = OwnTime(), len(context.ids)
        found = Proposals.of(self._compiled, self.costs.seconds, self._prompting)
        self._calls += 1
        known, changed = self.costs.known, abs(self._sequences - self._useful_for) > _CHANGED * self._useful_for
        if not self._fixed and (changed or known != self._known or self._calls % _AGAIN == 1):
            self._useful_for, self._known = self._sequences, known
            self._limit, self._least = useful(self.costs, self._sequences)
        limit = min(nodes, max(self._limit, probe))
        if limit:
            least = max(min_path_prob, self._least)
            yield from found.collect(
                self.members, lambda member: self._room(member, found, context, limit), context, least, self._trees
            )
        draft, waited = yield from self._chosen(found, context, limit, probe)
        if self._prompting >= 0 and limit and not probe and self._observes(self.members[self._prompting]):
            room, price = min(nodes - len(draft.tokens), self._fixed or nodes), self._plain / self._sequences
            row = 0.0 if self._fixed else self.costs.row(self._sequences, max(len(self._kept), 1)) / (price or 1.0)
            draft = yield from with_prompt_rows(self.members, found, self._kept, draft, context, room, row)
            self._drafted += found.prompts
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
            return member.drafter in self._peek.drafters and member.drafts(0)
        member.expensive = len(costs.seconds) > 1 and member.propose_s > _EXPENSIVE * costs.seconds[1]
        affordable = self._affords and self._budget.left > 2 * member.propose_s
        if not member.observed or ((member.expensive or member.draws) and not affordable):
            return member.skip()
        if not member.expensive:
            return member.drafts(0)
        order = self._order(found)
        chances = [found.merger.chances[node] for node in order]
        size = best_of_one(Offer(chances, self._sequences, 0, costs), Others(), costs.most).nodes
        return member.drafts(sum(sum(chances[:size]) > step for step in STEPS))

    def _order(self, found: Proposals) -> list[int]:
        """The nodes to run first, as far as the runtime can run them in one call."""
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
        why = f"{len(self._kept)} of {len(found.merger)} guesses, {grant.speed:.2f}x expected"
        if probe:
            return probing(cut(found, context, self._kept, self._names, ""), probe, context, self._trees), waited
        return cut(found, context, self._kept, self._names, "fixed" if self._fixed else why), waited

    def observe(self, step: StepResult) -> None:
        costs = self.costs
        if self._phase == _SILENT and self._found is None:
            self._observe_silently(step, costs)
            return
        watch = OwnTime()
        self._measured(step, costs)
        drafted = max(self._drafted, len(step.rows) - step.root - 1 if self._found is not None else 0)
        prices = Prices.of(costs, self._sequences, step.total, min(drafted, step.total - 1), self._plain)
        if self._found is not None:
            chances, path = self._found.merger.chances, self._found.merger.test(step.picked, self._calibrations)
            self._budget.add_guesses(sum(chances[node] for node in self._kept), len(set(path) & set(self._kept)))
            judge(self._found, self._kept, path, self.members, prices)
            judge_drawn(self._found, step, prices)
        (self._readers.observe if self._phase == _SILENT else self._learn)(step)
        if not self._fixed and prices.token:
            self._settle(step, prices, self._usual.cut(self._spent + watch.seconds(), prices.call))

    def _measured(self, step: StepResult, costs: Costs) -> None:
        if step.whole and costs.add(step.total, step.seconds, step.cells):
            self._plain = plain_seconds(costs, self._sequences, step.cells // max(step.total, 1))
            if self._survey is not None:
                self._survey.add(step.seconds, self._plain)

    def _learn(self, step: StepResult) -> None:
        for member in self.members:
            member.observed = self._observes(member)
        every.observe_all(self.members, step, self._compiled)
        if self._shared is not None and self._found is not None and due(self._calls):
            every.share_calibrations(self.members, self._shared)

    def _observe_silently(self, step: StepResult, costs: Costs) -> None:
        """As little as possible: what silence costs must be far below the allowance."""
        self._readers.observe(step)
        self._budget.add_call(self._plain / self._sequences, 1, 0.0)
        self._phase += self._budget.left > 0
        self._silent += 1
        if self._silent % 8 == 0 or self._probing:
            self._measured(step, costs)

    def _settle(self, step: StepResult, prices: Prices, spent: float) -> None:
        """Update the budget, and choose whether drafters are used at the next call."""
        if self._found is None:
            self._budget.add_forced(len(step.picked) - 1)
        spent = max(0.0, spent - reading_share(step, self._read))
        own = 0 if self._probing or self._found is None else len(self._kept) + self._found.own_rows
        settle(self._budget, step, own, spent, prices)
        # With nothing left drafters only guess to be tested, if that costs next to nothing.
        idle = sum(member.propose_s + member.observe_s for member in self.members if not member.expensive)
        quiet = self._budget.left <= 0 and idle > ALLOWANCE * prices.token
        self._phase = _SILENT if quiet else min(self._phase + 1, _ACTIVE)

    def reset(self) -> None:
        for member in self.members:
            member.drafter.reset()
            member.restart()
        if self._compiled is not None:
            self._compiled.reset()
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
        sizes = {str(size): calls for size, calls in sorted(self._sizes.items())}
        drafters = {member.name: member.report() for member in self.members}
        return {"silent": self._silent, "sizes": sizes, "drafters": drafters}
