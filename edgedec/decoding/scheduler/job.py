"""A sequence of a batch: its loop, and the calls or the grant that the loop waits for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from edgedec.cache import Cache
from edgedec.decoding.allocation import Offer, Others, allocate, text_cells
from edgedec.decoding.constraint import always
from edgedec.decoding.context import Context, Ends
from edgedec.decoding.messages import (
    Completed,
    DecodeLoop,
    DraftedStep,
    ForkLoop,
    ForwardOn,
    Request,
    Steps,
    Together,
    Token,
    Waiting,
)
from edgedec.decoding.runner import is_own
from edgedec.decoding.scheduler.shares import Owner, divide
from edgedec.errors import ContextFull, EdgedecError, without_frames
from edgedec.runtime import Call, Capabilities, Stepped

# A call with more rows than this reads a text.
SHORT = 12


@dataclass(eq=False)
class Job:
    """A sequence in a batch. `on_token` gets each token, and None at the end; `error`: the error that ended it, if any.
    `need`: the tokens that its caches may come to hold, all forks together, if no policy drops any; `shares`: whether
    it may continue from the pages of other jobs, and they from its pages; `forks`: further contexts that its loop has
    created; `width`: how many sequences it counts as; `indexed`: other texts can find its whole prompt. `parked`: its
    constraint is still computing the mask after its last token, or after drafted tokens (`verifying`), while the other
    jobs run. `offer`: the draft that it could run in the next call; `steps`: those that it runs instead of calls.
    `owner`: whose it is, where several share the rows of calls (`shares`).
    """

    context: Context
    loop: DecodeLoop | ForkLoop
    on_token: Callable[[Token | None], None]
    need: int
    shares: bool = False
    on_start: Callable[[], None] = lambda: None
    owner: Owner = ()
    requests: Sequence[Request | DraftedStep] = ()
    forks: list[Context] = field(default_factory=list)
    width: int = 1
    indexed: bool = False
    started: bool = False
    done: bool = False
    error: EdgedecError | None = None
    parked: bool = False
    verifying: bool = False
    offer: Offer | None = None
    steps: Steps | None = None
    _several: bool = False
    _ready: Callable[[], bool] = always

    def advance(self, answer: Any = None) -> None:
        """Run the loop up to its next calls or its next offer, or to its end."""
        try:
            item = self.loop.send(answer) if answer is not None else next(self.loop)
            while isinstance(item, Token | Waiting):
                if isinstance(item, Token):
                    given = perf_counter()
                    self.on_token(item)
                    self.context.gaps.consumed(perf_counter() - given)
                    if self.done:
                        return
                self.verifying = isinstance(item, Waiting)
                self._ready = item.ready if isinstance(item, Waiting) else self.context.hooks.ready
                self.parked = not self._ready()
                if self.parked:
                    return
                item = next(self.loop)
            self.verifying = False
            self._take(item)
        except StopIteration:
            self.end()
        except (EdgedecError, MemoryError) as error:
            self.fail(error)

    def fail(self, error: EdgedecError | MemoryError) -> None:
        """End with an error that one of its calls raised."""
        if not self.done:
            self.error = without_frames(error if isinstance(error, EdgedecError) else self._without_room(error))
            self.end()

    def _without_room(self, error: MemoryError) -> ContextFull:
        said = f"{len(self.context.ids)} tokens: memory is short ({str(error) or 'out of memory'})"
        full = ContextFull(f"{said}; run fewer texts at a time, or allow their caches more")
        full.__cause__ = error
        return full

    def _take(self, item: Together | Request | DraftedStep | Offer | Steps) -> None:
        self.steps = item if isinstance(item, Steps) else None
        self.offer = item if isinstance(item, Offer) else None
        self._several = isinstance(item, Together)
        if isinstance(item, Together):
            self.requests = item.requests
        else:
            self.requests = () if isinstance(item, Offer | Steps) else (item,)

    def complete(self, completed: Sequence[Completed]) -> None:
        """Continue with the results of its calls."""
        self.requests = ()
        if not self.done:
            self.advance(list(completed) if self._several else completed[0])

    def deliver(self, number: int, done: Stepped) -> None:
        """Deliver the tokens of an own step, the first of which is `number`; continue the loop after the last step."""
        steps = self.steps
        if steps is None or self.done:
            return
        try:
            token = steps.take(number, done)
            while token is not None:
                given = perf_counter()
                self.on_token(token)
                steps.began = perf_counter()
                self.context.gaps.consumed(steps.began - given)
                token = steps.more() if done.several(number) and not self.done else None
        except (EdgedecError, MemoryError) as error:
            self.fail(error)
        if not steps.left and not self.done:
            self.advance()

    def resume(self) -> None:
        """Continue where it was parked, if what it waited for is ready."""
        if not self.done and self._ready():
            self.parked = False
            self.advance()

    def end(self) -> None:
        """End it, complete or not; its text stays as it is."""
        if not self.done:
            self.done, self.requests, self.offer, self.steps = True, (), None, None
            self.loop.close()
            self.on_token(None)

    @property
    def rows(self) -> int:
        """The rows of its waiting calls, without offered rows."""
        if self.steps is not None:
            return 1
        if self.offer is not None:
            return self.offer.rows
        return sum(map(rows_of, self.requests))

    def own_steps(self) -> list[tuple[int, Cache]]:
        """The rows and the cache of each step that the runtime makes by itself."""
        drafted = [(request.rows, self.context.cache) for request in self.requests if isinstance(request, DraftedStep)]
        return drafted if self.steps is None else [(1, self.context.cache)]

    @property
    def is_own(self) -> bool:
        """Whether it waits for a step of its own, not for a draft in progress."""
        return self.offer is not None or self.steps is not None or any(map(is_own, self.requests))

    @property
    def reads(self) -> bool:
        """Whether its next call reads more of its text than was drafted: a prompt, or a text that slides."""
        if len(self.context.ids) - self.context.cache.length <= SHORT:
            return False
        return not any(isinstance(request, ForwardOn) or _is_slice(request) for request in self.requests)

    @property
    def caches(self) -> list[Cache]:
        """The caches of its context and of its forks."""
        return [self.context.cache, *(fork.cache for fork in self.forks)]


def _is_slice(request: Request | DraftedStep) -> bool:
    """Whether it is a call of some blocks only."""
    return isinstance(request, Call) and request.blocks is not None


def set_ends(jobs: Sequence[Job]) -> None:
    """Note when each text ends among the others."""
    left = [job.need - len(job.context.ids) for job in jobs]
    order = sorted(left)
    for job, tokens in zip(jobs, left, strict=True):
        sooner = bisect_right(order, tokens)
        job.context.ends = Ends(len(order) - sooner, sooner - bisect_left(order, tokens))


def rows_of(request: Request | DraftedStep) -> int:
    """The rows that a request computes."""
    if isinstance(request, DraftedStep):
        return request.rows
    return (request.call if isinstance(request, ForwardOn) else request).rows.count


def grant_offers(jobs: Sequence[Job], n_blocks: int, capabilities: Capabilities) -> None:
    """Answer the offers of the jobs that share the next forward, all together."""
    offering = [(job, job.offer) for job in jobs if job.offer is not None]
    if not offering:
        return
    others = _others(jobs, n_blocks)
    owners = [job.owner for job, _ in offering]
    shared = partial(divide, owners=owners) if len(set(owners)) > 1 else None
    most, buckets = capabilities.largest_call, capabilities.row_buckets
    grants = allocate([offer for _, offer in offering], others, most, buckets, shared)
    for (job, _), grant in zip(offering, grants, strict=True):
        job.advance(grant)


def _others(jobs: Sequence[Job], n_blocks: int) -> Others:
    """The cost and the tokens of calls without an offer. Calls of some blocks only belong to drafts in progress."""
    rows, cells, decoding, tokens = 0.0, 0.0, 0, 0
    for step_rows, cache in (step for job in jobs for step in job.own_steps()):
        rows += step_rows
        cells += text_cells(step_rows, cache.length)
        decoding += step_rows
        tokens += 1
    for call in (request for job in jobs for request in job.requests if isinstance(request, Call)):
        share = 1.0 if call.blocks is None else len(call.blocks) / n_blocks
        rows += share * call.rows.count
        cells += share * text_cells(call.rows.count, call.cache.length)
        if call.blocks is None and call.outputs.head:
            decoding += call.rows.count - call.outputs.logits_from
            tokens += 1
    return Others(round(rows), round(cells), decoding, tokens)
