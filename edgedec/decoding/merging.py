"""Several decode loops as one fork loop: their calls run in one forward, their drafts are granted together.

Each loop is the one decode loop, with its drafter, constraint and stops; its text is what it would be alone. A runner
(`run_loop`) or a batch sees one job. Loops that wait for masks are waited for, all of them: which loops share a forward
must not depend on how long a mask takes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from edgedec.decoding.allocation import Offer, Others, allocate, text_cells
from edgedec.decoding.messages import (
    Completed,
    DecodeLoop,
    DraftedStep,
    ForwardOn,
    Request,
    Steps,
    Together,
    Token,
    Waiting,
)
from edgedec.errors import UsageError, without_frames
from edgedec.runtime import Call, Capabilities

Take = Callable[[int, Token], bool]
Merged = Generator[Together | Waiting, Any, dict[int, UsageError]]


def all_may(i: int) -> bool:
    return True


def never() -> bool:
    return False


def unnoted(i: int) -> None:
    pass


def without_steps(capabilities: Capabilities) -> Capabilities:
    """The capabilities for a loop among others: a step of the runtime's own delivers its tokens past the merger."""
    return replace(capabilities, steps=None) if capabilities.steps is not None else capabilities


def merged(
    loops: Sequence[DecodeLoop],
    take: Take,
    capabilities: Capabilities,
    may: Callable[[int], bool] = all_may,
    over: Callable[[], bool] = never,
    ended: Callable[[int], None] = unnoted,
) -> Merged:
    """Run loops until all have ended. take(i, token): gets each token of loop i; False closes that loop. may(i):
    whether loop i takes part in the next forward; at least one of those that run must. over(): whether all end now,
    read before each forward. ended(i): called when loop i has ended or was closed. The loops' own capabilities are
    `without_steps`. Returns the errors of loops that a UsageError ended, as where a constraint allows nothing: the
    others go on."""
    parts = [_Part(i, loop, take, ended) for i, loop in enumerate(loops)]
    try:
        for part in parts:
            part.advance(None)
        while (alive := [part for part in parts if not part.ended]) and not over():
            if waiting := [part for part in alive if isinstance(part.item, Waiting)]:
                yield Waiting(lambda waiting=waiting: all(part.ready() for part in waiting))  # type: ignore[misc]
                for part in waiting:
                    part.advance(None)
                continue
            chosen = [part for part in alive if may(part.number)]
            assert chosen, "one of the loops that run must take part"
            if _grant(chosen, capabilities):
                continue
            wanted = [part.requests() for part in chosen]
            answers: list[Completed] = yield Together([request for requests in wanted for request in requests])
            rest = iter(answers)
            for part, requests in zip(chosen, wanted, strict=True):
                own = list(islice(rest, len(requests)))
                part.advance(own if isinstance(part.item, Together) else own[0])
        return {part.number: part.error for part in parts if part.error is not None}
    finally:
        for part in parts:
            part.close()


class _Part:
    """One of the loops. item: what it waits for."""

    def __init__(self, number: int, loop: DecodeLoop, take: Take, note: Callable[[int], None]) -> None:
        self.number, self._loop, self._take, self._note = number, loop, take, note
        self.item: Together | Request | DraftedStep | Offer | Token | Waiting | Steps | None = None
        self.ended, self.error = False, None  # type: bool, UsageError | None

    def advance(self, answer: Any) -> None:
        """Run the loop to the next item that is no token."""
        try:
            item = self._loop.send(answer)
            while isinstance(item, Token):
                if not self._take(self.number, item):
                    self.close()
                    return
                item = next(self._loop)
        except StopIteration:
            self.close()
            return
        except UsageError as error:
            self.error = without_frames(error)
            self.close()
            return
        self.item = item

    def requests(self) -> Sequence[Request]:
        """The calls that it waits for: one, or those of its companions too."""
        if isinstance(self.item, Together):
            return self.item.requests
        assert isinstance(self.item, Call | ForwardOn), "a loop among others makes no steps of the runtime's own"
        return (self.item,)

    def ready(self) -> bool:
        assert isinstance(self.item, Waiting)
        return self.item.ready()

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self._loop.close()
            self._note(self.number)


def _grant(parts: Sequence[_Part], capabilities: Capabilities) -> bool:
    """Answer the offers of drafts, if there are any, beside the calls of the others."""
    offers = [(part, part.item) for part in parts if isinstance(part.item, Offer)]
    if not offers:
        return False
    waiting = [part.requests() for part in parts if not isinstance(part.item, Offer)]
    calls = [request for requests in waiting for request in requests if isinstance(request, Call)]
    rows = sum(call.rows.count for call in calls)
    cells = sum(text_cells(call.rows.count, call.cache.length) for call in calls)
    others = Others(rows, cells, sum(call.rows.count - call.outputs.logits_from for call in calls), len(calls))
    grants = allocate([offer for _, offer in offers], others, capabilities.largest_call, capabilities.row_buckets)
    for (part, _), grant in zip(offers, grants, strict=True):
        part.advance(grant)
    return True
