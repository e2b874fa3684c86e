"""Decode loops merged into one, and the random streams of forks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from search.laws import PROMPT, VOCAB, fresh

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.constraint import ConstraintHooks
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.merging import merged, without_steps
from edgedec.decoding.messages import Stats, Together, Token, Waiting
from edgedec.decoding.runner import run_loop
from edgedec.decoding.streams import RandomStreams, copied
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.sampling import Sampling
from edgedec.testing.fakes import FakeRuntime, Limited, PerfectDrafter, SetConstraint


def sampled(n: int, **more: Any) -> GenerationConfig:
    return GenerationConfig(Sampling(temperature=1.0), max_tokens=n, **more)


def run(runtime: FakeRuntime, loop: Any) -> Any:
    """What a loop without tokens returns."""
    found: list[Any] = []

    def returning() -> Any:
        found.append((yield from loop))

    assert list(run_loop(runtime, returning())) == []
    return found[0]


@pytest.mark.parametrize("drafting", [False, True])
def test_merged_loops_are_what_each_is_alone(drafting: bool) -> None:
    runtime = FakeRuntime()
    lengths, seeds = [4, 9, 6], [1, 2, 3]

    def plain(i: int) -> list[Token]:
        loop = decode_loop(fresh(runtime, seed=seeds[i]), sampled(lengths[i]), Off())
        return list(run_loop(runtime, loop))

    texts = [plain(i) for i in range(3)]
    got = [list[int](), list[int](), list[int]()]

    def take(i: int, token: Token) -> bool:
        got[i].append(token)
        return True

    def drafter(i: int) -> Any:
        return Limited(PerfectDrafter([*PROMPT, *texts[i]][:-2]), 3) if drafting and i != 1 else Off()

    stats = [Stats() for _ in range(3)]
    loops = [decode_loop(fresh(runtime, seed=seeds[i]), sampled(lengths[i]), drafter(i), stats[i]) for i in range(3)]
    runtime.forwards.clear()
    over = list[int]()
    assert run(runtime, merged(loops, take, runtime.capabilities, ended=over.append)) == {}
    assert got == texts
    assert sorted(over) == [0, 1, 2]
    assert over[-1] == 1
    assert runtime.forwards[0] == 3, "one forward for all"
    assert (stats[0].accepted > 0) == drafting
    if not drafting:
        assert runtime.forwards == [3] * 4 + [2] * 2 + [1] * 3


def test_a_loop_may_be_closed_at_a_token_and_held_back() -> None:
    runtime = FakeRuntime()
    contexts = [fresh(runtime, seed=i) for i in range(2)]
    loops = [decode_loop(context, sampled(8), Off()) for context in contexts]
    got = [list[int](), list[int]()]

    def take(i: int, token: Token) -> bool:
        got[i].append(token)
        return i == 1 or len(got[0]) < 3

    def may(i: int) -> bool:
        return i == 0 or len(got[0]) == 3

    def over() -> bool:
        return len(got[1]) == 5

    runtime.forwards.clear()
    run(runtime, merged(loops, take, runtime.capabilities, may, over))
    assert [len(one) for one in got] == [3, 5]
    assert runtime.forwards == [1] * 8
    assert [len(context.ids) - context.cache.length for context in contexts] == [1, 1]


def test_an_error_of_one_loop_leaves_the_others() -> None:
    runtime = FakeRuntime()
    dead = SetConstraint(lambda last: [4] if last < 0 else [])
    loops = [
        decode_loop(fresh(runtime), sampled(5, constraint=dead), Off()),
        decode_loop(fresh(runtime), sampled(5), Off()),
    ]
    got = list[int]()
    failed = run(runtime, merged(loops, lambda i, token: got.append(i) or True, runtime.capabilities))
    assert list(failed) == [0]
    assert isinstance(failed[0], UsageError)
    assert got.count(1) == 5


def test_all_are_closed_with_the_merger() -> None:
    runtime = FakeRuntime()
    contexts = [fresh(runtime, seed=i) for i in range(2)]
    loop = merged([decode_loop(c, sampled(9), Off()) for c in contexts], lambda i, t: True, runtime.capabilities)
    item: Any = next(loop)
    assert isinstance(item, Together)
    loop.close()
    assert [context.cache.length for context in contexts] == [0, 0]
    assert all(context.hooks == ConstraintHooks() for context in contexts)


class Slow(SetConstraint):
    """Its masks are there only after some looks."""

    looks = 0

    def ready(self) -> bool:
        self.looks += 1
        return self.looks % 5 == 0

    def fork(self) -> Slow:
        twin = Slow(self._followers, self._vocab)
        twin.accepted = list(self.accepted)
        return twin


def test_loops_that_wait_for_masks_are_waited_for_together() -> None:
    """Which loops share a forward does not depend on how long a mask takes."""
    runtime = FakeRuntime()
    slow = Slow(lambda last: range(VOCAB))
    contexts = [fresh(runtime, seed=i) for i in range(2)]
    for context in contexts:
        context.hooks = ConstraintHooks(parks=True)
    loops = [
        decode_loop(contexts[0], sampled(4, constraint=slow), Off()),
        decode_loop(contexts[1], sampled(4), Off()),
    ]
    waits = 0
    loop: Any = merged(loops, lambda i, token: True, runtime.capabilities)
    item, answer = next(loop), None
    try:
        while True:
            if isinstance(item, Waiting):
                waits += 1
                while not item.ready():
                    pass
                answer = None
            else:
                assert len(item.requests) == 2
                from edgedec.decoding.runner import run_requests

                answer = run_requests(runtime, item.requests)
            item = loop.send(answer)
    except StopIteration:
        pass
    assert waits >= 0


def test_steps_of_the_runtime_are_left_out() -> None:
    runtime = FakeRuntime()
    assert without_steps(runtime.capabilities) is runtime.capabilities


def test_streams_differ_by_path_and_follow_from_the_state() -> None:
    rng = np.random.default_rng(5)
    before = rng.bit_generator.state
    streams = RandomStreams(rng)
    assert rng.bit_generator.state == before, "the text's own generator is not advanced"
    paths = [(1,), (2,), (1, 1), (1, 2), (2, 1)]
    drawn = [streams.of(path).random(4).tolist() for path in paths]
    assert len({tuple(one) for one in drawn}) == len(paths)
    assert drawn == [RandomStreams(np.random.default_rng(5)).of(path).random(4).tolist() for path in paths]
    rng.random()
    assert RandomStreams(rng).of((1,)).random(4).tolist() != drawn[0]
    assert copied(rng).random() == rng.random()


def test_forked_contexts_copy_the_state_as_ever() -> None:
    runtime = FakeRuntime()
    context = Context(list(PROMPT), 5, runtime.new_cache(16), rng=np.random.default_rng(3))
    assert context.fork().rng.random() == context.rng.random()
