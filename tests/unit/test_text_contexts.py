"""The state of a text: what is pending, its forks, and what a slide leaves of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.decoding.apply_policy import most_held, most_of_any, settle
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats, StepResult, Token
from edgedec.errors import ContextFull
from edgedec.policies import Chunk, TextSize
from edgedec.runtime import Call, CallResult, Capabilities, Outputs, Rows, forward_one
from edgedec.testing.fakes import FakeRuntime, tiny_spec

TEXT = [i * i % 13 for i in range(20)]


def context_of(n: int, ids: list[int] = TEXT, n_prompt: int = 12, **more: Any) -> Context:
    """A text of which the first n tokens are read, in a cache of 16 or of as many as it has."""
    runtime = FakeRuntime(tiny_spec())
    context = Context(list(ids), n_prompt, runtime.new_cache(max(n, 16)), **more)
    if n:
        forward_one(runtime, Call(Rows.chain(ids[:n], 0), context.cache))
        context.cache.commit(range(n))
    return context


class Policy:
    """Reads three tokens at a time; keeps what it is told. `peak` adds up what it is asked."""

    name = words = "told"

    def __init__(self, own: int = 0) -> None:
        self.own, self.told, self.resets = own, list[Any](), 0

    def fork(self) -> Policy:
        return Policy(self.own)

    def reset(self) -> None:
        self.resets += 1

    def follow(self, ids: Any) -> None:
        self.told.append(("follow", len(ids)))

    def trim(self, cache: Any) -> None:
        self.told.append(("trim", cache.length))

    def prefill(self, cache: Any, ids: Any, most: int, adapter: Any) -> Any:
        self.told.append(("prefill", list(ids), most))
        if self.own:
            yield Call(Rows.chain(ids[: self.own], cache.length), cache)
            cache.commit(range(self.own))

    def chunk(self, cache: Any, left: int, most: int) -> Chunk:
        self.told.append(("chunk", left))
        return Chunk(min(3, left), Outputs(hidden=(1,)))

    def read(self, cache: Any, result: CallResult) -> None:
        self.told.append(("read", cache.length, sorted(result.hidden)))

    def end(self, cache: Any) -> None:
        self.told.append(("end", cache.length))

    def settle(self, cache: Any) -> None:
        self.told.append(("settle", cache.length))

    def peak(self, text: TextSize) -> int:
        self.told.append(text)
        return text.held + 1000 * text.prompt


def test_a_slide_keeps_the_first_and_the_latest() -> None:
    """Of 20 tokens, 12 or 18 of them a prompt, in a room of 16."""
    kept = {0: TEXT[12:], 2: [*TEXT[:2], *TEXT[14:]], 7: [*TEXT[:7], TEXT[19]], 8: [*TEXT[:8], TEXT[19]]}
    prompts = {0: (0, 6), 2: (2, 6), 7: (7, 7), 8: (8, 8)}
    for sinks, ids in kept.items():
        for n_prompt, left in zip((12, 18), prompts[sinks], strict=True):
            context = context_of(16, n_prompt=n_prompt, sinks=sinks)
            context.make_room()
            assert (context.ids, context.cache.length, context.n_prompt) == (ids, 0, left)
    short = context_of(16, n_prompt=1, sinks=2)
    short.make_room()
    assert short.n_prompt == 1
    with pytest.raises(ContextFull, match="20 tokens do not fit a context of 16"):
        context_of(16).make_room()


def test_what_is_forgotten_and_pending() -> None:
    context = context_of(9)
    assert context.pending() == TEXT[9:]
    context.forget(9)
    assert context.cache.length == 9
    context.forget(5)
    assert (context.cache.length, context.pending()) == (5, TEXT[5:])
    policy = Policy()
    context.policy = policy  # type: ignore[assignment]
    context.forget(5)
    assert (context.cache.length, policy.resets) == (5, 0)
    context.forget(4)
    assert (context.cache.length, policy.resets) == (0, 1), "it is read again"


def test_a_fork_is_independent() -> None:
    context = context_of(9, rng=np.random.default_rng(5), policy=Policy())  # type: ignore[arg-type]
    context.hooks = context.hooks._replace(parks=True)
    context.rng.random(3)
    twin = context.fork()
    assert twin.rng.random() == context.rng.random()
    assert twin.policy is not context.policy
    assert not twin.hooks.parks
    twin.ids.append(1)
    twin.cache.truncate(3)
    assert (context.ids, context.cache.length) == (TEXT, 9)
    assert context_of(9).fork().policy is None


# ── under a policy ──


def settled(context: Context, policy: Policy, drafter: Any = None) -> FakeRuntime:
    runtime, answer = FakeRuntime(tiny_spec()), None
    context.policy = policy  # type: ignore[assignment]
    reading = settle(context, 8, drafter)
    while True:
        try:
            request: Any = reading.send(answer)
        except StopIteration:
            return runtime
        answer = SimpleNamespace(result=forward_one(runtime, request))  # type: ignore[assignment]


@pytest.mark.parametrize("own", [0, 5])
def test_a_policy_is_asked_in_its_order(own: int) -> None:
    context, policy = context_of(4, TEXT[:14]), Policy(own)
    runtime = settled(context, policy)
    chunks = {0: [(9, 7), (6, 10), (3, 13)], 5: [(4, 12), (1, 13)]}[own]
    read = [event for left, length in chunks for event in (("chunk", left), ("read", length, [1]))]
    assert policy.told == [("follow", 14), ("prefill", TEXT[4:13], 8), *read, ("end", 13), ("settle", 13)]
    assert (runtime.rows, context.cache.length) == (9, 13)
    again = Policy()
    settled(context, again)
    assert again.told == [("follow", 14), ("settle", 13)], "nothing is left to read"


@pytest.mark.parametrize("read", [13, 14])
def test_the_last_token_runs_by_itself(read: int) -> None:
    policy, context = Policy(), context_of(read, TEXT[:14])
    settled(context, policy)
    trimmed = [("trim", 13)] if read == 14 else []
    assert policy.told == [("follow", 14), *trimmed, ("settle", 13)]
    assert list(settle(context_of(3), 8)) == [], "without a policy nothing is read here"


def test_a_drafter_reads_what_its_policy_reads() -> None:
    seen: list[Any] = []

    class Reader:
        reads = Outputs(hidden=(0,))

        def read(self, context: Context, rows: Rows, result: CallResult) -> Any:
            seen.append((rows.tokens.tolist(), rows.positions.tolist(), sorted(result.hidden), context.cache.length))
            return self.more() if len(seen) == 1 else None

        def more(self) -> Any:
            yield Call(Rows.chain([1], 0), FakeRuntime(tiny_spec()).new_cache(4))

    runtime = settled(context_of(8, TEXT[:14]), Policy(), Reader())
    assert seen == [(TEXT[8:11], [8, 9, 10], [0, 1], 11), (TEXT[11:13], [11, 12], [0, 1], 13)]
    assert runtime.calls == 3
    seen.clear()
    quiet = Reader()
    quiet.reads = Outputs()
    settled(context_of(8, TEXT[:14]), Policy(), quiet)
    assert seen == []


def test_the_most_that_a_text_comes_to_hold() -> None:
    can, policy = Capabilities((), (), prefill_chunk=8), Policy()
    context = context_of(9)
    assert most_held(context, 30, can) == 30
    context.policy = policy  # type: ignore[assignment]
    assert most_held(context, 30, can) == 9 + 20_000
    assert policy.told == [TextSize(9, 9, 20, 30, 8)]
    assert most_held(context, 15, can) == 9 + 15_000
    context.sinks = 2
    assert most_held(context, 15, can) == 9 + 15_000
    policy.told.clear()
    context.ids = TEXT[:7]
    assert most_held(context, 16, can) == 8000, "a slide leaves half of the capacity"
    assert policy.told == [TextSize(9, 9, 7, 16, 8), TextSize(0, 0, 8, 16, 8)]
    context.sinks = 11
    assert most_held(context, 16, can) == 12_000
    context.ids = list(TEXT)
    assert most_held(context, 30, can) == 9 + 20_000
    device = Capabilities((), (), device="opencl")
    assert most_held(context, 30, device) == 30
    policy.told.clear()
    assert most_of_any(policy, 30, can) == 30_000  # type: ignore[arg-type]
    assert policy.told == [TextSize(0, 0, 1, 30, 8), TextSize(0, 0, 30, 30, 8)]
    assert most_of_any(None, 30, can) == most_of_any(policy, 30, device) == 30  # type: ignore[arg-type]


# ── messages ──


def test_times_before_and_after_the_first_token() -> None:
    stats = Stats()
    stats.add_call(3.0, 2.0)
    assert (stats.calls, stats.prefill_s, stats.decode_s, stats.forward_s) == (1, 3.0, 0.0, 0.0)
    stats.add_call(0.5, 0.25)
    stats.add_call(0.5, 0.25)
    assert (stats.calls, stats.prefill_s, stats.decode_s, stats.forward_s) == (3, 3.0, 1.0, 0.5)


def test_tokens_are_ints_that_know_more() -> None:
    plain, known = Token(5), Token(5, -0.5, ((5, -0.5),), "copy")
    assert plain == known == 5
    assert (plain.logprob, plain.top, plain.by) == (None, (), "")
    assert (known.logprob, known.top, known.by, known.token) == (-0.5, ((5, -0.5),), "copy", 5)
    rows = Rows.chain(TEXT[:6], 0)
    assert StepResult(rows, 2, (), (), CallResult(), 0.0).tokens() == TEXT[2:6]
