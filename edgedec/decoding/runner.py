"""The runner of one loop's calls: a single call alone, calls that are yielded together in one forward."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter

from edgedec.decoding.allocation import Offer, grant_alone, text_cells
from edgedec.decoding.host_time import Gaps
from edgedec.decoding.messages import Completed, DecodeLoop, ForkLoop, ForwardOn, Request, Together, Token, Waiting
from edgedec.runtime import Call, Runtime


def run_requests(runtime: Runtime, requests: Sequence[Request]) -> list[Completed]:
    """The results of calls that run together: in one forward per runtime, or in several if they have more rows than the
    runtime accepts at once."""
    found: list[Completed | None] = [None] * len(requests)
    groups: dict[int, tuple[Runtime, list[int]]] = {}
    for i, request in enumerate(requests):
        owner = request.runtime if isinstance(request, ForwardOn) else runtime
        groups.setdefault(id(owner), (owner, []))[1].append(i)
    for owner, members in groups.values():
        calls = [request.call if isinstance(request := requests[i], ForwardOn) else request for i in members]
        done = [completed for part in _forwards(owner, calls) for completed in _forward(owner, part)]
        for i, completed in zip(members, done, strict=True):
            found[i] = completed
    return [completed for completed in found if completed is not None]


def _forwards(owner: Runtime, calls: Sequence[Call]) -> Generator[Sequence[Call]]:
    """The calls in order, in parts of no more rows than the runtime accepts in one forward."""
    start, rows, most = 0, 0, owner.capabilities.largest_call
    for i, call in enumerate(calls):
        if i > start and rows + call.rows.count > most:
            yield calls[start:i]
            start, rows = i, 0
        rows += call.rows.count
    yield calls[start:]


def _forward(owner: Runtime, calls: Sequence[Call]) -> list[Completed]:
    began = perf_counter()
    results = owner.forward(calls)
    seconds, rows = perf_counter() - began, sum(call.rows.count for call in calls)
    cells = sum(text_cells(call.rows.count, call.cache.length) for call in calls)
    whole = all(map(runs_whole, calls))
    return [Completed(result, rows, seconds, cells, whole) for result in results]


def runs_whole(call: Call) -> bool:
    """Whether a call runs the whole stack, and the head for every row."""
    return call.blocks is None and call.hidden is None and call.outputs.logits_from == 0 and call.outputs.head


def is_own(request: Request) -> bool:
    """Whether a call is one of a text's own steps, not of a draft in progress."""
    if isinstance(request, ForwardOn):
        return False
    return request.outputs.head and (request.blocks is None or len(request.blocks) > 0)


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
                answer, since = _run_together(runtime, item, gaps, since)
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


def _run(owner: Runtime, call: Call, gaps: Gaps, since: float, own: bool = True) -> tuple[Completed, float]:
    """A call's result, and the time at which it ended; since: when the forward before it ended; own: on the text's own
    runtime."""
    began = perf_counter()
    result = owner.forward((call,))[0]
    gaps.add_forward(began - since, own=own and is_own(call))
    ended = perf_counter()
    if gaps.watched:
        gaps.end_forward()
    rows = call.rows.count
    cells = text_cells(rows, call.cache.length)
    return Completed(result, rows, ended - began, cells, runs_whole(call)), ended


def _run_together(runtime: Runtime, item: Together, gaps: Gaps, since: float) -> tuple[list[Completed], float]:
    """The results of calls that run in one forward, and the time at which it ended."""
    began = perf_counter()
    answers = run_requests(runtime, item.requests)
    gaps.add_forward(began - since)
    ended = perf_counter()
    if gaps.watched:
        gaps.end_forward()
    return answers, ended
