"""What a batch counts as held, whom it starts, lets wait or runs next: pages and rows by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import SPEC, cache, job_of

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context, Ends
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.scheduler import batch as scheduler
from edgedec.decoding.scheduler.batch import Batch
from edgedec.decoding.scheduler.forwarding import JobAnswers
from edgedec.decoding.scheduler.job import Job, set_ends
from edgedec.decoding.sharing import FoundPrefix
from edgedec.drafters.off import Off
from edgedec.runtime import ALL_LOGITS, Call, Rows, Stepped
from edgedec.testing.fakes import FakeRuntime

PAGE = 8


class Prefixes:
    """Idle prefixes by hand: `found` is the answer of `find`; evicting frees one cache after another."""

    least = 8

    def __init__(self, *idle: Any, found: FoundPrefix | None = None) -> None:
        self.idle, self.found, self.kept = list(idle), found or FoundPrefix(), list[int]()

    def __len__(self) -> int:
        return len(self.idle)

    def caches(self) -> list[Any]:
        return self.idle

    def find(self, context: Context) -> FoundPrefix:
        return self.found

    def reuse(self, context: Context, match: FoundPrefix) -> None:
        self.used = match

    def keep(self, context: Context, n: int) -> bool:
        self.kept.append(n)
        return n > 0

    def evict(self, enough: Callable[[], bool], drop: Callable[[Any], None] = lambda cache: None) -> None:
        while self.idle and not enough():
            drop(self.idle.pop(0))


def batch_of(*running: Job, prefixes: Any = None, tokens: int = 100, page: int = PAGE, **more: Any) -> Batch:
    runtime = FakeRuntime(SPEC, page_slots=page, **more)
    batch = Batch(runtime, tokens=tokens, prefixes=Prefixes() if prefixes is None else prefixes)
    batch._running += running
    return batch


# ── room ──


def test_each_page_is_held_once_and_what_may_come_is_promised() -> None:
    first, second = job_of(20, cache(16, 0, 1)), job_of(9, cache(16, 0, 2))
    batch = batch_of(first, second, prefixes=Prefixes(cache(16, 2, 3), cache(5, 4)))
    assert batch.held() == 5 * PAGE + (24 - 16)
    forked = job_of(50, cache(16, 0, 1))
    forked.forks = [Context([1], 1, cache(16, 0, 7))]
    assert batch_of(forked).held() == 3 * PAGE + (56 - 4 * PAGE)
    assert batch_of().held() == 0
    unpaged = batch_of(job_of(20, cache(16)), job_of(9, cache(3)), prefixes=Prefixes(cache(11), cache(5)), page=0)
    assert unpaged.held() == 20 + 9 + 11 + 5


def test_a_text_under_a_policy_promises_what_its_policy_says() -> None:
    pruned = job_of(40, cache(16, 0, 1))
    pruned.context.policy = SimpleNamespace(peak=lambda text: 19)  # type: ignore[assignment]
    pruned.context.cache.slots = lambda b: 12  # type: ignore[method-assign]
    assert batch_of(pruned, job_of(20, cache(8, 0))).held() == 24 + PAGE + (24 - 8)


def test_a_bound_counts_all_as_if_nothing_were_shared() -> None:
    first = job_of(20, cache(16, 0, 1))
    first.forks = [Context([1], 1, cache(16, 0, 7))]
    batch = batch_of(first, job_of(9, cache(16, 0, 2)), prefixes=Prefixes(cache(16, 2, 3), cache(5, 4)))
    assert batch._bound() == 16 + 8 + (24 + 2 * PAGE) + (16 + PAGE)
    assert batch._bound() >= batch.held()


@pytest.mark.parametrize(("tokens", "left"), [(40, 2), (41, 1), (56, 1), (57, 0), (72, 0), (73, 0)])
def test_idle_prefixes_make_room_one_by_one(tokens: int, left: int) -> None:
    """96 tokens of room, 24 of them a running text's, two idle prefixes of 16."""
    prefixes = Prefixes(cache(16, 5, 6), cache(16, 7, 8))
    batch = batch_of(job_of(24, cache(16, 0, 1)), prefixes=prefixes, tokens=96)
    assert batch.held() == 56
    assert batch._fits(tokens) == (tokens <= 72)
    assert len(prefixes) == left


@pytest.mark.parametrize("page", [PAGE, 0])
def test_room_is_made_in_the_time_of_one_look_at_each_prefix(page: int) -> None:
    """However many there are: a text that needs much evicts hundreds."""
    looks = list[int]()

    class Looked(Prefixes):
        def caches(self) -> list[Any]:
            looks.append(1)
            return self.idle

    prefixes = Looked(*(cache(8, 1000 + i) for i in range(200)), cache(16, 5, 6), cache(16, 6, 7))
    batch = batch_of(job_of(24, cache(16, 0, 1)), prefixes=prefixes, tokens=1600 + 48, page=page)
    held = batch.held()
    looks.clear()
    assert batch._fits(1600)
    assert len(looks) <= 2, "the bound, and what is held"
    assert len(prefixes) < 20
    assert batch.held() <= 48 < held - 1500
    # A page of two prefixes is free when both are gone.
    shared = Prefixes(cache(16, 5, 6), cache(16, 6, 7))
    assert batch_of(prefixes=shared, tokens=24)._fits(8)
    assert len(shared) == 1


