"""The fast path for a draft that a check in silence found.

If a call is as quick as some lines of Python, a draft's overhead decides whether it pays. The check (`silence`) has
already merged the trees and chosen the nodes by the allocator's rule; for a single text without a constraint no other
decision is left. So these nodes are cut, run, tested in one call of the library, and accounted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from edgedec.decoding.draft import Draft
from edgedec.decoding.messages import StepResult
from edgedec.speculation.accounts import Prices, settle
from edgedec.speculation.backoff import DrafterStats
from edgedec.speculation.budget import Budget
from edgedec.speculation.compiled import CompiledMerger


@dataclass(frozen=True)
class QuickDraft:
    """`draft`, the expected number of accepted tokens, and the drafters' numbers of each token."""

    draft: Draft
    expected: float
    guesses: Sequence[Sequence[tuple[int, int]]]

    @classmethod
    def of(cls, merger: CompiledMerger, nodes: int, names: Sequence[str]) -> QuickDraft:
        """The likeliest nodes of the tree of the last check."""
        order = sorted(merger.best_first()[:nodes])
        draft = merger.cut(order, names, f"{nodes} guesses that a look found")
        chances = list[float]()
        for parent, p in zip(draft.parents, draft.p, strict=True):
            chances.append(p if parent < 0 else p * chances[parent])
        return cls(draft, sum(chances), [merger.guesses[node] for node in order])

    def settle(
        self,
        merger: CompiledMerger,
        members: Sequence[DrafterStats],
        budget: Budget,
        prices: Prices,
        step: StepResult,
        spent: float,
    ) -> tuple[float, float]:
        """Account its call; `spent`: the drafters' seconds before this. Returns their seconds in all, and the net
        gain."""
        began = perf_counter()
        merger.test(step.picked, [member.calibration for member in members])
        budget.add_guesses(self.expected, len(step.path) - 1)
        for guesses in self.guesses:
            for number, _ in guesses:
                members[number].proposed += 1
        for row in step.path[1:]:
            for number, _ in self.guesses[row - 1]:
                members[number].accepted += 1
        spent += perf_counter() - began
        return spent, settle(budget, step, len(self.guesses), spent, prices)
