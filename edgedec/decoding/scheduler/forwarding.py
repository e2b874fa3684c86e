"""One forward for many sequences: a sequence that has no room for its call ends without ending the others.

A runtime rejects a call before it has run anything (`ContextFull`, `UsageError`), or runs out of memory during it
(`MemoryError`). The error does not name the failing sequence; so the sequences' calls are then repeated one by one. The
rows of a failed call stay pending, and the next call writes them again. Any other error is caused by the engine or the
bundle, not by a text, and propagates out of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from edgedec.decoding.messages import Completed
from edgedec.decoding.runner import run_together
from edgedec.decoding.scheduler.job import Job
from edgedec.errors import ContextFull, UsageError
from edgedec.runtime import Runtime, Stepped


class JobAnswers(NamedTuple):
    """results: of the calls that jobs wait for; tokens: the first of each job's own step, with its forward."""

    results: list[tuple[Job, list[Completed]]]
    tokens: list[tuple[Job, int, Stepped]]


def run_jobs(runtime: Runtime, jobs: Sequence[Job], make_room: Callable[[], bool]) -> JobAnswers:
    """The answers to jobs; jobs without room for their calls have ended with the error. make_room: releases caches that
    are held for later texts; returns False if there were none."""
    try:
        return _run(runtime, jobs)
    except (ContextFull, UsageError, MemoryError):
        alone = list(_one_by_one(runtime, jobs, make_room))
        results = [result for answers in alone for result in answers.results]
        return JobAnswers(results, [token for answers in alone for token in answers.tokens])


def _run(runtime: Runtime, jobs: Sequence[Job]) -> JobAnswers:
    stepping, calling = list[Job](), list[Job]()
    for job in jobs:
        (calling if job.steps is None else stepping).append(job)
    steps = [job.steps for job in stepping if job.steps is not None]
    requests = [request for job in calling for request in job.requests]
    completed, stepped = run_together(runtime, requests, steps)
    done = iter(completed)
    results = [(job, list(islice(done, len(job.requests)))) for job in calling]
    if stepped is None:
        return JobAnswers(results, [])
    return JobAnswers(results, [(job, token, stepped) for job, token in zip(stepping, stepped.tokens, strict=False)])


def _one_by_one(runtime: Runtime, jobs: Sequence[Job], make_room: Callable[[], bool]) -> Iterator[JobAnswers]:
    for job in jobs:
        try:
            yield _alone(runtime, job, make_room)
        except (ContextFull, UsageError, MemoryError) as error:
            job.fail(error)


def _alone(runtime: Runtime, job: Job, make_room: Callable[[], bool]) -> JobAnswers:
    try:
        return _run(runtime, [job])
    except MemoryError:
        if not make_room():
            raise
        return _run(runtime, [job])
