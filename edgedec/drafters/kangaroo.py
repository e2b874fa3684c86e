"""Drafts with the target's first layers and a published Kangaroo adapter.

    drafted token ── first layers ──┬── adapter, on its own cache ── readout ── the next token, how sure
                                    └── kept: verification goes on with the other layers

Each drafted token goes through the first layers before the adapter, so the adapter reads true states of the target
only. Drafting stops as for `exit`, whose tree it is (`models/drafts/kangaroo.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from edgedec.bundle.manifest import DraftFacts
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import Draft, Drafter, DrafterContext, DrafterFacts
from edgedec.drafters._calls import EdgeCalls
from edgedec.drafters._heads.reader import HeadReader, Reading, facts_of
from edgedec.drafters._heads.states import Seen, SeenStates
from edgedec.drafters._options import Threshold, TrainedLength, Trim, Width
from edgedec.drafters._slices.stack import READING, TOP, Guesses, Slice, SliceCalls, guesses_of, require_slices
from edgedec.drafters.exit import Exit
from edgedec.errors import BundleCorrupt
from edgedec.runtime import Hidden, Outputs, Readout, Rows
from edgedec.spec import ModelSpec
from edgedec.spec.macs import block_macs

DRAFT = "kangaroo"

FACTS = DrafterFacts(draft=DRAFT, guides=True, paper="Kangaroo")


def make(
    host: DrafterContext, length: TrainedLength = 0, threshold: Threshold = 0.0, width: Width = 3, trim: Trim = 0.25
) -> Kangaroo:
    facts = facts_of(host, DRAFT)
    require_slices(DRAFT, host)
    return Kangaroo(host, facts, length, threshold, width if host.runtime.capabilities.trees else 1, trim)


class Kangaroo(Exit):
    def __init__(
        self, host: DrafterContext, facts: DraftFacts, gamma: int, threshold: float, width: int, trim: float
    ) -> None:
        # Its own adapter needs more than states.
        super().__init__(host, layer_before(host, facts), gamma or facts.depth, threshold, width, trim, "none")
        self.always = facts.features
        self.outputs = self.reads = Outputs(hidden=facts.features)
        self._reader, self._seen = AdapterReader(host, facts), SeenStates(facts.features)
        self._adapter_share = self._reader.macs / (self._spec.hidden_size * self._spec.vocab_size)
        self._states: Hidden | None = None

    def read(self, context: Context, rows: Rows, result: Any) -> Generator[Request, Completed, None]:
        start = int(rows.positions[0]) + 1
        self._seen.read(rows, result, context.ids[start : start + len(rows)])
        yield from self._reader.read(self._seen.take(), context.ids, Outputs(), 0)

    def observe(self, step: StepResult) -> None:
        states, tree = self._states, self._tree
        if self.always[0] in step.result.hidden:
            self._seen.observe(step)
        elif states is not None and tree is not None:
            nodes = [node for node, _ in tree.walk(step.picked)][: len(step.path)]
            if len(nodes) == len(step.path):
                rows = [*range(step.root), *(step.root + 1 + node for node in nodes)]
                self._seen.passed(step, states[rows])
        super().observe(step)

    def reset(self) -> None:
        super().reset()
        self._seen.take()
        self._reader.reset()

    def inherit(self, other: Drafter) -> None:
        super().inherit(other)
        if isinstance(other, Kangaroo):
            self._reader.inherit(other._reader)
            self._seen.inherit(other._seen)

    def report(self) -> dict[str, Any]:
        return super().report() | {"steps": self._reader.calls}

    def _forget(self) -> None:
        super()._forget()
        self._states = None

    def _draft(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        room = len(context.pending()) + min(self._gamma * self._width, nodes)
        if not (yield from self._reader.reach(self._seen.take(), context, room)):
            return Draft()  # the call that follows shows what is missing
        draft = yield from super()._draft(context, nodes, min_path_prob)
        self._reader.end()
        self._states = draft.hidden
        return draft

    def _calls(self, context: Context, part: Slice) -> SliceCalls:
        return AdapterCalls(context, part, self._edge, self._usage.readout, self._reader)

    @property
    def _readout_share(self) -> float:
        """With the adapter, whose cost is counted as if it were more of the readout."""
        return super()._readout_share + self._adapter_share


class AdapterReader(HeadReader):
    """The adapter on one text: row i of its cache is the state at token i."""

    lag = 0
    # States of rows of the text that the next call reads.
    _held: Hidden | None = None

    @property
    def macs(self) -> int:
        """Multiply-adds of the adapter for a row, without the readout."""
        return sum(block_macs(block, self._spec.hidden_size) for block in self._spec.blocks)

    def reach(self, seen: Sequence[Seen], context: Context, room: int) -> Generator[Request, Completed, bool]:
        """Read the states of past calls; returns whether all rows of the text's cache are read, with room for a
        draft."""
        if self._base + self._cache.length > len(context.ids):
            self._sure = False  # the text was cut
        yield from self.read(seen[:-1], context.ids, Outputs(), room)
        self._held = self._next_rows(seen[-1], context) if seen else None
        if seen and self._held is None:
            yield from self.read(seen[-1:], context.ids, Outputs(), room)
        if self._base + self._cache.length > context.cache.length >= self._base:
            self._cache.truncate(context.cache.length - self._base)
        n = self._cache.length + (0 if self._held is None else len(self._held))
        return n + room <= self._cache.capacity and self._base + n == context.cache.length

    def begin(self, states: Hidden, outputs: Outputs) -> Reading:
        """Read the text's last rows, whose states the draft made, with those that wait -> what follows the last."""
        if self._held is not None:
            states, self._held = np.concatenate([self._held, states]), None
        n = len(states)
        rows = Rows.chain(self._text[-n:], self._cache.length)
        result = yield from self._run(rows, states, self._text[-n:], outputs._replace(logits_from=n - 1))
        self._cache.commit(range(n))
        return result

    def _next_rows(self, seen: Seen, context: Context) -> Hidden | None:
        """The states [n, hidden_size] that follow those in the cache and end with the text's, if they are few: they
        wait for the next call."""
        n, skip = len(seen.follow), self._base + self._cache.length - seen.start
        if not self._base <= seen.start <= self._base + self._cache.length or n - skip > READING:
            return None
        if seen.start + n != context.cache.length or context.ids[seen.start + 1 : seen.start + 1 + n] != seen.follow:
            return None
        return seen.states[skip:, 0]