def test_a_text_larger_than_all_room_runs_alone() -> None:
    prefixes = Prefixes(cache(16, 5, 6))
    assert batch_of(prefixes=prefixes, tokens=20)._fits(30)
    assert len(prefixes) == 0
    assert not batch_of(job_of(8, cache(8, 0)), tokens=20)._fits(30)
    roomy = Prefixes(cache(16, 5, 6))
    assert batch_of(prefixes=roomy, tokens=20)._fits(4)
    assert len(roomy) == 1


def test_what_an_index_holds_too_much_is_let_go() -> None:
    prefixes = Prefixes(cache(16, 5, 6), cache(16, 7, 8))
    batch = batch_of(job_of(24, cache(16, 0, 1)), prefixes=prefixes, tokens=40)
    batch._index(batch.jobs[0].context, 0)  # not kept
    assert len(prefixes) == 2
    batch._index(batch.jobs[0].context, 16)
    assert len(prefixes) == 1
    assert batch._drop_idle()
    assert not batch._drop_idle()


# ── who starts ──


def test_a_text_continues_from_a_prefix_that_is_long_enough() -> None:
    found = FoundPrefix(cache(8, 1), 8)
    for have, expected in ((0, found), (1, FoundPrefix())):
        batch = batch_of(prefixes=Prefixes(found=found))
        assert batch._match(job_of(40, cache(have), shares=True)) == expected
        assert batch._match(job_of(40, cache(have))) == FoundPrefix(), "it shares nothing"


@pytest.mark.parametrize(("alike", "found", "waits"), [(15, 0, False), (16, 0, True), (23, 8, False), (24, 8, True)])
def test_a_text_waits_for_its_beginning(alike: int, found: int, waits: bool) -> None:
    reading = job_of(64, cache(3), 40, shares=True)
    ids = [*range(alike), *[99] * 20]
    batch = batch_of(reading, prefixes=Prefixes(found=FoundPrefix(cache(found), found)))
    assert (batch._match(job_of(64, cache(0), ids=ids, shares=True)) is None) == waits


def test_nobody_waits_for_what_will_not_come() -> None:
    def waits(job: Job, ids: Sequence[int] = range(30)) -> bool:
        return batch_of(job)._match(job_of(64, cache(0), ids=ids, shares=True)) is None

    assert waits(job_of(64, cache(3), shares=True))
    assert not waits(job_of(64, cache(3)))  # shares nothing
    assert waits(job_of(64, cache(28), shares=True))
    assert not waits(job_of(64, cache(29), shares=True))  # has been read
    other = job_of(64, cache(3), shares=True)
    other.context.adapter = SimpleNamespace(digest="x")  # type: ignore[assignment]
    assert not waits(other)
    short = job_of(64, cache(3), shares=True)
    short.context.n_prompt = 15  # what it generates afterwards is not waited for
    assert not waits(short)
    rare = batch_of(job_of(64, cache(3), shares=True))
    rare.prefixes.least = 20
    assert rare._match(job_of(64, cache(0), ids=[*range(19), 99, 99], shares=True)) is not None
    assert rare._match(job_of(64, cache(0), ids=[*range(20), 99, 99], shares=True)) is None


@pytest.mark.parametrize(("stored", "least"), [(False, 48), (True, 64)])
def test_shared_pages_are_not_counted_again(stored: bool, least: int) -> None:
    """A text of 40 tokens that continues from 19 cached ones takes 24 more: two of the three pages are whole. What is
    stored on disk has no pages yet."""
    for room in (least - 1, least):
        match = FoundPrefix(None if stored else cache(19, 0, 1, 2), 19)
        batch = batch_of(job_of(24, cache(24, 0, 1, 2)), prefixes=Prefixes(found=match), tokens=room)
        waiting = job_of(40, cache(0), shares=True)
        batch._waiting.append(waiting)
        batch._admit()
        assert waiting.started == (room == least)


