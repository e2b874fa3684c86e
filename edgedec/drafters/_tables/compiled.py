"""The runtime's compiled table drafters, with the same proposals as the Python ones.

Their states have the same format: a session saved with one can be continued with the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, State
from edgedec.drafters._tables.states import checked_record, checked_recycled, checked_table
from edgedec.runtime import DraftGroup, DraftingParts, DraftTable, Outputs, TableSettings

C = TypeVar("C", bound="CompiledDrafter")

# Tables of the text alone, without learned model predictions.
_OF_THE_TEXT = ("copy", "suffix", "datastore")


class CompiledDrafter(BaseDrafter):
    """A table of the runtime as a drafter. A group of several tables may use `table` directly, in place of `propose`
    and `observe`."""

    def __init__(self, parts: DraftingParts, table: DraftTable, settings: TableSettings) -> None:
        self.parts, self.table, self.settings = parts, table, settings
        self.outputs = Outputs() if settings.kind in _OF_THE_TEXT else Outputs(top=settings.k)
        self._group: DraftGroup | None = None

    @property
    def group(self) -> DraftGroup:
        """A group with this table only."""
        if self._group is None:
            self._group = self.parts.group([self.table], [])
        return self._group

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        return Draft(*self.group.propose_one(0, context.ids, context.n_prompt, nodes, min_path_prob))

    def observe(self, step: StepResult) -> None:
        for part in (*step.prompt, step) if self.prompt_rows else (step,):
            self.group.observe(part.rows, part.root, part.path, part.picked, best_shown(part), 1)

    def reset(self) -> None:
        if self._group is not None:
            self._group.reset()

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, CompiledDrafter) and other.settings == self.settings:
            self.table, self._group = other.table.fork(), None
        else:
            super().inherit(other)

    def _fresh(self) -> DraftTable:
        """An empty table of its own."""
        table: DraftTable | None = self.parts.table(self.settings)
        assert table is not None
        return table

    def _take(self, table: DraftTable) -> None:
        self.table, self._group = table, None


def best_shown(step: StepResult) -> tuple[Any, Any] | None:
    """The best tokens of a call's rows and their scores."""
    ids, scores = step.result.ids, step.result.scores
    return None if ids is None or scores is None else (ids, scores)


class CompiledCopy(CompiledDrafter):
    def report(self) -> dict[str, Any]:
        return {name: self.table.figure(i) for i, name in enumerate(("tokens", "edits", "replacements"))}


class CompiledSuffix(CompiledDrafter):
    pass


class CompiledRecycling(CompiledDrafter):
    def state(self) -> State:
        tokens, ids, p, _ = self.table.save(0, self.table.figure(), self.settings.k)
        return {"tokens": tokens.astype(np.int32), "ids": ids, "p": p}

    def restore(self, state: State) -> None:
        tokens, ids, p = checked_recycled(state, self.settings.k, self.settings.vocab)
        table = self._fresh()
        table.load(0, (tokens, ids, p, np.zeros(len(tokens), np.int32)))
        self._take(table)

    def report(self) -> dict[str, Any]:
        return {"tokens": self.table.figure()}


class CompiledTrigram(CompiledDrafter):
    def __init__(self, parts: DraftingParts, table: DraftTable, settings: TableSettings) -> None:
        super().__init__(parts, table, settings)
        self._caps = 1 << 16, 1 << 15

    def state(self) -> State:
        return _table_state(self.table, 0, self.settings.k, "pairs.") | _table_state(
            self.table, 1, self.settings.k, "singles."
        )

    def restore(self, state: State) -> None:
        k, vocab = self.settings.k, self.settings.vocab
        pairs = checked_table(state, "pairs.", k, vocab, self._caps[0])
        singles = checked_table(state, "singles.", k, vocab, self._caps[1])
        table = self._fresh()
        table.load(0, pairs)
        table.load(1, singles)
        self._take(table)

    def report(self) -> dict[str, Any]:
        return {"pairs": self.table.figure(0), "tokens": self.table.figure(1)}


class CompiledStand(CompiledDrafter):
    """The greedy part of STAND; trees of drawn tokens are in Python."""

    @property
    def _shape(self) -> tuple[int, ...]:
        return (2, 4, 3, self.settings.k)

    def state(self) -> State:
        n = int(np.prod(self._shape))
        record = self.table.save(1, 2 * n, 1)[2]
        claimed, came = record.reshape(2, *self._shape)
        return _table_state(self.table, 0, self.settings.k) | {"claimed": claimed.copy(), "came": came.copy()}

    def restore(self, state: State) -> None:
        rows = checked_table(state, "", self.settings.k, self.settings.vocab, 1 << 16)
        claimed, came = checked_record(state, self._shape)
        table = self._fresh()
        table.load(0, rows)
        n, record = 2 * claimed.size, np.concatenate([claimed.ravel(), came.ravel()])
        table.load(1, (np.zeros(n, np.int64), np.zeros((n, 1), np.int32), record[:, None], np.zeros(n, np.int32)))
        self._take(table)

    def report(self) -> dict[str, Any]:
        return {"contexts": self.table.figure()}


def compiled(
    host: DrafterContext,
    settings: TableSettings,
    kind: type[C],
    start: State | None = None,
    name: str = "",
) -> C | None:
    """The runtime's drafter with these settings, or None; its table is shared through `host` under `name`. start: the
    initial state."""
    parts = host.runtime.capabilities.drafting
    table = None if parts is None else parts.table(settings)
    if parts is None or table is None:
        return None
    found = kind(parts, table, settings)
    if start is not None:
        found.restore(start)
    if host.tables is not None and settings.kind not in _OF_THE_TEXT:
        shared = replace(settings, nodes=1, rate=1.0, explore=0.0)
        owner = host.table((shared, name, "compiled"), lambda: found.table.fork())
        found.table.share(owner)
    return found


def _table_state(table: DraftTable, part: int, k: int, prefix: str = "") -> State:
    """The state in the format of `Table.state`."""
    keys, ids, p, visits = table.save(part, table.figure(part), k)
    keys = keys.view(np.int32).reshape(len(keys), 2)
    named: State = {"keys": keys, "ids": ids, "p": p, "visits": visits}
    return {prefix + name: values for name, values in named.items()}
