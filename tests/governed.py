"""A governor of the CPU engine's tables that knows what comes, in calls of given costs: tests of governed steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from ctypes import addressof, memmove, sizeof
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.decoding.allocation import Offer, Others, best_of_one
from edgedec.decoding.context import Context, Ends
from edgedec.drafters import DrafterContext
from edgedec.drafters.copy import make as make_copy
from edgedec.drafters.datastore import drafter_of
from edgedec.drafters.off import Off
from edgedec.drafters.recycling import make as make_recycling
from edgedec.runtime import Runtime
from edgedec.speculation.bank import NAMED, Bank, Experience, Terms, TextAccount, risked
from edgedec.speculation.costs import Costs
from edgedec.speculation.decide import expected_of, watched
from edgedec.speculation.governor import Governor
from edgedec.speculation.prices import SURE, Prices
from edgedec.speculation.record import DrafterRecord
from edgedec.speculation.state import SharedLearning
from edgedec.storage.datastore import Datastore, write_datastore
from edgedec.trees.calibration import Calibration
from edgedec.trees.merge import TreeMerger

# Seconds of calls by rows, so that four guesses pay: what the engine really takes is nothing beside them.
CALLS = {1: 1.0, 5: 1.2, 6: 4.0, 64: 70.0}


class Still(Costs):
    """Costs that no call corrects. `added`: the calls that were reported, once for each sequence."""

    def __init__(self, seconds: dict[int, float] = CALLS, per_cell: float = 0.0) -> None:
        super().__init__(seconds, per_cell)
        self.added: list[tuple[int, float, int]] = []

    def add(self, rows: int, seconds: float, cells: int = 0) -> bool:
        self.added.append((rows, seconds, cells))
        return True


def store_of(folder: Path, texts: Sequence[Sequence[int]], vocab: int) -> Datastore:
    """The texts as documents, and each with every ninth token changed."""
    wrong = [[(token + 1) % vocab if i % 9 == 8 else token for i, token in enumerate(text)] for text in texts]
    path = folder / "texts.store"
    digest = "00" * 32
    write_datastore(path, digest, vocab, [*texts, *wrong])
    return Datastore(path, digest, vocab)


def governor_of(
    runtime: Runtime,
    store: Datastore | None,
    terms: Terms = NAMED,
    costs: Costs | None = None,
    shared: SharedLearning | None = None,
    recycling: bool = True,
) -> Governor:
    bundle: Any = SimpleNamespace(spec=runtime.spec, manifest=SimpleNamespace(heads={}, drafts={}))
    given = DrafterContext(runtime, bundle, lambda: pytest.fail("no tokenizer is needed"))
    members: list[tuple[str, Any]] = [("copy", make_copy(given))]
    if recycling:
        members.append(("recycling", make_recycling(given)))
    if store is not None:
        members.append(("datastore", drafter_of(given, store, 1)))
    known = costs or Still()
    return Governor(members, lambda: known, terms=terms, shared=shared)


class Oracle:
    """The decisions of `kernels/cpu/govern.cpp` for one text, by the classes of `edgedec.speculation` and the Python
    drafters. native: the governor whose terms hold; the state begins as a copy of its own."""

    def __init__(self, governor: Governor, drafters: Sequence[Any]) -> None:
        steps = governor._steps
        assert steps is not None
        self.native: Any = steps.governor
        self.struct, self.drafters = self.native.struct, drafters
        self.bank, self.account = Bank(), TextAccount(Bank())
        self.account.bank = self.bank
        self.record = DrafterRecord("oracle", Off(), Calibration(), Experience())
        self.calibrations = [Calibration() for _ in drafters]
        for own, member in zip(self.calibrations, governor.members, strict=True):
            own.restore(member.calibration.state())
        self.merger, self.tested, self.length = TreeMerger(), True, 0
        self.silent: Counter[str] = Counter()
        self.renew()

    def renew(self) -> None:
        """New terms: continue from the state that Python left."""
        for given, own in zip(self.native._keep, self._state(), strict=True):
            memmove(addressof(own), addressof(given), sizeof(given))
        self.record._sequences = self.struct.sequences
        self.left, self.fresh, self.named = self.struct.left, 0, bool(self.struct.named)
        self.expected = self.struct.expected

    def _state(self) -> list[Any]:
        return [self.bank, self.account, self.record, self.record.shared]

    def begin(self, context: Context) -> list[float]:
        """The chances of the nodes that it offers, the likeliest first."""
        between: Any = SimpleNamespace(plain=self.struct.plain, draft=self.struct.draft)
        costs: Any = SimpleNamespace(seconds=list(self.native._seconds), per_cell=self.struct.per_cell)
        cached = context.cache.length
        ends = Ends(self.struct.after, self.struct.ties)
        self.prices = prices = Prices.of(costs, between, self.struct.sequences, cached, ends=ends)
        self.costs, self.why, self.watched = costs, "waiting", False
        self.order, self.kept = list[int](), list[int]()
        self.bank.open(prices.call)
        self.account.add_time(self.fresh * prices.token)
        self.record.pass_calls(1, self.struct.sequences)
        left, room = self.account.left, min(context.cache.capacity - cached, self.left, len(costs.seconds) - 1) - 1
        if room < 1:
            self.why = "no_room"
        elif (self.named and left > 0) or self.record.ready(prices):
            if risked(left, SURE) > self.record.takes + prices.added[1] + prices.draft:
                self._watch(context, min(room, self.struct.limit), left)
            else:
                self.why = "bank"
        return [prices.weight * self.bank.trust * self.merger.chances[node] for node in self.order]

    def _watch(self, context: Context, most: int, left: float) -> None:
        if not self.tested:
            self.merger.test(context.ids[self.length :], self.calibrations)
        self.merger, self.tested, self.length, self.watched = TreeMerger(), False, len(context.ids), True
        for number, drafter in enumerate(self.drafters):
            draft = drafter.propose(context, max(most, 1), self.struct.least)
            self.merger.add(number, draft, self.calibrations[number].estimates)
        order, trust, prices = self.merger.best_first(), self.bank.trust, self.prices
        self.why = "refused" if order else "no_guess"
        self.expected = expected_of(prices, self.merger.chances, trust) or 0.0
        alone: Any = SimpleNamespace(seconds=[0.0, *watched(prices, most, trust).seconds[1:]], per_cell=0.0)
        chances = [trust * self.merger.chances[node] for node in order]
        if best_of_one(Offer(chances, 1, 0, alone), Others(), len(alone.seconds) - 1).nodes:
            affordable = prices.affordable(risked(left, chances[0]))
            self.order = order[: min(most, affordable)]
            self.why = self.why if self.order else "bank"

    def offer(self, chances: list[float], context: Context) -> Offer:
        return Offer(chances, 1, context.cache.length, self.costs, 0, 1.0, self.struct.plain, self.struct.draft)

    def end(self, nodes: int, everyone: int, picked: Sequence[int], rows: int, took: Sequence[float]) -> None:
        """nodes: how many run, of `everyone` in a forward of `rows` rows."""
        self.kept, tokens, spent = self.order[:nodes], 0.0, took[0] + took[1]
        self.fresh = len(picked)
        self.left -= len(picked)
        if not self.kept:
            self.silent[self.why] += 1
        else:
            tokens = sum(self.merger.chances[node] for node in self.kept)
            path, self.tested = self.merger.test(picked, self.calibrations), True
            self.bank.add_guesses(tokens, len(set(self.kept).intersection(path)))
        if not self.watched:
            return
        self.record.add_time(spent)
        self.record.judge(tokens, nodes, self.prices)
        if not self.kept:
            return self.account.settle(0.0, spent, self.prices.call)
        seconds, last = self.costs.seconds, len(self.costs.seconds) - 1
        drafted = max(min(everyone, rows - 1), 1)
        row = (seconds[min(rows, last)] - seconds[min(rows - drafted, last)]) / drafted + self.prices.each
        saved = self.prices.token * (len(picked) - 1)
        return self.account.settle(saved, row * nodes + spent + self.prices.draft, self.prices.call)

    def state(self) -> list[bytes]:
        """Everything that decisions depend on."""
        arrays = [np.asarray(calibration.state()).tobytes() for calibration in self.calibrations]
        return [*map(bytes, self._state()), *arrays]


def state_of_governor(governor: Governor) -> list[bytes]:
    """As `Oracle.state`."""
    steps: Any = governor._steps
    arrays = [np.asarray(member.calibration.state()).tobytes() for member in governor.members]
    return [*map(bytes, steps.governor._keep), *arrays]
