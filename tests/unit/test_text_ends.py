"""A drafter learns of the end of each generation, however it ends, so that texts that share a balance pay into it for
all of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import decode
from simulated import Python, Simulation, large, measured, small, tiny

import edgedec
from edgedec.decoding.allocation import Grant, Offer
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Completed, DecodeLoop, Request, Stats
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters import BaseDrafter, Draft, Proposal
from edgedec.drafters.forced import Forced
from edgedec.drafters.off import Off
from edgedec.errors import ContextFull, UsageError
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Call, Rows
from edgedec.sampling import Sampling
from edgedec.session import Session
from edgedec.speculation import governor as governor_module
from edgedec.speculation.bank import AUTO, NAMED
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, SetConstraint, tiny_spec

native = pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")


class Noting(PerfectDrafter):
    """Notes the length of the text where it begins, is reset and ends."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.noted = list[tuple[str, int]]()
        self.length = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self.length = len(context.ids)
        return super().propose(context, nodes, min_path_prob)

    def end(self, context: Context) -> None:
        self.noted.append(("end", len(context.ids)))

    def reset(self) -> None:
        self.noted.append(("reset", self.length))
        super().reset()


class Calling(Noting):
    """Makes a call for each proposal."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:  # type: ignore[override]
        return self.call(context)

    def call(self, context: Context) -> Generator[Request, Completed, Draft]:
        yield Call(Rows.chain(context.ids[-1:], context.cache.length), context.cache, range(1))
        return Draft()


def fresh(runtime: FakeRuntime, capacity: int = 100) -> Context:
    return Context([1, 2, 3], 3, runtime.new_cache(capacity), rng=np.random.default_rng(5))


def text_of(n: int = 40) -> list[int]:
    runtime = FakeRuntime(tiny_spec())
    return [1, 2, 3, *map(int, decode(runtime, fresh(runtime), GenerationConfig(max_tokens=n), Off()))]


def last_new(text: Sequence[int]) -> int:
    """A place whose token did not come before."""
    return next(i for i in range(len(text) - 1, 3, -1) if text[i] not in text[3:i])


@pytest.mark.parametrize("draft", [False, True], ids=["plain", "drafted"])
def test_a_text_that_is_complete_ends_once(draft: bool) -> None:
    text, runtime = text_of(), FakeRuntime(tiny_spec())
    for config, n in (
        (GenerationConfig(max_tokens=12), 15),
        (GenerationConfig(max_tokens=0), 3),
        (GenerationConfig(stop_tokens=frozenset({text[last_new(text)]})), last_new(text)),
    ):
        drafter, context = Noting(text if draft else ()), fresh(runtime)
        list(decode(runtime, context, config, drafter))
        assert drafter.noted == [("end", n)]
        assert sum(drafter.observed) > 0 or not (draft and n > 3)


def test_a_text_ends_where_its_context_is_full() -> None:
    text, runtime = text_of(), FakeRuntime(tiny_spec())
    drafter, context = Noting(text), fresh(runtime, 16)
    list(decode(runtime, context, GenerationConfig(max_tokens=None), drafter))
    assert drafter.noted == [("end", 17)]
    drafter, context = Noting(text), fresh(runtime, 16)
    with pytest.raises(ContextFull):
        list(decode(runtime, context, GenerationConfig(max_tokens=30), drafter))
    assert drafter.noted[0] == ("end", 17)
    assert set(drafter.noted) == {("end", 17)}


def test_before_a_text_slides_it_ends() -> None:
    """What the next proposal sees is another text, which is cut."""
    text, runtime = text_of(), FakeRuntime(tiny_spec())
    drafter, context = Noting(text), fresh(runtime, 16)
    context.sinks = 2
    list(decode(runtime, context, GenerationConfig(max_tokens=30), drafter))
    assert drafter.noted[0] == ("end", 17)
    assert [what for what, _ in drafter.noted] == ["end", "reset"] * drafter.resets + ["end"]
    assert drafter.resets > 1


def test_before_a_text_is_read_again_with_other_ropes_it_ends() -> None:
    runtime, drafter, suits = FakeRuntime(tiny_spec()), Noting(), iter([False] * 4 + [True] + [False] * 40)
    context = fresh(runtime)
    context.suit = lambda length=None: next(suits)  # type: ignore[method-assign]
    list(decode(runtime, context, GenerationConfig(max_tokens=12), drafter))
    assert drafter.noted == [("end", 6), ("reset", 5), ("end", 15)]


def test_a_constraint_that_is_done_ends_a_text() -> None:
    runtime, drafter = FakeRuntime(tiny_spec()), Noting()
    constraint = SetConstraint(lambda last: range(13))
    tokens, context = list[int](), fresh(runtime)
    for token in decode(runtime, context, GenerationConfig(max_tokens=12, constraint=constraint), drafter):
        tokens.append(int(token))
        constraint.done = len(tokens) == 4
    assert (len(tokens), drafter.noted) == (4, [("end", 7)])


def test_one_that_allows_nothing_ends_it_too() -> None:
    runtime, drafter = FakeRuntime(tiny_spec()), Noting()
    constraint = SetConstraint(lambda last: ())
    with pytest.raises(UsageError):
        list(decode(runtime, fresh(runtime), GenerationConfig(max_tokens=12, constraint=constraint), drafter))
    assert drafter.noted == [("end", 3)]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("n", [1, 4, 9])
def test_a_text_that_is_closed_ends_there_with_the_numbers_of_plain_decoding(n: int, sampling: Sampling) -> None:
    runtime, config = FakeRuntime(tiny_spec()), GenerationConfig(sampling, max_tokens=40)
    other, states = fresh(runtime), list[Any]()
    for _ in decode(runtime, other, config, Off()):
        states.append(other.rng.bit_generator.state["state"])
    drafter, context = Noting(other.ids), fresh(runtime)
    governor = Governor([("it", drafter)], lambda: Costs({1: 1.0, 8: 1.1, 64: 60.0}), terms=NAMED)
    tokens = decode(runtime, context, config, governor)
    for _ in range(n):
        next(tokens)
    assert drafter.noted == []
    tokens.close()
    tokens.close()
    assert drafter.noted == [("end", 3 + n)]
    assert sum(drafter.observed) > 0 or n == 1, "the text is closed among drafted tokens"
    assert context.rng.bit_generator.state["state"] == states[n - 1]
    assert context.ids == other.ids[: 3 + n]


def started(drafter: BaseDrafter, until: Callable[[Any], bool]) -> tuple[DecodeLoop, Context]:
    """A loop that waits for such an item; every call before it was answered."""
    runtime = FakeRuntime(tiny_spec())
    context = fresh(runtime)
    loop = decode_loop(context, GenerationConfig(max_tokens=30), drafter, capabilities=runtime.capabilities)
    item: Any = next(loop)
    while not until(item):
        if isinstance(item, Call):
            item = loop.send(Completed(runtime.forward([item])[0], len(item.rows), 0.1, 0, True))
        else:
            item = next(loop)
    return loop, context


def test_a_text_that_is_closed_in_a_draft_ends() -> None:
    drafter = Calling()
    loop, context = started(drafter, lambda item: isinstance(item, Call) and item.blocks is not None)
    loop.close()
    assert drafter.noted == [("end", 3)]
    drafter = Calling()
    governor = Forced(Governor([("it", drafter)], lambda: Costs({1: 1.0, 8: 1.1}), terms=NAMED))
    loop, context = started(
        governor, lambda item: isinstance(item, Call) and item.blocks is not None and len(context_of(item)) > 5
    )
    loop.close()
    assert drafter.noted == [("end", len(context.ids))]
    assert len(context.ids) > 5


def context_of(call: Call) -> range:
    """The tokens that a call's rows come after."""
    return range(call.cache.length)


