"""The governor: what to draft next, so that decoding is never slower than without (S41, S30, S40).

Every proposal of its drafters is a tree of guesses. The governor calibrates their claims (`calibration`), merges the
trees (`merger`), and cuts the result where one more row would cost more than it brings on this host (`selection`, by
the cost model in `costs`): of all n, 0 among them, it runs the n likeliest tokens with the largest

    (1 + sum of the chances of their paths) / cost(n + 1)

so that a wide tree, a chain and no draft are one decision. Guesses that are not run are still tested against what the
model then picks, which costs no forward call. It costs the drafters' own time, which is limited by a `budget`;
drafters that do not gain their time are backed off (`backoff`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Any

from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request, StepResult
from edgedec.drafters import Draft, Drafter, Proposal, State
from edgedec.drafters._calls import CallClock
from edgedec.runtime import CallResult, Outputs, Rows
from edgedec.speculation.backoff import SMOOTH, STEPS, DrafterStats
from edgedec.speculation.budget import ALLOWANCE, Budget
from edgedec.speculation.costs import Costs, share
from edgedec.speculation.merger import TreeMerger, is_chain, resume
from edgedec.speculation.readers import Readers
from edgedec.speculation.selection import SURE, best_size, chain_length, useful

# The expected speed over plain decoding that a draft must reach when the budget is used up.
_SURELY = 1.5
# Calls until the largest useful tree is worked out again, and until a chain that never pays is tried again.
_AGAIN, _RETRY = 256, 64
# A drafter is expensive if its proposal takes such a share of a call; shares below the other do not matter.
_EXPENSIVE, _NEGLIGIBLE = 0.02, 0.002
_SILENT, _OBSERVING, _ACTIVE = range(3)
_NONE, _QUIET = Draft(why="silent, drafting has not paid lately"), Outputs()
_UNMEASURED = Draft(why="the cost of a call is not measured yet")


class Governor:
    """A drafter made of drafters. `costs` measures, `known` finds what was measured before; without it nothing is
    drafted before `prepare`, unless `fixed`: so many tokens at each call; 0: what pays. trees: False: chains only."""

    def __init__(
        self,
        drafters: Sequence[tuple[str, Drafter]],
        costs: Callable[[], Costs],
        fixed: int = 0,
        trees: bool = True,
        known: Callable[[], Costs | None] | None = None,
    ) -> None:
        self.members = [DrafterStats(name, drafter) for name, drafter in drafters]
        self._readers = Readers([drafter for _, drafter in drafters])
        self.reads, self._names = self._readers.reads, [member.name for member in self.members]
        self._calibrations = [member.calibration for member in self.members]
        self._measure, self._known, self._fixed, self._trees = costs, known or costs, fixed, trees
        self._costs: Costs | None = None
        self._budget, self._phase, self._silent = Budget(), _ACTIVE, 0
        self._limit, self._min_path_prob, self._calls, self._affords = fixed, 0.0, 0, True
        # How often a drawn token is accepted: of drafts that are neither cut nor merged it sets the length.
        self._drawn_rate = SURE
        self._sizes: dict[int, int] = {}
        self._forget()

    def _forget(self) -> None:
        """No last proposal."""
        self._merger: TreeMerger | None = None
        self._drawn = 0
        self._drawn_by: DrafterStats | None = None
        self._kept: list[int] = []
        self._resumed = False
        self._spent, self._clock = 0.0, CallClock()

    @property
    def outputs(self) -> Outputs:
        outputs = self.reads
        if self._phase != _SILENT:
            for member in self.members:
                if self._observes(member):
                    outputs |= member.drafter.outputs
        return outputs

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None]:
        return self._readers.read(context, rows, result)

    def _observes(self, member: DrafterStats) -> bool:
        """Does it observe the next call? With no budget left, not if it needs extra outputs now and then."""
        affords = self._affords or member.drafter.outputs == _QUIET
        return member.drafter.reads != _QUIET or (affords and not member.backed_off)

    @property
    def costs(self) -> Costs:
        """Measured when first needed."""
        return self._costs or self._start(self._measure())

    def _start(self, costs: Costs) -> Costs:
        self._costs = costs
        self._budget.start(costs)
        return costs

    def prepare(self) -> None:
        _ = self.costs

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._forget()
        if self._costs is None:
            if (known := self._known()) is not None:
                self._start(known)
            elif not self._fixed:
                return _UNMEASURED
        self._affords = bool(self._fixed) or self._budget.left > 0 or self._costs is None
        if self._phase != _ACTIVE or nodes < 1:
            return _NONE
        return self._propose(context, nodes, min_path_prob)

    def _propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        began = perf_counter()
        if not self._fixed and self._calls % _AGAIN == 0:
            self._limit, self._min_path_prob = useful(self.costs)
            began = perf_counter()  # the first time costs were measured
        self._calls += 1
        limit = min(nodes, self._limit)
        if self._drawn_rate < SURE and not self._fixed and self._calls % _RETRY:
            limit = min(limit, chain_length(self._drawn_rate, self.costs)) if self._budget.left > 0 else 0
        least = max(min_path_prob, self._min_path_prob)
        draft = (yield from self._merged(context, limit, least)) if limit else _NONE
        self._spent = perf_counter() - began - self._clock.waited
        return draft

    def _merged(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        """The proposals of all drafters that are used now, merged and cut to what pays."""
        merger, pending = TreeMerger(), len(context.ids) - context.cache.length
        started: Draft | None = None
        started_places: list[int] = []
        for number, member in enumerate(self.members):
            if not self._fixed and not self._uses(member, merger, nodes, context):
                continue
            since, waited = perf_counter(), self._clock.waited
            proposal = member.drafter.propose(context, nodes, min_path_prob)
            draft = proposal if isinstance(proposal, Draft) else (yield from self._clock.run(proposal))
            member.add_proposal(perf_counter() - since - (self._clock.waited - waited))
            if draft.sampled is not None and context.sampling.temperature > 0:
                if not self._trees and not is_chain(draft):
                    continue
                self._drawn, self._drawn_by = len(draft.tokens), member
                return draft  # for a verifier of its own: neither cut nor merged
            places = merger.add(number, draft, member.calibration.estimates)
            if draft.hidden is not None:
                started, started_places = draft, places  # the cache holds the rows of the last one
        self._merger, order = merger, self._order(merger)[:nodes]
        count, why = (len(order), "fixed") if self._fixed else self._best(merger, order, context.concurrent)
        self._kept = order[:count]
        self._sizes[count] = self._sizes.get(count, 0) + 1
        draft = resume(merger.cut(self._kept, self._names, why), self._kept, started, started_places, pending)
        self._resumed = draft.hidden is not None
        return draft

    def _uses(self, member: DrafterStats, merger: TreeMerger, nodes: int, context: Context) -> bool:
        """Does this drafter propose? An expensive one is judged by how much those before it let expect, and is not
        used while the budget could not pay for it."""
        member.expensive = member.propose_s > _EXPENSIVE * self.costs.seconds[1]
        affordable = self._affords and self._budget.left > 2 * member.propose_s
        if not member.observed or (member.expensive and not affordable):
            return member.skip()
        if not member.expensive:
            return member.drafts(0)
        order = self._order(merger)[:nodes]
        size, _ = self._best(merger, order, context.concurrent)
        tokens = sum(merger.chances[node] for node in order[:size])
        return member.drafts(sum(tokens > step for step in STEPS))

    def _order(self, merger: TreeMerger) -> list[int]:
        """The nodes to run first, as far as the runtime can run them in one call."""
        return merger.best_first() if self._trees else merger.best_chain()

    def _best(self, merger: TreeMerger, order: Sequence[int], concurrent: int) -> tuple[int, str]:
        """How many of the likeliest nodes to run, and why. With no budget left only what is sure to gain."""
        least = 1.0 if self._budget.left > 0 else _SURELY
        size, speed = best_size([merger.chances[node] for node in order], self.costs, concurrent, least)
        return size, f"{size} of {len(merger)} guesses, {speed:.2f}x expected"

    def observe(self, step: StepResult) -> None:
        began, costs = perf_counter(), self._costs
        if costs is None:  # not measured yet: nothing was drafted
            self._learn(step)
            return
        if self._phase == _SILENT:
            self._observe_silently(step, costs)
            return
        if step.root == 0 and not self._resumed:
            costs.add(step.total, step.seconds)
        if self._merger is not None:
            self._judge(self._merger, self._merger.test(step.picked, self._calibrations))
        elif self._drawn:
            self._judge_drawn(len(step.path) - 1)
        self._learn(step)
        if not self._fixed:
            self._settle(step, self._spent + perf_counter() - began)

    def _learn(self, step: StepResult) -> None:
        for member in self.members:
            member.observed = self._observes(member)
            if member.observed:
                since = perf_counter()
                member.drafter.observe(step)
                member.observe_s += (perf_counter() - since - member.observe_s) * SMOOTH

    def _observe_silently(self, step: StepResult, costs: Costs) -> None:
        """As little as possible: what silence costs must be far below the allowance."""
        self._readers.observe(step)
        self._budget.add_call(share(costs, step.total - 1), 1, 0.0)
        self._phase += self._budget.left > 0
        self._silent += 1
        if self._silent % 8 == 0 and step.root == 0:
            costs.add(step.total, step.seconds)

    def _judge(self, merger: TreeMerger, path: Sequence[int]) -> None:
        """What each drafter gained: a node counts for the first of its drafters."""
        kept, guesses, seconds = set(self._kept), merger.guesses, self.costs.seconds
        row = (seconds[len(kept) + 1] - seconds[1]) / len(kept) if 0 < len(kept) < self.costs.most else 0.0
        gains = dict.fromkeys(range(len(self.members)), 0.0)
        for node in kept:
            for number, _ in guesses[node]:
                self.members[number].proposed += 1
            gains[guesses[node][0][0]] -= row
        for node in path:
            if node in kept:
                for number, _ in guesses[node]:
                    self.members[number].accepted += 1
                gains[guesses[node][0][0]] += seconds[1]
        if not self._fixed:
            for number, member in enumerate(self.members):
                member.add_gain(gains[number], _NEGLIGIBLE * seconds[1])

    def _judge_drawn(self, accepted: int) -> None:
        """Of a draft that was neither cut nor merged: how often its tokens are accepted."""
        assert self._drawn_by is not None
        self._drawn_by.proposed += self._drawn
        self._drawn_by.accepted += accepted
        rate = accepted / min(self._drawn, accepted + 1)
        self._drawn_rate += (min(rate, 0.97) - self._drawn_rate) * SMOOTH

    def _settle(self, step: StepResult, spent: float) -> None:
        """Update the budget, and choose whether drafters are used at the next call."""
        seconds, most = self.costs.seconds, self.costs.most
        drafted = len(step.rows) - step.root - 1
        # What a token costs without drafts, beside the same other texts; and what the drafted rows did cost.
        others = max(step.total - drafted - 1, 0) if step.root == 0 else 0
        plain = share(self.costs, others)
        # What a constraint forced saves nothing that could pay for guesses.
        own = bool(self._kept or self._drawn)
        self._budget.add_call(plain, len(step.picked) if own else 1, spent)
        if step.root == 0 and drafted and own:
            with_drafts, without = min(others + 1 + drafted, most), min(others + 1, most)
            self._budget.add_draft(plain * (len(step.picked) - 1), seconds[with_drafts] - seconds[without])
        self._budget.limit(plain)
        # With nothing left drafters only guess to be tested, if that costs next to nothing, and else are silent.
        idle = sum(member.propose_s + member.observe_s for member in self.members if not member.expensive)
        quiet = self._budget.left <= 0 and idle > ALLOWANCE * plain
        self._phase = _SILENT if quiet else min(self._phase + 1, _ACTIVE)

    def reset(self) -> None:
        for member in self.members:
            member.drafter.reset()
            member.restart()
        if self._costs is not None:
            self._budget.restart(self._costs)
        self._forget()

    def state(self) -> State:
        return {
            f"{member.name}.{key}": array for member in self.members for key, array in member.drafter.state().items()
        }

    def restore(self, state: State) -> None:
        parts: dict[str, State] = {}
        for key, array in state.items():
            name, _, rest = key.partition(".")
            parts.setdefault(name, {})[rest] = array
        for member in self.members:
            if member.name in parts:
                member.drafter.restore(parts[member.name])

    def report(self) -> dict[str, Any]:
        return {
            "silent": self._silent,
            "sizes": {str(size): calls for size, calls in sorted(self._sizes.items())},
            "drafters": {
                member.name: {
                    "proposed": member.proposed,
                    "accepted": member.accepted,
                    "seconds": member.seconds,
                    **member.drafter.report(),
                }
                for member in self.members
            },
        }
