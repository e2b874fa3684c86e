"""Searches that wait, fail or do not fit, and the texts beside them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from search.laws import PROMPT, VOCAB, fresh, search_of, searched

from edgedec.cache import memory
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Stats, Together, Token
from edgedec.decoding.runner import run_loop, run_requests
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters.off import Off
from edgedec.errors import ContextFull, UsageError
from edgedec.runtime.memory import check_memory
from edgedec.sampling import Sampling
from edgedec.testing.fakes import FakeRuntime, SetConstraint, random_reference

WORDS = [
    "beam:width=3", "diverse:width=4", "best:n=3", "first:n=3", "cautious:n=3", "lookahead:threshold=0.5",
    "astar:budget=3,step=3", "tests:rollouts=4", "rank:n=3", "refine:n=2,rounds=2,feedback=false",
    "exact-extract", 'select:choices=["ab","cd"]',
]  # fmt: skip
SCORED = ("astar", "tests", "rank", "refine")


def config(words: str = "", most: int = 8, **more: Any) -> GenerationConfig:
    drawn = Sampling(temperature=1.0) if words.startswith(("best", "first")) else Sampling()
    scorer = (lambda prompt, text: text.count("d") / 9) if words.startswith(SCORED) else None
    return GenerationConfig(drawn, max_tokens=most, scorer=scorer, **more)


def state(context: Context) -> tuple[Any, ...]:
    return list(context.ids), context.rng.bit_generator.state


@pytest.mark.parametrize("words", WORDS)
def test_a_search_may_be_left_at_any_forward(words: str) -> None:
    """The text is what was delivered, no branch is held, and plain decoding goes on as if there had been no search."""
    runtime, left = FakeRuntime(), 0
    wanted = list(run_loop(runtime, decode_loop(fresh(runtime), config(), Off())))
    while True:
        context = fresh(runtime)
        search = search_of(runtime, words, config(words), frozenset({2}), context)
        loop, answer = search.loop, None
        try:
            item = loop.send(None)
            for _ in range(left):
                if isinstance(item, Token):
                    item = next(loop)
                    continue
                requests = item.requests if isinstance(item, Together) else [item]
                answers = run_requests(runtime, requests)
                answer = answers if isinstance(item, Together) else answers[0]
                item = loop.send(answer)
        except StopIteration:
            break
        loop.close()
        assert search.room.forks == []
        delivered = context.ids[len(PROMPT) :]
        assert context.cache.length <= len(context.ids)
        if not delivered:
            again = list(run_loop(runtime, decode_loop(context, config(), Off())))
            assert again == wanted, left
        left += 1
    assert left


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("make_runtime", [FakeRuntime, random_reference], ids=["hashes", "reference"])
def test_a_forward_that_fails_ends_the_search_alone(words: str, make_runtime: Any) -> None:
    """The third forward of the search fails; the text beside it stays what it is."""
    runtime = make_runtime()
    plain = config(most=12)
    wanted = list(run_loop(runtime, decode_loop(fresh(runtime, [2, 3]), plain, Off())))
    batch, got = Batch(runtime), list[Any]()
    context, other = fresh(runtime), fresh(runtime, [2, 3])
    search = search_of(runtime, words, config(words), frozenset({2}), context)
    forward, count = runtime.forward, [0]

    def failing(calls: Any) -> Any:
        if any(call.cache is not other.cache for call in calls):
            count[0] += 1
            if count[0] > 2:
                raise ContextFull("no room")
        return forward(calls)

    runtime.forward = failing
    job = batch.add(context, search.loop, lambda token: None, search.need)
    job.forks, job.width = search.room.forks, search.width
    batch.add(other, decode_loop(other, plain, Off()), got.append, need=16)
    batch.run()
    assert isinstance(job.error, ContextFull) or count[0] <= 2
    assert got == [*wanted, None]
    assert job.forks == []
    assert context.cache.length <= len(context.ids)


def test_others_go_on_while_a_scorer_thinks() -> None:
    """The scorer waits until the text beside it has ended."""
    runtime, ended = FakeRuntime(), threading.Event()

    def slow(prompt: str, text: str) -> float:
        assert ended.wait(60), "the other text waited for the scorer"
        return 1.0

    batch, got, found = Batch(runtime), list[Any](), list[Any]()
    wanted = config("best", 3)
    search = search_of(runtime, "best:n=2", wanted.override({"scorer": slow}), context=fresh(runtime))
    job = batch.add(search.room.context, search.loop, found.append, search.need)
    other = fresh(runtime, [2, 3])

    def on_token(token: Any) -> None:
        got.append(token)
        if token is None:
            ended.set()

    batch.add(other, decode_loop(other, config(most=30), Off()), on_token, need=40)
    batch.run()
    assert job.error is None
    assert len(got) == 31
    assert len(found) == 4


def test_a_cancelled_search_does_not_wait_for_its_scorer() -> None:
    runtime, asked, free = FakeRuntime(), threading.Event(), threading.Event()

    def stuck(prompt: str, text: str) -> float:
        asked.set()
        free.wait(60)
        return 1.0

    batch = Batch(runtime)
    search = search_of(runtime, "best:n=2", config("best", 3).override({"scorer": stuck}))
    job = batch.add(search.room.context, search.loop, lambda token: None, search.need)
    while not asked.is_set():
        batch.step()
    batch.cancel(job)
    assert job.done
    assert not free.is_set()
    free.set()


def test_texts_that_do_not_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width that the free memory has no room for is one line, before anything is read."""
    runtime = FakeRuntime()
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 20)
    monkeypatch.setattr("edgedec.runtime.memory._SMALL", 0)
    search = search_of(runtime, "beam:width=256", config(most=50))
    with pytest.raises(ContextFull, match="of memory are free"):
        check_memory(search.room.context.cache, search.need, runtime.capabilities, None)
    narrow = search_of(runtime, "beam:width=1", config(most=4))
    check_memory(narrow.room.context.cache, narrow.need, runtime.capabilities, None)