def test_a_text_that_is_closed_in_a_call_ends() -> None:
    drafter = Noting(text_of())
    loop, context = started(drafter, lambda item: isinstance(item, Call) and len(item.rows) > 4)
    loop.close()
    assert drafter.noted == [("end", len(context.ids))]


@pytest.mark.parametrize("what", [MemoryError, KeyboardInterrupt, RuntimeError])
def test_a_text_whose_call_or_drafter_fails_ends(what: type[BaseException]) -> None:
    drafter = Noting(text_of())
    loop, context = started(drafter, lambda item: isinstance(item, Call) and len(item.rows) > 4)
    with pytest.raises(what):
        loop.throw(what())
    assert drafter.noted == [("end", len(context.ids))]

    class Failing(Noting):
        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
            raise what

    failing, runtime = Failing(), FakeRuntime(tiny_spec())
    with pytest.raises(what):
        list(decode(runtime, fresh(runtime), GenerationConfig(max_tokens=3), failing))
    assert failing.noted == [("end", 3)]


def test_a_generation_that_never_began_does_not_end() -> None:
    runtime, drafter = FakeRuntime(tiny_spec()), Noting()
    decode(runtime, fresh(runtime), GenerationConfig(max_tokens=3), drafter).close()
    batch, context = Batch(runtime), fresh(runtime)
    loop = decode_loop(context, GenerationConfig(max_tokens=3), drafter, capabilities=runtime.capabilities)
    batch.cancel(batch.add(context, loop, lambda token: None, 8))
    batch.run()
    assert drafter.noted == []


