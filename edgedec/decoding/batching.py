"""Continuous batching: many texts that step together.

Each text is a loop of its own (`decode.steps`), with its own sampling, constraint, drafter and cache. A batch takes
the call that each loop waits for, makes one ragged call of them, and gives every loop its answer. Texts come and go
at any step. On a runtime whose rows do not change each other every text is what it is alone, to the byte.

A text that begins as another does takes that over instead of reading it again (`prefixes`), and waits if the other
is just reading it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from edgedec.cache.prefixes import Loan, Prefixes
from edgedec.decoding.context import Context
from edgedec.decoding.loop import Answer, Steps, Token
from edgedec.errors import EdgedecError
from edgedec.runtime.core import Call, Runtime, compute_all

# Rows of one call: beyond these a text that is being read waits for the next call, so that others go on.
_ROWS = 256


@dataclass(eq=False)
class Job:
    """A text in a batch. `tell` is given each token, and None at the end; `error` is what ended it, if anything did."""

    context: Context
    loop: Steps
    tell: Callable[[Token | None], None]
    need: int
    shares: bool = False
    call: Call | None = None
    done: bool = False
    error: EdgedecError | None = None

    def advance(self, answer: Answer | None) -> None:
        """On to the next call, or to the end."""
        try:
            item = next(self.loop) if answer is None else self.loop.send(answer)
            while not isinstance(item, Call):
                self.tell(item)
                if self.done:
                    return
                item = next(self.loop)
            self.call = item
        except StopIteration:
            self.end()
        except EdgedecError as error:
            self.error = error
            self.end()

    def end(self) -> None:
        """At its end, or cancelled: its text stands as it is."""
        if not self.done:
            self.done, self.call = True, None
            self.loop.close()
            self.tell(None)


class Batch:
    """Texts that step together, as many as `tokens` of caches allow; the others wait in the order they came.

    Not for two threads at once.
    """

    def __init__(self, runtime: Runtime, *, tokens: int = 1 << 20, most: int = 256) -> None:
        """tokens: how many the caches of all running texts may come to hold; most: texts at a time."""
        self._runtime, self._tokens, self._most = runtime, tokens, most
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._prefixes = Prefixes()

    def __len__(self) -> int:
        """Texts that run or wait."""
        return len(self._running) + len(self._waiting)

    def add(
        self, context: Context, loop: Steps, tell: Callable[[Token | None], None], need: int, shares: bool = False
    ) -> Job:
        """A text; it starts when the caches have room for the `need` tokens that it may come to hold.

        `shares`: its cache may begin with that of another text, and lend its own, as long as both are there.
        """
        job = Job(context, loop, tell, need, shares)
        self._waiting.append(job)
        return job

    def cancel(self, job: Job) -> None:
        """Its place is free at once."""
        job.end()

    def step(self) -> bool:
        """One call for the texts that wait for one; False if there is nothing left to do."""
        self._admit()
        jobs = self._turn()
        if not jobs:
            return False
        calls = [job.call for job in jobs if job.call is not None]
        began = perf_counter()
        outputs = compute_all(self._runtime, calls)
        seconds, rows = perf_counter() - began, sum(call.rows.count for call in calls)
        for job, output in zip(jobs, outputs, strict=True):
            job.context.company = len(self._running) - 1
            job.call = None
            if not job.done:
                job.advance(Answer(output, rows, seconds))
        self._running = [job for job in self._running if not job.done]
        return True

    def run(self) -> None:
        """Until nothing is left."""
        while self.step():
            pass

    def _admit(self) -> None:
        self._running = [job for job in self._running if not job.done]
        if not self._waiting or len(self._running) >= self._most:
            return
        self._waiting = deque(job for job in self._waiting if not job.done)
        for job in list(self._waiting):
            if len(self._running) >= self._most:
                return
            loan = self._loan(job)
            if loan.later:
                continue
            # A text larger than all the room still runs, alone.
            if self._running and self._held() + job.need - self._lent(loan) > self._tokens:
                return
            self._waiting.remove(job)
            self._start(job, loan)

    def _loan(self, job: Job) -> Loan:
        if not job.shares:
            return Loan()
        return self._prefixes.find(job.context, {id(other.context) for other in self._running})

    def _lent(self, loan: Loan) -> int:
        """How much of a text would be held already."""
        return loan.n if any(job.context is loan.lender for job in self._running) else 0

    def _held(self) -> int:
        """Tokens that the caches of the running texts may come to hold; what several share counts once."""
        caches = [job.context.cache for job in self._running]
        shared = {id(cache.shared): cache.n_shared for cache in sorted(caches, key=lambda cache: cache.n_shared)}
        return sum(shared.values()) + sum(job.need - job.context.cache.n_shared for job in self._running)

    def _start(self, job: Job, loan: Loan) -> None:
        if loan.lender is not None:
            job.context.cache.adopt(loan.lender.cache, loan.n)
        if job.shares:
            self._prefixes.add(job.context)
        job.context.company = len(self._running)
        job.advance(None)
        if not job.done:
            self._running.append(job)

    def _turn(self) -> list[Job]:
        """Whose calls go together: those that were left out come first the next time."""
        chosen: list[Job] = []
        rows = 0
        for job in self._running:
            if job.call is None:
                continue
            if chosen and rows + job.call.rows.count > _ROWS:
                continue
            chosen.append(job)
            rows += job.call.rows.count
        left = [job for job in self._running if job not in chosen]
        self._running = left + chosen
        return chosen