def test_a_prompt_that_was_read_is_indexed_in_whole_pages() -> None:
    def indexed(length: int, ids: Sequence[int] = range(30), waiting: Sequence[int] = (), **changes: Any) -> list[int]:
        job, prefixes = job_of(64, cache(length), ids=ids, shares=True), Prefixes()
        for name, value in changes.items():
            setattr(job.context if name == "n_prompt" else job, name, value)
        batch = batch_of(prefixes=prefixes, tokens=1 << 20, page=16)
        if waiting:
            batch._waiting.append(job_of(64, cache(0), ids=waiting))
        batch._index_prompt(job)
        return prefixes.kept

    assert indexed(29) == indexed(30) == [16]
    assert indexed(31, range(31), n_prompt=30) == [16]
    assert indexed(34, range(33), n_prompt=32) == [32], "of the prompt only"
    assert indexed(48, range(48), n_prompt=47) == [32]
    assert indexed(36, range(37), n_prompt=30) == [16], "the call that read it verified a draft, too"
    assert indexed(32, range(32), n_prompt=30, indexed=True) == []
    assert indexed(29, n_prompt=31) == []
    assert indexed(29, shares=False) == indexed(29, done=True) == indexed(29, verifying=True) == []
    # Another text that waits has so much more in common with it that whole pages are too few.
    assert indexed(47, range(47), waiting=[*range(39), 99]) == [32]
    assert indexed(47, range(47), waiting=[*range(40), 99]) == [47]
    assert indexed(47, range(47), waiting=range(47)) == [47]


# ── who runs next ──


def asking(rows: int, blocks: Any = None, **more: Any) -> Job:
    job = job_of(64, cache(0))
    job.requests = (Call(Rows.chain([1] * rows, 0), job.context.cache, blocks, outputs=ALL_LOGITS, **more),)
    return job


def test_as_many_rows_run_as_a_call_takes_and_the_others_are_next() -> None:
    jobs = [asking(rows) for rows in (4, 3, 2, 9, 1)]
    batch = batch_of(*jobs, largest_call=7)
    assert batch._next_jobs() == [jobs[0], jobs[1]]
    assert batch._next_jobs() == [jobs[2], jobs[4], jobs[0]]
    assert batch._next_jobs() == [jobs[3]], "one with too many is first at last"
    idle = asking(1)
    idle.requests = ()
    assert batch_of(idle)._next_jobs() == []


@pytest.mark.parametrize(("rows", "alone"), [(1, True), (12, True), (13, False)])
def test_steps_wait_for_short_calls_of_drafts(rows: int, alone: bool) -> None:
    step, draft = asking(1), asking(rows, range(2))
    assert batch_of(step, draft)._next_jobs() == ([draft] if alone else [step, draft])


def test_sequences_know_how_many_run_beside_them() -> None:
    runtime, seen = FakeRuntime(SPEC), list[tuple[int, int]]()
    batch = Batch(runtime, most=2)
    for i in range(3):
        context = Context([1, i], 2, runtime.new_cache(32))
        loop = decode_loop(context, GenerationConfig(max_tokens=3 + i), Off(), capabilities=runtime.capabilities)
        batch.add(context, loop, lambda t, i=i, c=context: seen.append((i, c.concurrent)), 8)  # type: ignore[misc]
    assert (len(batch), batch.running) == (3, 0)
    batch.step()
    assert (len(batch), batch.running) == (3, 2)
    batch.run()
    assert (len(batch), batch.running) == (0, 0)
    assert [n for i, n in seen if i == 0] == [1, 1, 1, 1]
    assert [n for i, n in seen if i == 2] == [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("others", "forward", "after"), [(False, 0.25, 0.75), (True, 1.0, 0.0)])
def test_choosing_the_tokens_of_own_steps_is_after_their_forward(
    monkeypatch: pytest.MonkeyPatch, others: bool, forward: float, after: float
) -> None:
    """A second in which the runtime ran a forward of a quarter and chose tokens. Beside other calls, all of it counts
    as theirs."""
    now, seen, job = [5.0], list[float](), asking(1)
    batch = batch_of(job)

    def answers(*_: Any) -> JobAnswers:
        now[0] += 1.0
        return JobAnswers([(job, [])] if others else [], [(job, 7, Stepped([7], 0.25, 1, 0, []))])

    monkeypatch.setattr(scheduler, "perf_counter", lambda: now[0])
    monkeypatch.setattr(scheduler, "run_jobs", answers)
    monkeypatch.setattr(batch._pace, "end", seen.append)
    batch.step()
    assert (seen, batch._gaps.total) == ([forward], 0.0)
    batch.step()
    assert (seen, batch._gaps.total) == ([forward] * 2, after)


def test_each_text_ends_among_the_others_by_the_tokens_that_are_left() -> None:
    """10, 5, 5 and 20 tokens: one ends after the first, two after the second and third."""
    jobs = [
        job_of(40, cache(5, 1)),
        job_of(45, cache(5, 2), n=40),
        job_of(25, cache(5, 3), n=20),
        job_of(50, cache(5, 4)),
    ]
    batch = batch_of(*jobs)
    set_ends(batch.jobs)
    assert [job.context.ends for job in jobs] == [Ends(1, 1), Ends(2, 2), Ends(2, 2), Ends(0, 1)]
