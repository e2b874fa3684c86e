"""Other loops of the same phases: forks of one text that yield their calls together, and blocks of rows that see each
other, whose tokens a schedule chooses. `run_loop` and `Batch` run them alike."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loops import decode

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import TextGeneration, decode_loop
from edgedec.decoding.messages import ForkLoop, Together, Token
from edgedec.decoding.runner import run_loop
from edgedec.decoding.scheduler.batch import Batch
from edgedec.decoding.step import PlannedCall
from edgedec.drafters import Draft, Drafter
from edgedec.drafters.off import Off
from edgedec.errors import ContextFull
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, logits_of
from edgedec.sampling import Sampling
from edgedec.testing.fakes import FakeRuntime, Limited, PerfectDrafter, RandomDrafter, random_reference

PROMPT, VOCAB = [3, 1, 4, 1, 5], 13
MakeLoop = Callable[[Runtime, Context], ForkLoop]
RUNTIMES: dict[str, Callable[[], Any]] = {"hashes": FakeRuntime, "reference": random_reference}


def fresh(runtime: Runtime) -> Context:
    return Context(list(PROMPT), len(PROMPT), runtime.new_cache(64), rng=np.random.default_rng(7))


def together(phases: Sequence[Generator[Any, Any, Any]]) -> Generator[Together, Any, list[Any]]:
    """What one phase of several forks returns, their calls run in one forward."""
    returned: list[Any] = [None] * len(phases)
    answers: dict[int, Any] = dict.fromkeys(range(len(phases)))
    while answers:
        calls: dict[int, Call] = {}
        for i, answer in answers.items():
            try:
                calls[i] = phases[i].send(answer)
            except StopIteration as end:
                returned[i] = end.value
        answers = dict(zip(calls, (yield Together(list(calls.values()))), strict=True)) if calls else {}
    return returned


def alone(runtime: Runtime, loop: ForkLoop) -> list[Token]:
    return list(run_loop(runtime, loop))


def batched(runtime: Runtime, loop: ForkLoop) -> list[Token]:
    """The same in a batch, beside another text, which stays what it is alone."""
    batch, other, config = Batch(runtime), fresh(runtime), GenerationConfig(max_tokens=17)
    found, beside = list[Token | None](), list[Token | None]()
    job = batch.add(Context([0], 1, runtime.new_cache(64)), loop, found.append, need=256)
    batch.add(other, decode_loop(other, config, Off()), beside.append, need=64)
    batch.run()
    assert job.error is None
    assert found.pop() is None
    assert beside == [*decode(runtime, fresh(runtime), config, Off()), None]
    return [token for token in found if token is not None]


RUNNERS = pytest.mark.parametrize("run", [alone, batched])
ON = pytest.mark.parametrize("runtime", list(RUNTIMES))


# ── best of two ──


class Told:
    """A fork's generation, and the tokens that it delivered."""

    def __init__(self, runtime: Runtime, context: Context, config: GenerationConfig, drafter: Drafter) -> None:
        self.tokens = list[Token]()
        self.text = TextGeneration(context, config, drafter, capabilities=runtime.capabilities)

    @property
    def score(self) -> float:
        return sum(token.logprob or 0.0 for token in self.tokens)


def best_of(forks: Sequence[Told]) -> ForkLoop:
    """Generate all forks, call by call together; yields the tokens of the likeliest."""
    with ExitStack() as attached:
        for fork in forks:
            attached.enter_context(fork.text.attached())
        while alive := [fork for fork in forks if not fork.text.ended()]:
            texts = [fork.text for fork in alive]
            rows = yield from together([text.read() for text in texts])
            drafts = yield from together([text.draft(r) for text, r in zip(texts, rows, strict=True)])
            seen = yield from together([text.verify(*x) for text, *x in zip(texts, rows, drafts, strict=True)])
            for fork, draft, result in zip(alive, drafts, seen, strict=True):
                fork.text.learn(draft, result)
                fork.tokens += fork.text.deliver(draft, result)
        yield from max(forks, key=lambda fork: fork.score).tokens


def sampled(seed: int, n: int, temperature: float) -> GenerationConfig:
    return GenerationConfig(Sampling(temperature=temperature, seed=seed), max_tokens=n, logprobs=1)


def state(context: Context) -> tuple[Any, ...]:
    return context.ids, context.cache.length, context.rng.bit_generator.state


