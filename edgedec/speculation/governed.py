"""The drafters of a governor: which of them are asked, and which get the results of the next call.

The runtime's own tables propose and are merged in one call of its library, so they have one record together; every
other drafter has its own (`record`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from typing import Any

from edgedec.decoding.context import Context
from edgedec.decoding.draft import Draft, Drafter, State
from edgedec.decoding.host_time import Gaps
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters.off import Off
from edgedec.runtime import CallResult, Outputs, Rows
from edgedec.speculation import state as states
from edgedec.speculation.bank import AUTO, Bank, Terms, TextAccount, risked
from edgedec.speculation.compiled import TableSteps, compiled_merger
from edgedec.speculation.costs import Costs
from edgedec.speculation.decide import expected_of
from edgedec.speculation.prices import SURE, Prices, UsefulRows
from edgedec.speculation.probing import RowProbe
from edgedec.speculation.reasons import BANK, PROMPT, USED, WAITING
from edgedec.speculation.record import DrafterRecord
from edgedec.speculation.state import SharedLearning
from edgedec.trees.calibration import Calibration

# The most calls without asking any drafter, because the balance has to be brought up to date; in which the runtime
# drafts by itself and does so; and those between two looks at a balance that is too small.
_REST, _OWN_STEPS, _SHORT = 32, 128, 4


class Governed:
    """`members`: the records of the drafters; `account`: what they may lose. The arguments are those of `Governor`."""

    shift = None

    def __init__(
        self,
        drafters: Sequence[tuple[str, Drafter]],
        costs: Callable[[], Costs],
        row_probe: Callable[[Costs], RowProbe | None],
        shared: SharedLearning | None,
        terms: Terms,
    ) -> None:
        self._measure, self._find_probe = costs, row_probe
        self._probe: RowProbe | None = None
        self._shared, self._named = shared, terms is not AUTO
        self.members = [self._record(name, drafter) for name, drafter in drafters]
        self._names = [member.name for member in self.members]
        self.account = TextAccount(shared.bank(terms) if shared else Bank(terms))
        # Of the next call: its prices, None while costs are unknown; whether the tables propose; why nothing is asked.
        self._prices: Prices | None = None
        self._watched, self._why, self._sequences = False, WAITING, 1
        self._useful, self._gaps = UsefulRows(), Gaps()
        # Calls by the size of their drafts, those without by reason; the text when it proposed, the reason after it.
        self._sizes, self._whys = Counter[int](), Counter[str]()
        self._ids, self._later = list[int](), WAITING
        self._begin_text()
        self._link()

    def _begin_text(self) -> None:
        """Another text begins."""
        self._length = self._rest = 0
        # The drafters that get the results of the next call: first those that learn from a prompt.
        self._learners = [member for member in self.members if member.drafter.prompt_rows]

    @cached_property
    def costs(self) -> Costs:
        """The costs of calls, created on first use."""
        costs = self._measure()
        self._probe = self._find_probe(costs)
        for _, member in self._others:
            if member.drafter.effort is not None:
                member.shared = costs.experience(member.name)
        return costs

    def _record(self, name: str, drafter: Drafter) -> DrafterRecord:
        if self._shared is None:
            return DrafterRecord(name, drafter, Calibration())
        return DrafterRecord(name, drafter, self._shared.calibrations.start(name), self._shared.experience(name))

    def _link(self) -> None:
        """Use the drafters' tables as they are now."""
        self._compiled = compiled_merger([m.drafter for m in self.members], [m.calibration for m in self.members])
        numbers = self._compiled.numbers if self._compiled is not None else []
        self._tables = [self.members[number] for number in numbers]
        self._mask = sum(1 << number for number in numbers)
        self._others = [(n, member) for n, member in enumerate(self.members) if n not in numbers]
        # The record of all tables together, and the runtime's steps that draft with them, made when first needed.
        self._steps: TableSteps | None = None
        name = "+".join(member.name for member in self._tables)
        self._group = self._record(name, Off()) if self._tables else None

    @property
    def _records(self) -> list[DrafterRecord]:
        """All records that are judged."""
        return [*([] if self._group is None else [self._group]), *(member for _, member in self._others)]

    @property
    def outputs(self) -> Outputs:
        return states.joined(tuple(member.drafter.outputs for member in self._learners))

    @property
    def reads(self) -> Outputs:
        return states.joined(tuple(member.drafter.reads for member in self._readers()))

    @property
    def prompt_rows(self) -> int:
        return max([member.drafter.prompt_rows for member in self._learners], default=0)

    def _readers(self) -> list[DrafterRecord]:
        """The drafters that read a prompt as well: those that pay as far as is known, if anything may be lost."""
        readers = [member for _, member in self._others if member.reads and not member.hopeless]
        if self._named:
            return readers
        prices = self._prices if self.account.left > 0 else None
        return [member for member in readers if prices is not None and member.pays(prices)]

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None]:
        for member in self._readers():
            if (reading := member.drafter.read(context, rows, result)) is not None:
                yield from reading

    def _begin(self, context: Context) -> None:
        """Bring prices, balance and waits up to date."""
        costs, self._sequences = self.costs, context.concurrent + 1
        context.gaps.watch(costs.between)
        self._gaps, length, reading = context.gaps, context.cache.length, len(context.ids) - context.cache.length - 1
        self._prices, self._watched, self.account.lacking = None, False, 0.0
        if reading == 0:
            self._learners = []
        if costs.covers(self._sequences):
            prices = self._prices = Prices.of(costs, costs.between, self._sequences, length, reading, context.ends)
            self.account.bank.open(prices.call)
            if self._useful.update(costs, self._sequences, context.gaps.pause) and not self._named:
                for _, member in self._others:
                    member.learn_hope(prices)
        elif costs.known:
            self.account.bank.open(costs.at_least(self._sequences))
        self._pass_calls(context, 1)

    def _pass_calls(self, context: Context, asked: int) -> None:
        """Account for the calls since the last proposal, which had no drafts, and for `asked` calls more."""
        steps, rested = self._drain(), self._rested()
        if self._prices is not None and self._length:
            self.account.add_time(context.generated_after(self._length) * self._prices.token)
        self._whys[self._later] += rested
        for record in self._records:
            record.pass_calls(asked + rested + (0 if record is self._group else steps), self._sequences)
        self._length, self._rest, self._ids = len(context.ids), 0, context.ids

    def end(self, context: Context) -> None:
        self._pass_calls(context, 0)
        for member in self.members:
            member.drafter.end(context)

    def _rested(self) -> int:
        """The calls since the last proposal for which nothing was asked."""
        return min(self._rest, max(len(self._ids) - self._length - 1, 0))

    def _asked(self, prices: Prices, reading: bool) -> list[tuple[int, DrafterRecord]]:
        """The drafters besides the runtime's tables that are asked. reading: a prompt is pending; no first token waits
        for a draft."""
        left, row, found = self.account.left, prices.row, list[tuple[int, DrafterRecord]]()
        self._why = BANK if left <= 0 and (reading or self._named) else PROMPT if reading and self._others else WAITING
        if reading:
            self._learners += [member for member in self._readers() if member not in self._learners]
            return found
        for number, member in self._others:
            if not ((self._named and left > 0) or member.ready(prices)):
                continue
            affords = left >= (needed := member.needs(prices) + row)
            if affords or (member.follows and left > 0):
                self._learners.append(member)
            if not affords:
                self._why = BANK
                self.account.lack(needed)
                member.doubt(prices, self.account.most - row)
            elif member.follows or not member.reads:
                found.append((number, member))
        return found

    def _ask_tables(self, prices: Prices) -> None:
        """Decide whether the runtime's tables propose for the next call."""
        left, group = self.account.left, self._group
        if group is None or not ((self._named and left > 0) or group.ready(prices)):
            return
        if risked(left, SURE) > (needed := group.takes + prices.row):
            self._watched = True
            self._learners = [*self._tables, *(m for m in self._learners if m not in self._tables)]
        else:
            self._why = BANK
            self.account.lack(needed / risked(1.0, SURE))

    def _own_steps(self, context: Context, prices: Prices) -> Draft | None:
        """Let the runtime draft with its tables in steps of its own, until another drafter is due; None where it
        cannot."""
        group, compiled = self._group, self._compiled
        calls = self._calls_to_rest(prices, tables=False) if context.left else 0
        if not calls or group is None or compiled is None:
            return None
        calls = calls if self._probe is None or self._probe.complete(self._sequences) else min(calls, _REST)
        if self._steps is None:
            self._steps = TableSteps(compiled, group, self.account, self._names, self._named, self.costs, self._probe)
        self._steps.renew(context, self._useful, self._sequences)
        return Draft(rest=calls, steps=self._steps)

    def _add_call(self, rows: int, seconds: float, cells: int) -> None:
        """Learn what a call took."""
        costs = self.costs
        if costs.add(rows, seconds, cells) and self._probe is not None:
            plain = self._prices.call if self._prices is not None else costs.seconds[min(self._sequences, costs.most)]
            self._probe.add(seconds, plain)

    def _drain(self) -> int:
        """Account for the steps that the runtime has made by itself since the last call; returns their number."""
        done = None if self._steps is None else self._steps.drain(self.members, self._sizes, self._whys)
        if done is None:
            return 0
        self._length = done.length
        if self._shared is not None and any(done.proposed):
            states.share_calibrations(self.members, self._shared)
        return done.steps

    def _calls_to_rest(self, prices: Prices, tables: bool = True) -> int:
        """The calls for which no drafter is to be asked; tables: the runtime's tables neither."""
        records = [r for r in self._records if not r.hopeless and (tables or r is not self._group)]
        reading = any(record.reads and record in self._learners for record in records)
        if reading or (records and self._named):
            return 0
        wait, short = min((record.calls_left(prices) for record in records), default=_OWN_STEPS), 0
        if self._why == BANK and not self._watched:
            short = max(self.account.calls_in_debt(prices.token, _OWN_STEPS), _SHORT if tables else _REST)
        return max(min(wait, _REST if tables else _OWN_STEPS), short, 0)

    def _teach(self, step: StepResult) -> None:
        """Let the drafters learn from a call."""
        for _, member in self._others:
            member.follows = False
            if member in self._learners:
                member.drafter.observe(step)
                member.follow(len(step.picked))
        if self._compiled is not None and any(member in self._learners for member in self._tables):
            self._compiled.observe(step, self._mask)

    def reset(self) -> None:
        self._drain()
        for member in self.members:
            member.drafter.reset()
        for record in self._records:
            record.restart()
        if self._compiled is not None:
            self._compiled.reset()
        self.account.reset()
        self._begin_text()

    def own_state(self) -> State:
        return states.calibration_states(self.members)

    def state(self) -> State:
        return states.table_states(self.members) | self.own_state()

    def restore(self, state: State) -> None:
        self._drain()
        states.restore_all(self.members, state)
        self._link()

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, Governed):
            if self._shared is None:
                self.account.bank.divide(other.account.bank)
            states.inherit_all(self.members, other.members, self._shared is None)
            self._link()

    def _note_tables(self, chances: Sequence[float], ran: bool, code: str) -> None:
        """Note in the record of the tables whether they had guesses, and whether any of them ran."""
        if self._group is not None:
            expected = None if ran else expected_of(self._prices, chances, self.account.bank.trust)
            self._group.runs.add(len(chances) > 0, ran, code, expected)

    def _count(self, size: int, code: str) -> None:
        """Count a call with `size` drafted tokens, or one without, for this reason."""
        if size:
            self._sizes[size] += 1
        else:
            self._whys[code] += 1

    def _report(self, proposed: int) -> dict[str, Any]:
        """The figures of each drafter. proposed: the calls in which all of them proposed, whatever it costs."""
        left, found = self.account.left, {}
        for member in self.members:
            judged = self._group if self._group is not None and member in self._tables else member
            facts = judged.facts(self._prices, self._named and left > 0)
            facts |= {"state": USED, "asked": proposed, "wait": 0} if proposed else {}
            found[member.name] = member.report(facts | {"bank_s": left})
        return found