def test_texts_of_a_batch_end_each_by_itself() -> None:
    """One is cancelled by its consumer, one between two steps, one fails in the end, the others are complete."""
    runtime, text = FakeRuntime(tiny_spec()), text_of()
    batch, drafters, contexts, jobs = Batch(runtime), list[Noting](), list[Context](), list[Any]()

    def given(i: int) -> Callable[[Any], None]:
        def took(token: Any) -> None:
            if i == 1 and token is not None and len(contexts[1].ids) == 7:
                batch.cancel(jobs[1])
            if token is None:
                ends.append((i, drafters[i].noted))

        return took

    ends = list[tuple[int, list[tuple[str, int]]]]()
    for i in range(5):
        drafters.append(Noting(text))
        contexts.append(fresh(runtime, 16 if i == 3 else 100))
        config = GenerationConfig(max_tokens=20 + i)
        loop = decode_loop(contexts[i], config, drafters[i], capabilities=runtime.capabilities)
        jobs.append(batch.add(contexts[i], loop, given(i), 48))
    batch.step()
    batch.step()
    n = len(contexts[2].ids)
    batch.cancel(jobs[2])
    batch.run()
    assert n > 3
    assert isinstance(jobs[3].error, ContextFull)
    assert [(i, noted[0]) for i, noted in sorted(ends)] == [
        (0, ("end", 23)), (1, ("end", 7)), (2, ("end", n)), (3, ("end", 17)), (4, ("end", 27)),
    ]  # fmt: skip
    assert all(len(set(noted)) == 1 for _, noted in ends)
    assert [len(noted) for i, noted in sorted(ends) if i != 3] == [1] * 4


@native
def test_texts_of_sessions_end(nano: Path) -> None:
    """A new prompt, one that goes on, forks, and a search's branches; a session that is let go in the middle."""
    model, made = edgedec.open(nano, engine="native", threads=1), list[Noting]()
    ids = model.tokenizer.encode("Once upon a time")

    def session() -> Session:
        found = model.session(context=128, speculate="off")
        found._new_drafter = lambda: made.append(Noting()) or made[-1]  # type: ignore[assignment, func-returns-value]
        found._drafter = found._new_drafter()
        return found

    first = session()
    n = len(ids)
    tokens = first.tokens(ids, max_tokens=20)
    for _ in range(5):
        next(tokens)
    assert made[0].noted == []
    list(first.tokens(None, max_tokens=3))
    assert made[0].noted == [("end", n + 5), ("end", n + 8)]
    tokens = first.tokens(ids, max_tokens=20)
    next(tokens)
    twin = first.fork()
    assert next(tokens) is not None
    list(twin.tokens(None, max_tokens=4))
    assert made[1].noted == [("end", n + 5)]
    made[0].noted.clear()
    first.rewrite(ids)
    assert [what for what, _ in made[0].noted] == ["end", "reset"]
    abandoned = first.fork()
    assert abandoned._drafter is made[2]
    del abandoned
    assert made[2].noted == []
    let_go = session()
    tokens = let_go.tokens(ids, max_tokens=20)
    next(tokens)
    del let_go, tokens
    assert made[3].noted == [("end", n + 1)]
    searching = session()
    list(searching.tokens(ids, max_tokens=6, temperature=1.0, seed=1, search="best:n=3"))
    branches = made[5:]
    assert len(branches) >= 3
    assert all([what for what, _ in one.noted] == ["end"] for one in branches)


# ── what a governor makes of it ──


def test_a_proposal_whose_call_did_not_run_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime(tiny_spec())
    governor, context = timed(monkeypatch), fresh(runtime)
    bank = governor.account.bank
    loop = decode_loop(context, GenerationConfig(max_tokens=30), governor, capabilities=runtime.capabilities)
    item: Any = next(loop)
    while not (isinstance(item, Call) and len(item.rows) > 1 and len(context.ids) > 3):
        if isinstance(item, Call):
            item = loop.send(Completed(runtime.forward([item])[0], len(item.rows), 0.1, 0, True))
        else:
            item = loop.send(Grant(4, 4, 2.0)) if isinstance(item, Offer) else next(loop)
    before = bank.lost
    loop.close()
    assert bank.lost == pytest.approx(before + 0.25)
    governor.end(context)
    assert bank.lost == pytest.approx(before + 0.25), "once"


