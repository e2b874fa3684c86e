"""Forwards that processors ask for: they run in the forward of the step that needs their results.

A processor with `gather` has, say, a second text that another prompt begins. Before the step's own call runs, it yields
calls for the same rows; those that it yields first share the step's forward, where they are of one runtime. It may go
on once the step's own logits are known.

    step    pending rows and draft ─┐
    gather  the same rows after     ├─ one forward ──> process(logits, path) at each node
            the other prompt       ─┘
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, Together
from edgedec.runtime import Call, Logits, Rows

Gathering = Generator[Sequence[Request], Sequence[Completed], None]
"""Yields calls that run in one forward, and is answered by the result of each."""


@dataclass
class GatheringStep:
    """A step as processors see it. rows: the pending tokens and the draft below the last of them, which is row `root`.
    logits: of the rows from the root on [rows, vocab], once the step's own call has run."""

    context: Context
    rows: Rows
    root: int
    logits: Logits | None = None


@runtime_checkable
class GathersForwards(Protocol):
    """A processor that asks for forwards."""

    def gather(self, step: GatheringStep) -> Gathering:
        """The calls that `process` needs at the step's rows. If one fails, the generator is closed, and the next step
        begins with another."""
        ...

    def room(self, context: Context) -> int:
        """The most drafted rows that the next step may have."""
        ...

    def held(self, tokens: int) -> int:
        """The tokens that its caches of the text's own runtime come to hold with a text of so many tokens."""
        ...


def held_besides(processors: Iterable[object], tokens: int) -> int:
    """The tokens that the caches of processors come to hold with a text of so many tokens."""
    return sum(each.held(tokens) for each in processors if isinstance(each, GathersForwards))


def run_gathered(
    call: Call, step: GatheringStep, processors: Iterable[GathersForwards]
) -> Generator[Together | Call, Any, Completed]:
    """Run a step's call and what processors ask for; returns the call's result."""
    asking = list[tuple[Gathering, Sequence[Request]]]()
    for processor in processors:
        gathering = processor.gather(step)
        if (first := next(gathering, None)) is not None:
            asking.append((gathering, first))
    wanted = [request for _, requests in asking for request in requests]
    own, *answers = (yield Together([call, *wanted])) if wanted else [(yield call)]
    step.logits = own.result.logits  # a call with all logits returns none of rows before the root
    while asking:
        asking = _answered(asking, answers)
        wanted = [request for _, requests in asking for request in requests]
        answers = (yield Together(wanted)) if wanted else []
    assert isinstance(own, Completed)
    return own


def _answered(
    asking: Sequence[tuple[Gathering, Sequence[Request]]], answers: Iterable[Completed]
) -> list[tuple[Gathering, Sequence[Request]]]:
    """What processors ask for next; those that need nothing more are left out."""
    given, found = iter(answers), list[tuple[Gathering, Sequence[Request]]]()
    for gathering, requests in asking:
        try:
            found.append((gathering, gathering.send(list(islice(given, len(requests))))))
        except StopIteration:
            continue
    return found
