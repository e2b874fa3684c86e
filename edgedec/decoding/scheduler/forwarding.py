"""One forward for many sequences: a sequence that has no room for its call ends without ending the others.

A runtime rejects a call before it has run anything (`ContextFull`, `UsageError`), or runs out of memory during it
(`MemoryError`). The error does not name the failing sequence; so the sequences' calls are then repeated one by one. The
rows of a failed call stay pending, and the next call writes them again. Any other error is caused by the engine or the
bundle, not by a text, and propagates out of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from edgedec.decoding.messages import Completed
from edgedec.decoding.runner import run_requests
from edgedec.decoding.scheduler.job import Job
from edgedec.errors import ContextFull, UsageError
from edgedec.runtime import Runtime

Answers = list[tuple[Job, list[Completed]]]


def run_jobs(runtime: Runtime, jobs: Sequence[Job], make_room: Callable[[], bool]) -> Answers:
    """The results of the calls that jobs wait for; jobs without room for theirs have ended with the error. make_room:
    releases caches that are held for later texts; returns False if there were none."""
    try:
        done = iter(run_requests(runtime, [request for job in jobs for request in job.requests]))
        return [(job, list(islice(done, len(job.requests)))) for job in jobs]
    except (ContextFull, UsageError, MemoryError):
        return list(_one_by_one(runtime, jobs, make_room))


def _one_by_one(
    runtime: Runtime, jobs: Sequence[Job], make_room: Callable[[], bool]
) -> Iterator[tuple[Job, list[Completed]]]:
    for job in jobs:
        try:
            yield job, _alone(runtime, job, make_room)
        except (ContextFull, UsageError, MemoryError) as error:
            job.fail(error)


def _alone(runtime: Runtime, job: Job, make_room: Callable[[], bool]) -> list[Completed]:
    try:
        return run_requests(runtime, job.requests)
    except MemoryError:
        if not make_room():
            raise
        return run_requests(runtime, job.requests)