@ON
@RUNNERS
@pytest.mark.parametrize("drafting", [False, True], ids=["plain", "drafting"])
def test_two_forks_share_forwards_and_are_what_each_is_alone(run: Any, runtime: str, drafting: bool) -> None:
    engine = RUNTIMES[runtime]()
    configs = [sampled(1, 14, 0.0), sampled(2, 11, 1.3)]
    contexts, single = [fresh(engine)], [fresh(engine)]
    for some in (contexts, single):
        some.append(some[0].fork())
        some[1].rng = np.random.default_rng(2)
    plain = [list(decode(engine, context, c, Off())) for context, c in zip(single, configs, strict=True)]

    def drafter(i: int) -> Drafter:
        known = [*PROMPT, *plain[i]]
        return Limited(PerfectDrafter(known[:-4], i) if i else RandomDrafter(3), 4) if drafting else Off()

    forks = [Told(engine, contexts[i], configs[i], drafter(i)) for i in range(2)]
    found = run(engine, best_of(forks))
    assert [fork.tokens for fork in forks] == plain
    assert plain[0] != plain[1]
    assert found == max(plain, key=lambda tokens: sum(token.logprob for token in tokens))
    assert [state(context) for context in contexts] == [state(context) for context in single]
    calls = [fork.text.stats.calls for fork in forks]
    assert calls[0] != calls[1], "one fork goes on alone at the end"
    assert drafting == (forks[1].text.stats.accepted > 0)
    if runtime == "hashes" and run is alone:
        assert engine.forwards[-max(calls) :] == [2] * min(calls) + [1] * (max(calls) - min(calls))
    elif runtime == "hashes":
        assert 3 in engine.forwards, "both forks and the other text"


def test_what_runs_together_is_counted_as_one_forward() -> None:
    runtime = FakeRuntime()
    forks = [Told(runtime, fresh(runtime), sampled(i, 9, 0.0), Off()) for i in range(2)]
    context = fresh(runtime)
    assert len(list(run_loop(runtime, best_of(forks), context.gaps))) == 9
    assert (context.gaps.forwards, context.gaps.tokens) == (9, 9)
    assert context.gaps.total > 0
    assert all(fork.text.stats.forward_s > 0 for fork in forks)


def test_a_closed_fork_loop_closes_its_forks() -> None:
    runtime, config = FakeRuntime(), replace(sampled(1, 9, 0.0), max_tokens=3)
    forks = [Told(runtime, fresh(runtime), config, Off()) for _ in range(2)]
    tokens = run_loop(runtime, best_of(forks))
    next(tokens)
    tokens.close()
    assert all(fork.text.context.cache.length == len(fork.text.context.ids) - 1 for fork in forks)


@RUNNERS
def test_a_full_context_ends_the_fork_loop(run: Any) -> None:
    runtime = FakeRuntime()
    small = Context(list(PROMPT), len(PROMPT), runtime.new_cache(7))
    forks = [Told(runtime, context, sampled(1, 9, 0.0), Off()) for context in (fresh(runtime), small)]
    loop = best_of(forks)
    if run is alone:
        with pytest.raises(ContextFull):
            run(runtime, loop)
    else:
        batch = Batch(runtime)
        job = batch.add(Context([0], 1, runtime.new_cache(8)), loop, lambda token: None, need=64)
        batch.run()
        assert isinstance(job.error, ContextFull)
    assert all(fork.text.context.cache.length <= len(fork.text.context.ids) for fork in forks)


# ── a beam ──

WIDTH, LENGTH = 2, 9


def logprobs(row: Any) -> Any:
    row = row.astype(np.float64)
    return row - np.log(np.exp(row - row.max()).sum()) - row.max()


def beam(runtime: Runtime, context: Context) -> ForkLoop:
    """The likeliest text of `LENGTH` tokens that a beam of two finds: `read` and the step's calls, own choice."""
    beams = [(0.0, context)]
    for _ in range(LENGTH):
        texts = [
            TextGeneration(fork, GenerationConfig(), Off(), capabilities=runtime.capabilities) for _, fork in beams
        ]
        rows = yield from together([text.read() for text in texts])
        planned = [text.step.call(r, Draft(), ALL_LOGITS, 0) for text, r in zip(texts, rows, strict=True)]
        answers = yield from together([text.step.forward(p) for text, p in zip(texts, planned, strict=True)])
        found = list[tuple[float, int, int]]()
        for i, (plan, done) in enumerate(zip(planned, answers, strict=True)):
            beams[i][1].cache.commit(range(plan.root + 1))
            scores = logprobs(plan.shown(done).result.logits[-1])
            found += [(beams[i][0] + scores[t], i, int(t)) for t in np.argsort(-scores)[:WIDTH]]
        best = sorted(found, key=lambda one: -one[0])[:WIDTH]
        beams = [(score, beams[i][1].fork()) for score, i, _ in best]
        for (_, fork), (_, _, token) in zip(beams, best, strict=True):
            fork.ids.append(token)
    yield from map(Token, beams[0][1].ids[len(PROMPT) :])


