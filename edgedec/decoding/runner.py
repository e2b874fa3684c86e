"""The runner of one loop's calls: a single call alone, calls that are yielded together in one forward; and of the steps
that the runtime makes by itself."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter
from typing import cast

from edgedec.decoding.allocation import Offer, grant_alone, text_cells
from edgedec.decoding.host_time import Gaps
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
from edgedec.runtime import Call, CallResult, Runtime, Stepped

Own = Call | DraftedStep
"""What a sequence's own runtime runs."""


def run_requests(runtime: Runtime, requests: Sequence[Request]) -> list[Completed]:
    """The results of calls that run together: in one forward per runtime, or in several if they have more rows than the
    runtime accepts at once."""
    return run_together(runtime, requests, ())[0]


def run_together(
    runtime: Runtime, requests: Sequence[Request | DraftedStep], steps: Sequence[Steps]
) -> tuple[list[Completed], Stepped | None]:
    """As `run_requests`, with steps of other sequences in the runtime's first forward; what that forward did for
    them."""
    if requests and not steps and all(type(request) is Call for request in requests):
        # As those of forks are, in every step of a beam.
        parts = _parts(cast("Sequence[Call]", requests), 0, runtime.capabilities.largest_call)
        return [result for part in parts for result in _forward(runtime, cast("Sequence[Call]", part))], None
    found: list[Completed | None] = [None] * len(requests)
    groups: dict[int, tuple[Runtime, list[int]]] = {id(runtime): (runtime, [])} if steps else {}
    for i, request in enumerate(requests):
        owner = request.runtime if isinstance(request, ForwardOn) else runtime
        groups.setdefault(id(owner), (owner, []))[1].append(i)
    stepped: Stepped | None = None
    for owner, members in groups.values():
        items = [request.call if isinstance(request := requests[i], ForwardOn) else request for i in members]
        own, done = steps if owner is runtime else (), list[Completed]()
        for part in _parts(items, len(own), owner.capabilities.largest_call):
            if own or any(isinstance(item, DraftedStep) for item in part):
                more, result = _forward_steps(owner, part, own)
                stepped, own = (result if own else stepped), ()
            else:
                more = _forward(owner, [item for item in part if isinstance(item, Call)])
            done += more
        for i, completed in zip(members, done, strict=True):
            found[i] = completed
    return [completed for completed in found if completed is not None], stepped


def _parts(items: Sequence[Own], rows: int, most: int) -> Generator[Sequence[Own]]:
    """The calls in order, in parts of at most `most` rows; rows: those of the first part besides."""
    start = 0
    for i, item in enumerate(items):
        count = item.rows.count if isinstance(item, Call) else item.rows
        if i > start and rows + count > most:
            yield items[start:i]
            start, rows = i, 0
        rows += count
    yield items[start:]


def _forward_steps(owner: Runtime, items: Sequence[Own], steps: Sequence[Steps]) -> tuple[list[Completed], Stepped]:
    """One forward of calls and of the runtime's own steps, those with drafts of Python among `items`."""
    drafted = [item for item in items if isinstance(item, DraftedStep)]
    calls = [item for item in items if isinstance(item, Call)]
    assert owner.capabilities.steps is not None
    native = [*(each.native for each in steps), *(each.native for each in drafted)]
    done = owner.capabilities.steps.run(owner, native, calls)
    whole, first, given = all(map(runs_whole, calls)), iter(done.tokens[len(steps) :]), iter(done.results)
    of = [next(given) if isinstance(item, Call) else CallResult(drawn=next(first)) for item in items]
    return [Completed(result, done.rows, done.seconds, done.cells, whole) for result in of], done


def _forward(owner: Runtime, calls: Sequence[Call]) -> list[Completed]:
    began = perf_counter()
    results = owner.forward(calls)
    seconds, rows, cells, whole = perf_counter() - began, 0, 0, True
    for call in calls:
        count = call.rows.count
        rows, cells, whole = rows + count, cells + text_cells(count, call.cache.length), whole and runs_whole(call)
    return [Completed(result, rows, seconds, cells, whole) for result in results]