def test_a_full_context_is_one_line() -> None:
    runtime = FakeRuntime()
    small = Context(list(PROMPT), len(PROMPT), runtime.new_cache(5))
    with pytest.raises(ContextFull, match="5 tokens leave a context of 5 no room: shorten the prompt"):
        searched(runtime, "beam:width=2", config(), context=small)
    empty = Context([], 0, runtime.new_cache(5))
    with pytest.raises(UsageError, match="nothing to continue"):
        searched(runtime, "beam:width=2", config(), context=empty)


@pytest.mark.parametrize("words", WORDS)
def test_no_tokens_are_no_text(words: str) -> None:
    if words.startswith("select"):
        with pytest.raises(ContextFull):
            searched(FakeRuntime(), words, config(words, 0))
        return
    if words.startswith("exact"):
        return
    assert searched(FakeRuntime(), words, config(words, 0), eos=frozenset({2})) == []


@pytest.mark.parametrize("words", WORDS)
def test_every_search_alone_and_in_company(words: str) -> None:
    from search.laws import beside

    for make_runtime in (FakeRuntime, random_reference):
        runtime: Any = make_runtime()
        alone = searched(runtime, words, config(words), eos=frozenset({2}))
        assert beside(runtime, words, config(words), eos=frozenset({2})) == alone


def test_masks_that_take_long_stop_nobody_else() -> None:
    """In a batch a beam waits for its masks while the other text goes on."""

    class Late(SetConstraint):
        """A mask is there at the fifth look."""

        looks = 0

        def ready(self) -> bool:
            self.looks += 1
            return self.looks > 4

        def accept(self, token: int) -> None:
            super().accept(token)
            self.looks = 0

        def fork(self) -> Late:
            twin = Late(self._followers, self._vocab)
            twin.accepted = list(self.accepted)
            return twin

    runtime = FakeRuntime()
    rule = Late(lambda last: range(1, VOCAB))
    batch, got, steps = Batch(runtime), list[Any](), [0]
    search = search_of(runtime, "beam:width=2", config(most=5, constraint=rule))
    job = batch.add(search.room.context, search.loop, lambda token: None, search.need)
    other = fresh(runtime, [2, 3])
    batch.add(other, decode_loop(other, config(most=20), Off()), lambda t: got.append(steps[0]), need=40)
    while batch.step():
        steps[0] += 1
    assert job.error is None
    assert got[19] <= 22, "the other text had a token in every call"
    free = searched(runtime, "beam:width=2", config(most=5, constraint=SetConstraint(lambda last: range(1, VOCAB))))
    assert search._chosen is not None
    assert search._chosen.tokens == free


def test_counts_are_of_the_search() -> None:
    runtime = FakeRuntime()
    search = search_of(runtime, "beam:width=3", config(most=6))
    runtime.forwards.clear()
    list(run_loop(runtime, search.loop))
    report = search.report()
    assert report["forwards"] == len(runtime.forwards) == search.room.stats.calls
    assert report["candidates"] >= 3
    assert isinstance(search.room.stats, Stats)
    assert search.room.stats.generated == 6
