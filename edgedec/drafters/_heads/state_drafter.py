"""A drafter on the target's states: of the whole text if the head has layers of its own, else of the last token."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from edgedec.bundle.manifest import DraftFacts
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, Proposal
from edgedec.drafters._heads.reader import HeadReader
from edgedec.drafters._heads.states import SeenStates
from edgedec.runtime import CallResult, Outputs, Rows

# The default for the least chance of a path, for drafts of a fixed length.
LEAST = 1e-4


class StateDrafter(BaseDrafter):
    """`_reader`: reads the states in `_seen`; None if the head has no layers: then only the last states are stored.
    `reader`: its class."""

    reader: type[HeadReader] = HeadReader

    def __init__(self, host: DrafterContext, facts: DraftFacts) -> None:
        self._reader = self.reader(host, facts) if facts.stack else None
        self._seen = SeenStates(facts.features)
        self.outputs = Outputs(hidden=facts.features)
        self.reads = self.outputs if facts.stack else Outputs()

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None]:
        assert self._reader is not None
        start = int(rows.positions[0]) + 1
        self._seen.read(rows, result, context.ids[start : start + len(rows)])
        yield from self._reader.read(self._seen.take(), context.ids, Outputs(), 0)

    def observe(self, step: StepResult) -> None:
        if self._reader is None:
            self._seen.take()
        self._seen.observe(step)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        if nodes < 1 or len(context.ids) < 2:
            return Draft()
        return self._search(context, nodes, max(min_path_prob, LEAST))

    def _search(self, context: Context, nodes: int, least: float) -> Generator[Request, Completed, Draft]:
        """The tree of paths with a chance of `least` or more, at most `nodes` of them."""
        raise NotImplementedError

    def reset(self) -> None:
        self._seen.take()
        if self._reader is not None:
            self._reader.reset()

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, StateDrafter) and self._reader is not None and other._reader is not None:
            self._reader.inherit(other._reader)
            self._seen.inherit(other._seen)

    def report(self) -> dict[str, Any]:
        reader = self._reader
        return {} if reader is None else {"steps": reader.calls, "state_bytes": reader.nbytes}
