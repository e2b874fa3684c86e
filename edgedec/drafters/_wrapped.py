"""A wrapper around a drafter: members that it does not override are those of the inner drafter."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from edgedec.decoding.context import Context
from edgedec.decoding.logits import LogitsProcessor
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import Drafter, Effort, Proposal, State
from edgedec.runtime import CallResult, Outputs, Rows


class Wrapped:
    """A drafter that forwards to another one."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    @property
    def outputs(self) -> Outputs:
        return self.drafter.outputs

    @property
    def reads(self) -> Outputs:
        return self.drafter.reads

    @property
    def prompt_rows(self) -> int:
        return self.drafter.prompt_rows

    @property
    def shift(self) -> LogitsProcessor | None:
        return self.drafter.shift

    @property
    def effort(self) -> Effort | None:
        return self.drafter.effort

    def read(self, context: Context, rows: Rows, result: CallResult) -> Generator[Request, Completed, None] | None:
        return self.drafter.read(context, rows, result)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        return self.drafter.propose(context, nodes, min_path_prob)

    def observe(self, step: StepResult) -> None:
        self.drafter.observe(step)

    def prepare(self) -> None:
        self.drafter.prepare()

    def end(self, context: Context) -> None:
        self.drafter.end(context)

    def reset(self) -> None:
        self.drafter.reset()

    def state(self) -> State:
        return self.drafter.state()

    def own_state(self) -> State:
        return self.drafter.own_state()

    def restore(self, state: State) -> None:
        self.drafter.restore(state)

    def inherit(self, other: Drafter) -> None:
        self.drafter.inherit(other.drafter if isinstance(other, Wrapped) else other)

    def report(self) -> dict[str, Any]:
        return self.drafter.report()
