"""Drafts with the target itself, some blocks skipped; the set is searched while it runs (SWIFT).

Unified Layer Skipping gives the start: so many layers skipped, evenly spread, the first and the last kept.
SWIFT continues from there: now and then another set guesses the latest generated tokens, all in one call. If it
brings more tokens for the time of a plain call than the set in use does on the same text, twice, it takes over.
Sets to try are the one in use with something swapped, and draws from a Bayesian model of what each block is for
(`thompson`), or what a Gaussian process expects most of (`gp`). Each task has a set of its own
(`_slices/task_sets.py`). Where a draft is unsure its next guesses are drafted beside the first.

The blocks before the first skipped one compute what they compute in the whole stack: verification continues after
them.
"""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import Annotated, Any, Literal

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts, Proposal, State
from edgedec.drafters._calls import EdgeCalls, own_seconds
from edgedec.drafters._options import Length, Trim, Width, unused
from edgedec.drafters._slices.block_search import Search, Skipped, even
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters._slices.gp_search import SEARCHES
from edgedec.drafters._slices.stack import READING, Slice, SliceCalls, block_costs, require_slices
from edgedec.drafters._slices.task_sets import TaskSets
from edgedec.drafters._slices.tree import Limits, Tree, Trusts, draft_tree, least_path
from edgedec.drafters._usage import usage_of
from edgedec.plugins import Opt
from edgedec.runtime import Call, Outputs, Rows
from edgedec.spec.branches import may_enter

# A trial guesses so many known tokens; it comes after so many calls at the earliest.
_WINDOW, _APART = 32, 16
_SHARE = 0.03  # the default of `share`
# The search ends after so many trials that changed nothing.
_PATIENCE = 50

FACTS = DrafterFacts(paper="SWIFT; Unified Layer Skipping")


def make(
    host: DrafterContext,
    skip: Annotated[float, Opt("Share of the layers that is skipped at first.", above=0, below=1)] = 0.45,
    length: Length = 6,
    search: Annotated[
        Literal["thompson", "gp", "off"], Opt("Search for a better set of layers; off: the set stays as it is.")
    ] = "thompson",
    share: Annotated[float, Opt("Share of the calls' time that trials may take.", 0)] = _SHARE,
    task: Annotated[str, Opt("Name of a kind of texts, whose set is kept apart; by default by how they begin.")] = "",
    width: Width = 3,
    trim: Trim = 0.25,
) -> Skip:
    require_slices("skip", host)
    if search == "off":
        unused("skip", "search=off", share=(share, _SHARE), task=(task, ""))
    spec, kind = host.runtime.spec, SEARCHES.get(search, Search)
    sets = TaskSets(lambda: kind(spec, even(spec, skip), length), task)
    width = width if host.runtime.capabilities.trees else 1
    return Skip(host, sets, length, share if search != "off" else 0.0, width, trim)


