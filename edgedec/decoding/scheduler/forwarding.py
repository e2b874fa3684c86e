"""One forward for many sequences, in which what one of them has no room for ends no other.

A runtime refuses a call before it has run anything (`ContextFull`, `UsageError`), or finds on the way that memory is
short (`MemoryError`). Whose call it was it does not say; so the sequences' calls are then made one after another. The
rows of a call that failed are pending at most, and the next call writes them again. Any other error is of the engine or
the bundle, no text's own, and leaves the batch.
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
    """What came of the calls that jobs wait for; those without room for theirs have ended, with the reason. make_room:
    gives back what is held for later texts; False: nothing was."""
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