def runs_whole(call: Call) -> bool:
    """Whether a call runs the whole stack, and the head for every row."""
    return call.blocks is None and call.hidden is None and call.outputs.logits_from == 0 and call.outputs.head


def is_own(request: Request | DraftedStep) -> bool:
    """Whether a call is one of a text's own steps, not of a draft in progress."""
    if not isinstance(request, Call):
        return isinstance(request, DraftedStep)
    if request.blocks is None:
        return request.outputs.head
    # Verification that resumes after the blocks that a draft has been through.
    last = request.cache.spec.n_blocks - 1
    return request.hidden is not None and len(request.blocks) > 0 and request.blocks[-1] == last


def run_loop(runtime: Runtime, loop: DecodeLoop | ForkLoop, gaps: Gaps | None = None) -> Generator[Token]:
    """The tokens of one loop. Its calls run one at a time, those that it yields together in one forward. gaps: measures
    the time between forwards."""
    gaps, since = gaps or Gaps(), perf_counter()
    answer: Completed | list[Completed]
    try:
        item = next(loop)
        while True:
            if isinstance(item, Token):
                given = perf_counter()
                yield item
                since += perf_counter() - given
                gaps.tokens += 1
                item = next(loop)
            elif isinstance(item, Call):
                answer, since = _run(runtime, item, gaps, since)
                item = loop.send(answer)
            elif isinstance(item, ForwardOn):
                answer, since = _run(item.runtime, item.call, gaps, since, own=False)
                item = loop.send(answer)
            elif isinstance(item, Together):
                answer, since = _run_together(runtime, item.requests, gaps, since)
                item = loop.send(answer)
            elif isinstance(item, Steps):
                since = yield from _run_steps(runtime, item, gaps, since)
                item = next(loop)
            elif isinstance(item, DraftedStep):
                (answer,), since = _run_together(runtime, (item,), gaps, since)
                item = loop.send(answer)
            elif isinstance(item, Offer):
                item = loop.send(grant_alone(item, runtime.capabilities))
            else:
                assert isinstance(item, Waiting)
                item = next(loop)
    except StopIteration:
        return
    finally:
        loop.close()


def _run_steps(runtime: Runtime, steps: Steps, gaps: Gaps, since: float) -> Generator[Token, None, float]:
    """The tokens of the runtime's own steps; returns when the last forward ended, without the consumer's time."""
    assert runtime.capabilities.steps is not None
    run, own = runtime.capabilities.steps.run, (steps.native,)
    while steps.left:
        began = perf_counter()
        gaps.add_forward(began - since)
        done = run(runtime, own, ())
        since = began + done.seconds
        gaps.add_steps(done.spent, done.drafts)
        token = steps.take(done.tokens[0], done)
        while token is not None:
            given = perf_counter()
            yield token
            steps.began = perf_counter()
            since += steps.began - given
            gaps.tokens += 1
            token = steps.more() if done.several(done.tokens[0]) else None
    return since


def _run(owner: Runtime, call: Call, gaps: Gaps, since: float, own: bool = True) -> tuple[Completed, float]:
    """A call's result, and the time at which it ended; since: when the forward before it ended; own: on the text's own
    runtime."""
    began = perf_counter()
    result = owner.forward((call,))[0]
    gaps.add_forward(began - since, own=own and is_own(call))
    ended = perf_counter()
    gaps.end_forward()
    rows = call.rows.count
    cells = text_cells(rows, call.cache.length)
    return Completed(result, rows, ended - began, cells, runs_whole(call)), ended


def _run_together(
    runtime: Runtime, requests: Sequence[Request | DraftedStep], gaps: Gaps, since: float
) -> tuple[list[Completed], float]:
    """The results of calls that run in one forward, and the time at which it ended."""
    began = perf_counter()
    answers, _ = run_together(runtime, requests, ())
    gaps.add_forward(began - since, own=any(map(is_own, requests)))
    ended = perf_counter()
    gaps.end_forward()
    return answers, ended
