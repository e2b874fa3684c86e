"""One sequence of a batch: the calls that its loop waits for, the offers of several, and its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jobs import SPEC, cache, job_of, nothing

from edgedec.decoding.allocation import Offer, Others
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, DraftedStep, ForwardOn, Steps, Together, Token, Waiting
from edgedec.decoding.scheduler.job import Job, _others, grant_offers
from edgedec.errors import ContextFull
from edgedec.runtime import ALL_LOGITS, Call, CallResult, Capabilities, Outputs, Rows
from edgedec.speculation.costs import Costs
from edgedec.testing.fakes import FakeRuntime


def asking(rows: int, blocks: Any = None, **more: Any) -> Job:
    job = job_of(64, cache(0))
    job.requests = (Call(Rows.chain([1] * rows, 0), job.context.cache, blocks, outputs=ALL_LOGITS, **more),)
    return job


def test_rows_and_whose_they_are() -> None:
    other = FakeRuntime(SPEC)
    job, draft = asking(3), asking(2, range(2))
    assert (job.rows, job.is_own, draft.rows, draft.is_own) == (3, True, 2, False)
    job.requests = [*job.requests, *draft.requests, ForwardOn(other, draft.requests[0])]  # type: ignore[arg-type]
    assert (job.rows, job.is_own) == (7, True), "one of them is its own"
    job.requests = [DraftedStep(SimpleNamespace(), 5)]  # type: ignore[arg-type]
    assert (job.rows, job.is_own, job.own_steps()) == (5, True, [(5, job.context.cache)])
    job.offer, job.requests = Offer([0.5], 4, 0, Costs({1: 1.0})), ()
    assert (job.rows, job.is_own, job.own_steps()) == (4, True, [])
    job.offer, job.steps = None, Steps()
    assert (job.rows, job.is_own, job.own_steps()) == (1, True, [(1, job.context.cache)])
    job.steps = None
    assert (job.rows, job.is_own, job.own_steps()) == (0, False, [])


def test_what_runs_beside_an_offer() -> None:
    whole, part, read = asking(3), asking(2, range(4)), asking(8)
    whole.context.cache.length = part.context.cache.length = read.context.cache.length = 100  # type: ignore[misc]
    call = read.requests[0]
    assert isinstance(call, Call)
    read.requests = (call._replace(outputs=Outputs()),)
    assert _others([whole], 6) == Others(3, 150, 3, 1)
    assert _others([read], 6) == Others(8, 275, 0, 0), "rows of a prompt"
    assert _others([part], 6) == Others(round(2 * 4 / 6), round(125 * 4 / 6), 0, 0)
    last = asking(8)
    last.requests = (call._replace(outputs=ALL_LOGITS._replace(logits_from=7)),)
    assert _others([last], 6) == Others(8, 275, 1, 1)
    stepping = job_of(64, cache(100))
    stepping.steps = Steps()
    drafted = job_of(64, cache(100))
    drafted.requests = [DraftedStep(SimpleNamespace(), 5)]  # type: ignore[arg-type]
    assert _others([stepping, drafted], 6) == Others(6, 100 + 200, 6, 2)
    assert _others([whole, part, read], 6) == Others(12, round(150 + 275 + 125 * 4 / 6), 3, 1)


def test_offers_are_answered_together() -> None:
    costs, found = Costs({1: 1.0, 3: 1.05, 4: 9.0}), list[Any]()

    def offering(p: float) -> Any:
        found.append((yield Offer([p], 1, 0, costs)))

    jobs = [Job(Context([1], 1, cache(0)), offering(p), lambda token: None, 8) for p in (0.5, 0.9)]
    for job in jobs:
        job.advance()
    assert [job.offer is not None for job in jobs] == [True, True]
    grant_offers(jobs, 6, Capabilities((), ()))
    assert [grant.nodes for grant in found] == [0, 1]
    assert [job.done for job in jobs] == [True, True]
    grant_offers(jobs, 6, Capabilities((), ()))
    assert len(found) == 2


# ── its loop ──


def test_a_job_stands_aside_until_its_constraint_is_ready() -> None:
    told, known = list[Any](), {"mask": False, "draft": False}

    def loop() -> Any:
        yield Token(5)
        yield Waiting(lambda: known["draft"])
        answer = yield Call(Rows.chain([1], 0), job.context.cache)
        told.append(answer)
        both = yield Together([Call(Rows.chain([1], 0), job.context.cache)])
        told.append(both)

    job = Job(Context([1], 1, cache(0)), loop(), told.append, 8)
    job.context.hooks = job.context.hooks._replace(ready=lambda: known["mask"])
    job.advance()
    assert (told, job.parked, job.verifying) == ([5], True, False)
    job.resume()
    assert job.parked
    known["mask"] = True
    job.resume()
    assert (job.parked, job.verifying, job.requests) == (True, True, ())
    known["draft"] = True
    job.resume()
    assert (job.parked, job.verifying, len(job.requests)) == (False, False, 1)
    done = Completed(CallResult(), 1, 0.0)
    job.complete([done])
    assert told[-1] is done
    assert (len(job.requests), job.done) == (1, False)
    job.complete([done])
    assert told[-2:] == [[done], None]
    assert (job.done, job.requests, job.context.gaps.tokens) == (True, (), 1)
    job.complete([done])
    job.resume()
    assert len(told) == 4


def test_an_error_ends_a_job_once() -> None:
    told = list[Any]()
    job = Job(Context([1, 2], 2, cache(0)), nothing(), told.append, 8)
    job.fail(MemoryError("8 pages"))
    assert isinstance(job.error, ContextFull)
    assert str(job.error).startswith("2 tokens: memory is short (8 pages)")
    job.fail(ContextFull("later"))
    assert "later" not in str(job.error)
    job.end()
    assert told == [None]
