"""Continuous batching: many sequences that step together, and their admission.

Each sequence is a loop of its own (`loop.decode_loop`), with its own sampling, constraint, drafter and cache. A batch
takes the calls that each loop waits for, runs them in one ragged forward, and gives every loop its result. Sequences
come and go at any step. On a batch-invariant runtime every text is byte-identical to the text that it would be alone.
Drafted rows are allocated to all sequences together, just before the forward (`allocation`). Prompts are read in parts
that keep the others waiting no longer than they may (`pace`).

Admission counts pages: each page of running sequences and of idle prefixes once, and the pages that running sequences
may still fill. A text that shares a prefix with another one, running or ended, continues from its pages (`sharing`); it
waits while the other is still reading that prefix. Idle prefixes are evicted, the least recently used first, when a
waiting sequence needs the room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from time import perf_counter, sleep

from edgedec.cache.prefixes import common
from edgedec.decoding.apply_policy import most_held
from edgedec.decoding.context import Context
from edgedec.decoding.host_time import Gaps
from edgedec.decoding.messages import DecodeLoop, ForkLoop, Token
from edgedec.decoding.scheduler.forwarding import run_jobs
from edgedec.decoding.scheduler.held import HeldTokens, holding
from edgedec.decoding.scheduler.job import SHORT, Job, grant_offers, set_ends
from edgedec.decoding.scheduler.pace import PromptPace
from edgedec.decoding.scheduler.shares import RowShares
from edgedec.decoding.sharing import FoundPrefix, SharedPrefixes, adapter_key
from edgedec.runtime import Runtime

__all__ = ["Batch", "Job"]

# A sequence waits for a common prefix that another one is reading if the prefix saves at least so many more tokens.
_WORTH_WAITING = 16
# The number of waiting texts that are compared with a prompt, once it has been read, for a common prefix.
_LOOKS = 64
# Steps after which the order in which texts end is determined again.
_ENDS = 8
# Seconds between polls while all sequences wait for their constraints.
_PAUSE = 0.0005


class Batch:
    """Sequences that step together, as many as `tokens` of cache allow; the others wait, mostly in the order they came.

    Not for two threads at once.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        tokens: int = 1 << 20,
        most: int = 256,
        prefixes: SharedPrefixes | None = None,
        order: Callable[[Sequence[Job]], Iterable[Job]] = list,
        pause: float = 0.0,
    ) -> None:
        """tokens: the most tokens that the caches may hold; most: sequences at a time; prefixes: shared with other
        batches; order: in which waiting sequences start, those that came first in front; pause: the seconds by which
        prompts, and drafts, may prolong a call of others, besides its own time, 0: there is no limit."""
        self._runtime, self._tokens, self._most, self._order = runtime, tokens, most, order
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._shares, self._pace = RowShares(), PromptPace(pause, runtime.capabilities)
        # Sequences above `most` that may start, and tokens above `tokens` for them.
        self.extra = self.spare = 0
        # The time between forwards, and the part of it since the last forward.
        self._gaps, self._since_last = Gaps(pause), 0.0
        self.prefixes = SharedPrefixes(runtime.capabilities) if prefixes is None else prefixes
        # Set once no further texts come: then those that are ahead of the others draft less (`Ends`).
        self.last, self._steps = False, 0
        self._paged, self._page = runtime.capabilities.page_slots > 0, max(runtime.capabilities.page_slots, 1)

    def __len__(self) -> int:
        """The number of sequences that run or wait."""
        return len(self._running) + len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def jobs(self) -> list[Job]:
        """The sequences that run, in no order."""
        return list(self._running)

    def add(
        self,
        context: Context,
        loop: DecodeLoop | ForkLoop,
        on_token: Callable[[Token | None], None],
        need: int,
        shares: bool = False,
        on_start: Callable[[], None] = lambda: None,
    ) -> Job:
        """Add a sequence; it starts (`on_start`) when there is room for the `need` tokens that it may come to hold."""
        job = Job(context, loop, on_token, need, shares, on_start)
        self._waiting.append(job)
        return job

    def cancel(self, job: Job) -> None:
        """End a sequence; its room is free at once."""
        job.end()

    def step(self) -> bool:
        """One forward for the sequences that wait for a call; False if there is nothing left to do."""
        self._admit()
        began = perf_counter()
        if self.last and not self._waiting and self._steps % _ENDS == 0:
            set_ends(self._running)
        self._steps += 1
        parked = self._resume_parked()
        jobs = self._next_jobs()
        if not jobs:
            self._retire()
            if parked:
                sleep(_PAUSE)
            return parked
        grant_offers(jobs, self._runtime.spec.n_blocks, self._runtime.capabilities)
        self._shares.note(jobs)
        self._pace.begin(jobs)
        own = sum(job.is_own for job in jobs)
        ran = perf_counter()
        self._gaps.add_forward(self._since_last + ran - began, max(own, 1), own > 0)
        answers = run_jobs(self._runtime, jobs, self._drop_idle)
        self._gaps.end_forward()
        ended = perf_counter()
        if answers.tokens:
            done = answers.tokens[-1][2]
            self._gaps.add_steps(done.spent, done.drafts)
            if not answers.results:
                ended = ran + done.seconds  # choosing and committing tokens is after the forward
        self._pace.end(ended - ran)
        self._set_others([job for job, _ in answers.results] + [job for job, *_ in answers.tokens])
        for job, completed in answers.results:
            if completed:
                job.complete(completed)
                self._index_prompt(job)
        for job, token, done in answers.tokens:
            job.deliver(token, done)
        self._retire()
        self._since_last = perf_counter() - ended
        return True

    def _resume_parked(self) -> bool:
        """Continue the sequences whose constraints are ready; returns whether any was parked."""
        for job in (parked := [job for job in self._running if job.parked]):
            verifying = job.verifying
            job.resume()
            if verifying:
                self._index_prompt(job)
        return bool(parked)

    def _set_others(self, jobs: Iterable[Job]) -> None:
        """Note how many sequences run beside these, and the rows that a prompt may have among them."""
        others = len(self._running) - 1
        most_rows = self._pace.most_rows(others)
        for job in jobs:
            job.context.concurrent, job.context.most_rows = others, most_rows

    def run(self) -> None:
        """Step until nothing is left."""
        while self.step():
            pass

    def held(self) -> int:
        """Tokens of cache in use or reserved: each page of running sequences and idle prefixes once, and the pages that
        running sequences may still fill."""
        return self._holding().tokens

    def _holding(self) -> HeldTokens:
        return holding(self._running, self._need, self.prefixes.caches(), self._page if self._paged else 0)

    def _evict(self, most: int) -> bool:
        """Evict idle prefixes until at most so many tokens are held; returns whether that is so."""
        held = self._holding()
        self.prefixes.evict(lambda: held.tokens <= most, held.drop)
        return held.tokens <= most

    def _admit(self) -> None:
        self._retire()
        most = self._most + self.extra
        if not self._waiting or self._places() >= most:
            return
        self._waiting = deque(job for job in self._waiting if not job.done)
        for job in self._order(tuple(self._waiting)):
            if self._running and self._places() + job.width > most:
                return
            match = self._match(job)
            if match is None:
                continue
            shared = match.n // self._page * self._page if self._paged and match.cache is not None else 0
            if not self._fits(self._need(job) - shared):
                return
            self._waiting.remove(job)
            self._start(job, match)

    def _places(self) -> int:
        """The sequences that run; a search counts as its branches."""
        return sum(job.width for job in self._running)

    def _bound(self) -> int:
        """A quick upper bound of `held`: as if nothing were shared."""
        idle = sum(self._in_pages(cache.length) for cache in self.prefixes.caches())
        return idle + sum(self._need(job) + self._page * len(job.caches) for job in self._running)

    def _need(self, job: Job) -> int:
        """Tokens of cache, in whole pages, that a sequence takes at most from here on."""
        return self._in_pages(most_held(job.context, job.need, self._runtime.capabilities))

    def _in_pages(self, tokens: int) -> int:
        """The tokens that as many whole pages hold."""
        return -(-tokens // self._page) * self._page

    def _fits(self, tokens: int) -> bool:
        """Whether there is room for so many more tokens, evicting idle prefixes if necessary. A sequence larger than
        the whole budget still runs, alone."""
        most = self._tokens + self.spare
        return self._bound() + tokens <= most or self._evict(most - tokens) or not self._running

    def _match(self, job: Job) -> FoundPrefix | None:
        """The prefix that the job can continue from; None if it should wait for a running sequence that reads its
        beginning."""
        if not job.shares:
            return FoundPrefix()
        context, least = job.context, self.prefixes.least
        match, key = self.prefixes.find(context), adapter_key(context)
        have = max(match.n, context.cache.length)
        for running in (other.context for other in self._running if other.shares):
            if running.cache.length < running.n_prompt - 1 and adapter_key(running) == key:
                soon = min(common(context.ids, running.ids), running.n_prompt) - have
                if soon >= max(_WORTH_WAITING, least - have):
                    return None
        return match if match.n >= context.cache.length + least else FoundPrefix()

    def _start(self, job: Job, match: FoundPrefix) -> None:
        context = job.context
        self.prefixes.reuse(context, match)
        others = len(self._running)
        context.concurrent, context.gaps, context.most_rows = others, self._gaps, self._pace.most_rows(others)
        context.hooks = context.hooks._replace(parks=True)
        job.started = True
        job.on_start()
        job.advance()
        if not job.done:
            self._running.append(job)

    def _retire(self) -> None:
        """Remove ended sequences, and index what they have read."""
        if not any(job.done for job in self._running):
            return
        for job in self._running:
            if job.done:
                job.context.most_rows = 0
                if job.shares:
                    self._index(job.context, job.context.cache.length)
        self._running = [job for job in self._running if not job.done]
        for shares in (self._shares, self._pace):
            shares.keep(job.owner for job in self._running)

    def _index_prompt(self, job: Job) -> None:
        """Index a prompt as it is read, and once when it has been, so that other texts can continue from it: its whole
        pages, which copies nothing, or all of it if a waiting text shares more than that."""
        context = job.context
        read = context.n_prompt <= len(context.ids) and not job.verifying and not job.indexed
        if job.shares and self._paged and not job.done and read:
            n = min(context.cache.length, context.n_prompt)
            whole = n // self._page * self._page
            waiting = (other.context.ids for other in islice(self._waiting, _LOOKS))
            more = any(common(ids, context.ids) >= whole + self.prefixes.least for ids in waiting)
            job.indexed = context.cache.length >= context.n_prompt - 1
            self._index(context, n if more else whole)

    def _drop_idle(self) -> bool:
        """Evict all idle prefixes; returns whether there were any."""
        held = len(self.prefixes) > 0
        self.prefixes.evict(lambda: False)
        return held

    def _index(self, context: Context, n: int) -> None:
        if self.prefixes.keep(context, n) and self._bound() > self._tokens:
            self._evict(self._tokens)

    def _next_jobs(self) -> list[Job]:
        """The jobs whose calls run together, with no more rows than the runtime accepts; the others come first next
        time, in fair shares of their owners (`shares`). While a draft is made, the other sequences wait for its few
        rows: their steps together take less time than one by one."""
        waiting = {job: rows for job in self._running if (rows := job.rows)}
        drafting = any(rows <= SHORT and not (job.is_own or job.reads) for job, rows in waiting.items())
        ready = self._pace.choose({job: rows for job, rows in waiting.items() if not (drafting and job.is_own)})
        chosen = self._shares.choose(list(ready), list(ready.values()), self._runtime.capabilities.largest_call)
        if len(chosen) < len(self._running):
            taken = set(chosen)
            self._running = [*(job for job in self._running if job not in taken), *chosen]
        return chosen