class AdapterCalls(SliceCalls):
    """The target's first layers, then the adapter."""

    def __init__(
        self, context: Context, part: Slice, edge: EdgeCalls, readout: Readout | None, reader: AdapterReader
    ) -> None:
        super().__init__(context, part, edge, readout)
        self._reader, self._known = reader, 0

    def guess(self, rows: Rows, of: int) -> Generator[Request, Completed, tuple[Hidden, list[Guesses]]]:
        hidden, n = (yield from self.shared(rows)), rows.count
        outputs = Outputs(top=TOP, logits_from=n - of, readout=self._readout)
        if not rows.first:
            self._known = n
            result = yield from self._reader.begin(hidden, outputs)
        else:  # below the text, whose rows the adapter has read
            parents = (rows.parents[-n:] - self._known).tolist()
            result = yield from self._reader.grow(rows.tokens[-n:].tolist(), parents, hidden, outputs)
        self.adapted.append((n, self._reader.seconds))
        return hidden, guesses_of(result)


def layer_before(host: DrafterContext, facts: DraftFacts) -> int:
    """After so many layers of the target the adapter reads."""
    spec: ModelSpec = host.runtime.spec
    for layer in range(1, spec.n_layers):
        if facts.features == (spec.span(0, layer).stop - 1,):
            return layer
    raise BundleCorrupt(f"{host.bundle.path}: its kangaroo adapter reads after blocks {list(facts.features)}")