def searched_whole(runtime: Runtime) -> list[int]:
    """The same search, every text read from its beginning."""
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(LENGTH):
        found = []
        for score, text in alive:
            scores = logprobs(logits_of(runtime, Rows.chain(PROMPT + text, 0), runtime.new_cache(64))[-1])
            found += [(score + scores[t], [*text, int(t)]) for t in np.argsort(-scores)[:WIDTH]]
        alive = sorted(found, key=lambda one: -one[0])[:WIDTH]
    return alive[0][1]


@ON
@RUNNERS
def test_a_beam_is_the_search_without_caches(run: Any, runtime: str) -> None:
    engine = RUNTIMES[runtime]()
    assert run(engine, beam(engine, fresh(engine))) == searched_whole(engine)
    greedy = list(decode(engine, fresh(engine), GenerationConfig(max_tokens=LENGTH), Off()))
    assert searched_whole(engine) != greedy, "the beam never left the greedy text: it shows nothing"


# ── blocks of rows in groups ──

SIZE, MASK, EACH = 4, 0, 2


def block_rows(first: Rows, block: Sequence[int]) -> Rows:
    """The pending rows, and a block below the last of them whose rows see each other."""
    tokens = [*first.tokens.tolist(), *block]
    chain = Rows.chain(tokens, int(first.positions[0]))
    return Rows(chain.tokens, chain.positions, chain.parents, groups=np.array([-1] * len(first) + [0] * len(block)))


def revealed(block: list[int], hidden: set[int], logits: Any) -> None:
    """One step of the schedule: the `EACH` hidden places of a block that are most certain get their likeliest token."""
    scores = {at: logprobs(logits[at]).max() for at in hidden}
    for at in sorted(hidden, key=lambda at: -scores[at])[:EACH]:
        block[at] = int(logits[at].argmax())
        hidden.remove(at)


def blocks(runtime: Runtime, context: Context, n: int) -> ForkLoop:
    """n tokens, `SIZE` at a time: all masked, and then revealed by the schedule. The last call of a block is of its
    final tokens, so that these are what is committed."""
    text = TextGeneration(context, GenerationConfig(max_tokens=n), Off(), capabilities=runtime.capabilities)
    with text.attached():
        while not text.ended():
            first = yield from text.read()
            root, block, hidden = len(first) - 1, [MASK] * SIZE, set(range(SIZE))
            while True:
                rows = block_rows(first, block)
                outputs = ALL_LOGITS._replace(logits_from=root)
                planned = PlannedCall(Call(rows, context.cache, outputs=outputs), rows, root, root)
                seen = planned.shown((yield from text.step.forward(planned)))
                if not hidden:
                    break
                assert seen.result.logits is not None
                revealed(block, hidden, seen.result.logits[1:])
            seen.path, seen.picked = range(SIZE), block
            context.cache.commit(range(root + 1))
            text.learn(Draft(), seen)
            yield from text.deliver(Draft(), seen)


def blocks_whole(runtime: Runtime, n: int) -> list[int]:
    """The same, everything read from its beginning in every call, each block a group."""
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + n:
        block, hidden = [MASK] * SIZE, set(range(SIZE))
        while hidden:
            chain = Rows.chain([*ids, *block], 0)
            groups = [max((at - len(PROMPT)) // SIZE, -1) for at in range(len(chain))]
            rows = Rows(chain.tokens, chain.positions, chain.parents, groups=np.array(groups))
            revealed(block, hidden, logits_of(runtime, rows, runtime.new_cache(64))[len(ids) :])
        ids += block
    return ids[len(PROMPT) :][:n]


@RUNNERS
@pytest.mark.parametrize("n", [12, 10])
def test_a_schedule_in_place_of_the_verifier(run: Any, n: int) -> None:
    runtime = random_reference()
    context = fresh(runtime)
    found = run(runtime, blocks(runtime, context, n))
    assert found == blocks_whole(runtime, n)
    assert context.ids == [*PROMPT, *found]
    assert found != list(decode(runtime, fresh(runtime), GenerationConfig(max_tokens=n), Off()))


def test_a_block_may_be_left_at_any_token() -> None:
    runtime = random_reference()
    whole = blocks_whole(runtime, 8)
    for taken in range(1, 8):
        context = fresh(runtime)
        tokens: Iterator[Token] = run_loop(runtime, blocks(runtime, context, 8))
        assert [next(tokens) for _ in range(taken)] == whole[:taken]
        assert context.cache.length == len(context.ids) - 1
        tokens.close()  # type: ignore[attr-defined]
        assert (context.ids, context.cache.length) == ([*PROMPT, *whole[:taken]], len(PROMPT) + taken - 1)