def test_a_proposal_that_a_text_s_end_broke_off_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a draft model, say, that has made one of its calls."""
    runtime = FakeRuntime(tiny_spec())
    governor, context = timed(monkeypatch), fresh(runtime)
    bank, propose, asked = (
        governor.account.bank,
        governor.members[0].drafter.propose,
        Offer((1.0,), 1, 0, governor.costs),
    )

    def slowly(*given: Any) -> Generator[Offer, Any, Draft]:
        draft = propose(*given)
        yield asked
        return draft

    monkeypatch.setattr(governor.members[0].drafter, "propose", slowly)
    loop = decode_loop(context, GenerationConfig(max_tokens=30), governor, capabilities=runtime.capabilities)
    item: Any = next(loop)
    while item is not asked:
        done = isinstance(item, Call)
        item = loop.send(Completed(runtime.forward([item])[0], len(item.rows), 0.1, 0, True)) if done else next(loop)
    before = bank.lost
    loop.close()
    assert bank.lost == pytest.approx(before + 0.25)


@pytest.mark.parametrize("fixed", [0, 4])
def test_what_was_settled_with_its_call_is_not_settled_at_the_end(fixed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, stats, settled = FakeRuntime(tiny_spec()), Stats(), list[float]()
    governor = timed(monkeypatch, fixed)
    monkeypatch.setattr(governor.account, "settle", lambda saved, cost, call: settled.append(cost))
    list(decode(runtime, fresh(runtime), GenerationConfig(max_tokens=20), governor, stats))
    assert len(settled) == (0 if fixed else stats.calls)
    assert [cost >= 0.25 for cost in settled[1:]] == [True] * len(settled[1:]), "no first token waits for a draft"
    assert stats.accepted > 5


def timed(monkeypatch: pytest.MonkeyPatch, fixed: int = 0) -> Governor:
    """A governor of a drafter that knows the text; each proposal takes a quarter of a second."""
    clock, drafter = [0.0], Noting(text_of())

    class Watch:
        def __init__(self) -> None:
            self.began = clock[0]

        def seconds(self, elsewhere: float = 0.0, forwards: float = 0.0) -> float:
            return clock[0] - self.began

    def propose(*asked: Any) -> Draft:
        clock[0] += 0.25
        return Noting.propose(drafter, *asked)

    monkeypatch.setattr(governor_module, "OwnTime", Watch)
    monkeypatch.setattr(drafter, "propose", propose)
    costs = Costs({1: 1.0, 8: 1.1, 64: 60.0})
    return Governor([("it", drafter)], lambda: costs, fixed, terms=NAMED)


class Deaf(Governor):
    """Does not account for the end of a text."""

    def end(self, context: Context) -> None:
        pass


@pytest.mark.parametrize(("seconds", "within"), [(small, 16), (tiny, 14)], ids=["135m", "nano"])
def test_short_texts_pay_back_what_was_lost(seconds: Any, within: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A balance of minus three calls, which texts of 64 tokens share, each about a half of a call; a look takes a
    seventh of one. The guesses are right in 7 of 10."""
    used = dict[type, list[int]]()
    for kind in (Deaf, Governor):
        simulation = simulated(seconds, monkeypatch)
        _, governors = simulation.sharing([64] * 40, 1, 0.7, kind, look=0.15 * seconds(1, 0), left=-3.0)
        used[kind] = [governor.members[0].proposed for governor in governors]
    assert used[Deaf] == [0] * 40
    assert any(used[Governor][:within])
    assert sum(n > 0 for n in used[Governor][within:]) > (40 - within) / 2


def simulated(seconds: Any, monkeypatch: pytest.MonkeyPatch) -> Simulation:
    python = Python() if seconds is not tiny else Python(*[x / 4 for x in (40e-6, 60e-6, 20e-6, 50e-6, 5e-6, 8e-6)])
    return measured(seconds, monkeypatch, python)


@pytest.mark.parametrize(("seconds", "n"), [(large, 1), (large, 4), (small, 1), (small, 4), (tiny, 1)])
@pytest.mark.parametrize("length", [12, 64])
def test_an_adversary_in_many_short_texts_costs_no_more_than_the_formula(
    seconds: Any, n: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All guesses are wrong. Looks are paid as well."""
    simulation, lengths = simulated(seconds, monkeypatch), [length] * (1200 // length)
    call = seconds(1, 0)
    off, _ = simulation.sharing(lengths, n, 0.0, None)
    governed, governors = simulation.sharing(lengths, n, 0.0, Governor, look=0.02 * call)
    assert sum(governor.members[0].asked for governor in governors) > 0
    largest = seconds(n, n * length)
    assert governed - off <= (AUTO.rate * off + (AUTO.most + 1.0) * largest) + 0.01 * off
    bank = governors[0].account.bank
    assert bank.lost - bank.saved <= (AUTO.rate * off + (AUTO.most + 1.0) * largest) + 0.01 * off
