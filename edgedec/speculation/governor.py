"""The governor: chooses what to draft next, so that decoding is not slower than without drafts.

A call goes through these decisions:

1. Which drafters are asked: those that pay or that are due for a try (`record`), if the bank can pay for it (`bank`).
   While only the runtime's tables are, its own steps draft by themselves; while none is, nothing is asked.
2. Which guesses run: the trees of all drafters are merged (`proposals`, `compiled`), with calibrated chances, and as
   many nodes run as bring the most expected tokens per second in the call (`edgedec.decoding.allocation`, by the
   measured cost of calls, `costs`), but no more than the bank can lose.
3. What it brought: all guesses are compared with the model's picks. The draft is settled with the bank, and each
   drafter's record decides when it is asked again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from edgedec.decoding.allocation import Grant, Offer
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Drafter, Effort, Proposal
from edgedec.decoding.host_time import OwnTime
from edgedec.decoding.messages import Request, StepResult
from edgedec.speculation import state as states
from edgedec.speculation.bank import AUTO, Terms, risked
from edgedec.speculation.costs import Costs
from edgedec.speculation.decide import allowed, beyond, cut, note_runs, offer_of, probing, unrun, watched
from edgedec.speculation.governed import Governed
from edgedec.speculation.prices import Prices
from edgedec.speculation.probing import RowProbe
from edgedec.speculation.proposals import Proposals, drawn_limit, judge
from edgedec.speculation.reasons import BANK, CONSTRAINT, MEASURING, NO_GUESS, NO_ROOM, REFUSED, TEXTS, WAITING
from edgedec.speculation.record import DrafterRecord
from edgedec.speculation.state import SharedLearning
from edgedec.trees.calibration import due

# Which of the runtime's tables have guesses is looked at once in so many calls.
_SAMPLE = 16


class Governor(Governed):
    """A drafter made of drafters. `costs`: of calls, which `row_probe` completes; fixed: the tokens of each draft, 0:
    chosen by cost; trees: False for chains only; `shared`: what sessions learn together; terms: what may be lost."""

    def __init__(
        self,
        drafters: Sequence[tuple[str, Drafter]],
        costs: Callable[[], Costs],
        fixed: int = 0,
        trees: bool = True,
        row_probe: Callable[[Costs], RowProbe | None] = lambda costs: None,
        shared: SharedLearning | None = None,
        terms: Terms = AUTO,
    ) -> None:
        super().__init__(drafters, costs, row_probe, shared, terms)
        self.effort: Effort | None = None
        self._fixed, self._trees, self._calls = fixed, trees, 0
        self._forget()

    def _forget(self) -> None:
        self._found: Proposals | None = None
        self._kept: list[int] = []
        self._drafted, self._spent, self._probing, self._code = 0, 0.0, False, REFUSED

    def prepare(self) -> None:
        """Do nothing: costs are learned from calls."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        _ = self.costs  # a process reads them once: that is not the time of this text's drafts
        watch = OwnTime()
        self._forget()
        self._begin(context)
        prices = self._prices
        if self._fixed:
            self._learners = list(self.members)
            if nodes > 0:
                return self._propose(context, nodes, min_path_prob, self._others, 0)
        probe = 0 if self._fixed or self._probe is None else self._probe.more(self._sequences, nodes)
        self._probing = probe > 0
        if nodes < 1 and not (context.left and prices):
            return self._none(CONSTRAINT if context.hooks.slow() else NO_ROOM, watch)
        if prices is None:
            if probe:
                context.gaps.add_draft()
                self._sizes[probe] += 1
                return probing(Draft(), probe, context, self._trees)
            return self._none(MEASURING, watch)
        asked = self._asked(prices, reading=len(context.ids) - context.cache.length > 1)
        if not (asked or probe or self._learners) and (draft := self._own_steps(context, prices)) is not None:
            self._gaps.count(took := watch.seconds())
            self.account.settle(0.0, took, prices.call)
            return draft
        if nodes < 1:
            return self._none(NO_ROOM, watch)
        self._ask_tables(prices)
        self._found = Proposals.of(self._compiled, self.costs.seconds)
        few = self._watch(context, nodes, prices) if self._watched else 0
        if few > 0 or asked or probe:
            alone = self._sequences == 1 and len(context.ids) == context.cache.length + 1
            if few > 0 and alone and self._trees and not (asked or probe) and context.hooks.allowed is None:
                return self._quick(context, few, watch)
            self._spend(watch.seconds())
            return self._propose(context, nodes, min_path_prob, asked, probe)
        if not self._watched:
            return self._none(self._why, watch)
        return self._none(BANK if few < 0 else REFUSED if len(self._found.merger) else NO_GUESS, watch)

    def _watch(self, context: Context, nodes: int, prices: Prices) -> int:
        """Have the runtime's tables propose; returns the number of nodes that would pay, -1 if the balance cannot pay
        for one."""
        assert self._compiled is not None
        most, trust = min(nodes, self._useful.limit), self.account.bank.trust
        wanted = watched(prices, most, trust)
        found = self._compiled.watch(context, max(most, 1), self._useful.least, self._mask, wanted)
        return (self._within(found, prices) or -1) if found else 0

    def _within(self, nodes: int, prices: Prices) -> int:
        """As many of so many nodes as the balance can pay for."""
        assert self._found is not None
        first = self.account.bank.trust * max(self._found.merger.chances, default=0.0)
        return min(nodes, prices.affordable(risked(self.account.left, first)))

    def _quick(self, context: Context, nodes: int, watch: OwnTime) -> Draft:
        """The draft of the best nodes of the runtime's tables, for a single text."""
        assert self._found is not None
        self._kept = self._found.merger.best_first()[:nodes]
        self._drafted = nodes
        self._sizes[nodes] += 1
        why = f"{nodes} of {len(self._found.merger)} guesses"
        draft = self._found.merger.cut(self._kept, self._names, why)
        context.gaps.add_draft()
        took = watch.seconds()
        if self._group is not None:
            self._group.add_time(took)
        self._spend(took)
        return draft

    def _none(self, code: str, watch: OwnTime) -> Draft:
        """No draft, for this reason."""
        self._whys[code] += 1
        prices, found = self._prices, self._found
        self._found = None  # its tree is tested by the next watch
        if prices is not None and code not in (NO_ROOM, CONSTRAINT):
            if self._watched and self._group is not None and found is not None:
                self._group.add_time(watch.seconds())
                self._group.judge(0.0, 0.0, prices)
                self._note_tables(() if code == NO_GUESS else found.merger.chances, False, code)
            self._rest, self._later = self._calls_to_rest(prices), BANK if code == BANK else WAITING
        self._spend(watch.seconds())
        return Draft(why=TEXTS[code], rest=self._rest)

    def _spend(self, seconds: float) -> None:
        self._spent += seconds
        self._gaps.count(seconds)

    def _propose(
        self,
        context: Context,
        nodes: int,
        min_path_prob: float,
        asked: Sequence[tuple[int, DrafterRecord]],
        probe: int,
    ) -> Generator[Request | Offer, Any, Draft]:
        watch, spent, draft, waited = OwnTime(), self._spent, Draft(), 0.0
        found = self._found = self._found or Proposals.of(self._compiled, self.costs.seconds)
        self._calls += 1
        least = min_path_prob if self._fixed else max(min_path_prob, self._useful.least)
        if self._fixed and self._compiled is not None:
            self._compiled.propose(context, min(nodes, self._fixed), least, self._mask)
            self._watched = True
        limit = min(nodes, max(self._useful.limit, probe)) if not self._fixed else min(nodes, self._fixed)
        if not self._watched and self._compiled is not None:
            self._compiled.clear()
        room = partial(self._room, found=found, context=context, limit=limit)
        try:
            if limit:
                yield from found.collect(asked, room, context, least, self._trees)
            draft, waited = yield from self._chosen(found, context, limit, probe)
        finally:  # a text may end meanwhile
            self._spend(found.own(watch, waited, draft))
        if self._kept or found.own_rows:
            context.gaps.add_draft()
        if self._group is not None and self._watched:
            self._group.add_time(spent)
        return draft

    def _room(self, member: DrafterRecord, found: Proposals, context: Context, limit: int) -> int:
        """The most tokens that a drafter may propose now. None while the guesses before it already promise more tokens
        than it usually adds."""
        if self._fixed:
            return limit
        assert self._prices is not None
        promised = found.promised(self._prices)
        if member.own.n >= 2 and promised > max(member.own.tokens, 0.5):
            return 0
        return drawn_limit(member, self.costs, self._sequences, context, limit)

    def _chosen(
        self, found: Proposals, context: Context, limit: int, probe: int
    ) -> Generator[Offer, Grant, tuple[Draft, float]]:
        """The draft that runs, and the seconds that were spent waiting for the decision."""
        order, drawn, waited = found.order(self._trees), found.drawn, 0.0
        if drawn is not None:
            order = beyond(drawn, found.merger, order) if self._trees else []
        row, guesses, most = self.costs.row(self._sequences, min(len(order), limit)), len(order), limit
        if self._prices is not None and not (self._fixed or probe):
            limit = min(limit, self._within(limit, self._prices))
        order = allowed(context, found, order[:limit], row)[: max(limit - found.drawn_rows, 0)]
        grant = Grant(len(order), len(order), 1.0)
        if probe:
            order = order[:probe]
        elif not self._fixed and (order or drawn is not None):
            since = perf_counter()
            weight = 1.0 if self._prices is None else self._prices.weight
            trust = weight * self.account.bank.trust
            grant = yield offer_of(found, context, order, self.costs, trust, self.costs.between)
            waited = perf_counter() - since
        self._kept = order[: grant.nodes]
        self._drafted = grant.drafted + found.drawn_rows
        size, why = probe or len(self._kept) + found.drawn_rows, "fixed"
        if not size:
            self._code = unrun(guesses, limit > 0 or not most, limit, len(order))
            why = TEXTS[self._code]
        elif not self._fixed:
            why = f"{len(self._kept)} of {len(found.merger)} guesses, {grant.speed:.2f}x expected"
        self._count(size, self._code)
        draft = cut(found, context, self._kept, self._names, why)
        return (probing(draft, probe, context, self._trees) if probe else draft), waited

    def observe(self, step: StepResult) -> None:
        watch = OwnTime()
        if step.whole:
            self._add_call(step.total, step.seconds, step.cells)
        found, prices = self._found, self._prices
        tokens, rows = judge(found, self._kept, step, self.members, self.account.bank) if found else ([], [])
        self._teach(step)
        if self._shared is not None and found is not None and due(self._calls):
            states.share_calibrations(self.members, self._shared)
        took = watch.seconds()
        if self._learners:
            self._gaps.count(took)
        if self._fixed and found is not None and self._calls % _SAMPLE == 1:
            note_runs(found, self._kept, self.members, range(len(self.members)), self._code, prices, 1.0)
        if self._fixed or prices is None:
            return
        later = 0.0
        if found is not None:
            later = self._judge(found, tokens, rows, prices, took)
        elif self._watched and self._group is not None:
            self._group.add_time(took)
        spent, self._spent = self._spent, 0.0
        self._settle(step, prices, spent + took - later if self._learners or spent else 0.0)

    def _judge(
        self, found: Proposals, tokens: Sequence[float], rows: Sequence[int], prices: Prices, took: float
    ) -> float:
        """Add the proposals to the drafters' records. took: the seconds of learning, of all that learned. Returns the
        seconds that are charged later instead of now."""
        share, trust, noted = took / max(len(found.asked) + self._watched, 1), self.account.bank.trust, found.asked
        if self._group is not None and self._watched:
            self._group.add_time(share)
            numbers = [n for n, member in enumerate(self.members) if member in self._tables]
            ran = sum(rows[n] for n in numbers)
            self._group.judge(sum(tokens[n] for n in numbers), ran, prices)
            self._note_tables(found.merger.chances, ran > 0, self._code)
            noted = [*noted, *numbers] if self._group.asked % _SAMPLE == 1 else noted
        if noted:
            note_runs(found, self._kept, self.members, noted, self._code, prices, trust)
        later = 0.0
        for number in found.asked:
            member = self.members[number]
            member.add_time(share)
            all_of_it, member.took = member.took, member.charge(member.took)
            later += all_of_it - member.took
            member.judge(tokens[number], rows[number], prices)
        return later

    def _settle(self, step: StepResult, prices: Prices, spent: float) -> None:
        """Settle the call with the bank."""
        own = 0 if self._probing or self._found is None else len(self._kept) + self._found.own_rows
        if not own:
            self.account.looked = spent
            return self.account.settle(0.0, spent, prices.call)
        drafted = max(min(self._drafted, step.total - 1), 1)
        row = self.costs.row(step.total - drafted, drafted) + prices.each
        self.account.settle(prices.token * (step.new - 1), row * own + spent + prices.draft, prices.call)

    def end(self, context: Context) -> None:
        if self._spent and self._prices is not None and not self._fixed:  # for a call that did not run
            self.account.settle(0.0, self._spent, self._prices.call)
        self._spent = 0.0
        super().end(context)

    def report(self) -> dict[str, Any]:
        self._drain()
        calls = self._whys + Counter({self._later: self._rested()})
        return states.counts_of(calls, self._sizes) | {"drafters": self._report(self._calls if self._fixed else 0)}