class Skip(BaseDrafter):
    def __init__(self, host: DrafterContext, sets: TaskSets, gamma: int, share: float, width: int, trim: float) -> None:
        self._spec = spec = host.runtime.spec
        self._gamma, self._share, self._width, self._edge = gamma, share, width, EdgeCalls(host.runtime)
        self._sets, self._usage, self._trusts = sets, usage_of(host, trim), Trusts()
        self._parts, _ = block_costs(spec)
        self._slice_costs = SliceCosts(spec)
        self.task, self.search = sets.of(())
        self._tree: Tree | None = None
        self._started, self._first = False, 0
        self._calls, self._spent, self._time = 0, 0.0, 0.0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._tree = None
        if not self._started:
            self._started = True
            self.task, self.search = self._sets.of(context.ids[: context.n_prompt])
        pending = len(context.ids) - context.cache.length
        if nodes < 1 or pending > READING or not self.search.skipped:
            return Draft()
        return self._draft(context, nodes, min_path_prob)

    def _draft(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        if self._due(context):
            yield from self._trial(context)
        part, readout = self._slice(self.search.skipped), self._usage.readout
        calls = SliceCalls(context, part, self._edge, readout)
        limits, done = self._limits(nodes, min_path_prob), self._slice_costs.blocks(0, len(part.shared))
        draft, self._tree = yield from draft_tree(context, calls, part, limits, self._spec.n_blocks, done)
        self._first = len(part.shared)
        head = self._slice_costs.head * self._usage.share
        for guessed, rows, seconds in calls.took:
            blocks = part.blocks if guessed else part.shared
            self._slice_costs.add(sum(self._parts[b] for b in blocks), head if guessed else 0.0, rows, seconds)
        return draft

    def _limits(self, nodes: int, min_path_prob: float) -> Limits:
        """The limits of a draft: a level must give as many tokens for its time as drafts do on average."""
        costs, trusts, head = self._slice_costs, self._trusts, self._slice_costs.head
        whole = costs.blocks(0, self._spec.n_blocks)
        plain, kept = costs.plain, whole - sum(self._parts[b] for b in self.search.skipped)
        level = costs.seconds(kept, head * self._usage.share, 1) / plain
        row = max(0.0, costs.seconds(whole, head, 2) / plain - 1.0)
        rate = trusts.record.hope
        pace, rate = max(1.0, (1 + rate) / (1 + level)), trusts.deeper.hope
        leaf = max(min_path_prob, row * (1 + kept) * pace)
        least = max(leaf, least_path(level, pace, rate))
        return Limits(
            min(self._gamma, nodes),
            nodes,
            least,
            leaf,
            self._width,
            0.0,
            trusts.first.estimates.tolist(),
            trusts.side.estimates.tolist(),
        )

    def observe(self, step: StepResult) -> None:
        seconds = step.seconds * step.rows.count / max(step.total, 1)
        self._calls += 1
        self._time += seconds
        self._usage.add(step.picked)
        tree = self._tree
        if step.root <= READING:
            drafted = step.tokens()[1:]
            start = self._first if tree is not None and drafted == tree.tokens[: len(drafted)] else 0
            costs = self._slice_costs
            costs.add(costs.blocks(start, self._spec.n_blocks), costs.head, step.rows.count, seconds)
        if tree is not None:
            self._trusts.observe(tree, step.picked, self._width)
        self._tree = None

    def reset(self) -> None:
        self._tree, self._started = None, False

    def state(self) -> State:
        return self._sets.state()

    def restore(self, state: State) -> None:
        if state:
            self._sets.restore(state)
            self._started = False
            self.task, self.search = self._sets.of(())

    def report(self) -> dict[str, Any]:
        search, trusts, readout = self.search, self._trusts, self._usage.readout
        return {
            "skipped": list(search.skipped),
            "trials": search.trials,
            "rate": round(trusts.record.rate, 3),
            "tried": round(search.rate, 3),
            "task": self.task,
            "readout": self._spec.vocab_size if readout is None else len(readout),
        }

    def _slice(self, skipped: Skipped) -> Slice:
        """All blocks but these; shared are those before the first of them, as far as verification may go on there."""
        n = self._spec.n_blocks
        first = max(b for b in range(skipped[0] + 1) if b == n or may_enter(self._spec, b))
        return Slice(range(first), [b for b in range(first, n) if b not in skipped])

    def _due(self, context: Context) -> bool:
        """Whether a trial may be made: only on generated tokens; a set that won once is tried again soon, by the same
        rules."""
        if self.search.stale >= _PATIENCE or self._calls < _APART:
            return False
        if context.cache.length - _WINDOW + 1 < max(context.n_prompt, 1):
            return False
        return self._share > 0 and self._spent <= self._share * self._time

    def _trial(self, context: Context) -> Generator[Request, Completed, None]:
        search, self._calls = self.search, 0
        skipped = search.candidate()
        rate = yield from self._match(context, skipped)
        if rate is None:
            return
        rival = None
        if skipped != search.skipped and search.promises(skipped, rate):
            rival = yield from self._match(context, search.skipped)
        search.add_trial(skipped, rate, rival)

    def _match(self, context: Context, skipped: Skipped) -> Generator[Request, Completed, float | None]:
        """How much of the latest known tokens the set guesses, on a fork of the cache: positions and all that came
        before are right, and the text's own cache stays as it is. None if a recurrent block cannot go back so far."""
        began = perf_counter()
        stop = context.cache.length
        start = stop - _WINDOW
        fork = context.cache.fork(start)
        if fork.length < start:
            return None
        part, rows = self._slice(skipped), Rows.chain(context.ids[start:stop], start)
        outputs = Outputs(top=1, readout=self._usage.readout)
        call = Call(rows, fork, part.blocks, None, outputs, context.adapter)
        self._spent += perf_counter() - began
        done = yield call
        self._spent += own_seconds(done, call)
        assert done.result.ids is not None
        return float(np.mean(done.result.ids[:, 0] == context.ids[start + 1 : stop + 1]))
