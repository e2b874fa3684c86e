"""Fusion of two distributions: each rule against one without a cache, drafts, forks, and batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fusing import INF, OTHER, PROMPT, Floats, Marked, companion, law, logp, naive, run

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.logits import BaseProcessor, LogitsProcessor
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Stats, Together, Token
from edgedec.decoding.runner import run_loop, run_requests
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters.off import Off
from edgedec.errors import ContextFull, UsageError
from edgedec.fusion._companion import Companion, paths_of
from edgedec.fusion._source import Source
from edgedec.fusion.cfg import Guidance
from edgedec.fusion.contrast import Contrast
from edgedec.fusion.late import Late
from edgedec.runtime import Call, Outputs, Rows
from edgedec.sampling import Sampling, distribution
from edgedec.testing.fakes import FakeRuntime, Limited, PerfectDrafter, RandomDrafter, tiny_spec

WARM = Sampling(temperature=0.9, top_k=9)
SECOND = FakeRuntime(seed=5)
Second = tuple[Callable[[FakeRuntime], Source], Callable[[FakeRuntime, list[int]], Floats]]
SECONDS: dict[str, Second] = {
    "prompt": (lambda on: Source(on, prompt=OTHER), lambda on, new: law(on, [*OTHER, *new])),
    "last token": (lambda on: Source(on, last=1), lambda on, new: law(on, [PROMPT[-1], *new])),
    "adapter": (
        lambda on: Source(on, adapter=Marked(), follows_adapter=False),
        lambda on, new: law(on, [*PROMPT, *new], Marked()),
    ),
    "bundle": (
        lambda on: Source(SECOND, own=False, follows_adapter=False),
        lambda on, new: law(SECOND, [*PROMPT, *new]),
    ),
}
Rule = tuple[Callable[[Companion], LogitsProcessor], Callable[[Floats, Floats], Floats]]


def contrasted(own: Floats, other: Floats) -> Floats:
    p, found = np.exp(logp(own)), 1.5 * logp(own) - 0.5 * logp(other)
    return np.where(p >= 0.1 * p.max(), found, -INF)


def late(own: Floats, other: Floats) -> Floats:
    p, q = np.exp(logp(own, 3)), np.exp(logp(other, 0.4))
    h = -(p * np.log(p)).sum()
    return np.log(p + (1 / (1 + np.exp(-h)) - 0.5) * q)


RULES: dict[str, Rule] = {
    "cfg": (lambda c: Guidance(c, 2.0), lambda own, other: logp(other) + 2 * (logp(own) - logp(other))),
    "contrast": (lambda c: Contrast(c, 0.5, 0.1, 1.0), contrasted),
    "late": (lambda c: Late(c, 3, 0.4, 1.0), late),
}


def drafters(right: Sequence[int]) -> list[Any]:
    whole = [*PROMPT, *right]
    return [PerfectDrafter(whole), PerfectDrafter(whole, decoys=2), RandomDrafter(1), RandomDrafter(2)]


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "drawn"])
@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_the_one_without_a_cache(rule: str, second: str, sampling: Sampling) -> None:
    on = FakeRuntime()
    (source, other), (make, fused) = SECONDS[second], RULES[rule]

    def after(new: list[int]) -> Any:
        scores = fused(law(on, [*PROMPT, *new]), other(on, new)).astype(np.float32)
        return distribution(scores, sampling)

    wanted = naive(after, sampling.temperature == 0)
    assert run(on, [make(companion(source(on)))], sampling=sampling) == wanted
    assert wanted != run(on, (), sampling=sampling)
    assert len(set(wanted)) > 3
    for drafter in drafters(wanted):
        stats = Stats()
        assert run(on, [make(companion(source(on)))], drafter, sampling, stats=stats) == wanted
        assert stats.proposed
        assert isinstance(drafter, RandomDrafter) or stats.accepted > 10


@pytest.mark.parametrize(
    "idle", [lambda c: Guidance(c, 1.0), lambda c: Contrast(c, 0.0, 0.0, 1.0), lambda c: Late(c, 1.0, 1.0, 0.0)]
)
def test_a_neutral_setting_is_plain_decoding_and_runs_nothing_besides(idle: Any) -> None:
    plain, with_it = FakeRuntime(), FakeRuntime()
    for sampling in (Sampling(), WARM):
        found = run(with_it, [idle(companion(Source(with_it, prompt=OTHER)))], sampling=sampling)
        assert found == run(plain, (), sampling=sampling)
    assert with_it.rows == plain.rows
    row = law(plain, PROMPT)
    assert idle(companion(Source(plain, prompt=OTHER))).process(row, (), {}) is row


def test_the_worked_examples() -> None:
    class Second(Companion):
        row: Any = None

        def logits(self, path: Sequence[int]) -> Any:
            return self.row

    def fused(make: Any, own: Sequence[float], other: Sequence[float]) -> Floats:
        one = Second(Source(FakeRuntime()), "")
        one.row = np.log(np.array(other)).astype(np.float32)
        found: Floats = make(one).process(np.log(np.array(own)).astype(np.float32), (), {})
        return found

    assert np.exp(fused(lambda c: Guidance(c, 2), [0.5, 0.5], [0.8, 0.2])) == pytest.approx([0.25 / 0.8, 0.25 / 0.2])
    found = fused(lambda c: Contrast(c, 1, 0.2, 1.0), [0.5, 0.45, 0.05], [0.8, 0.1, 0.1])
    assert np.exp(found) == pytest.approx([0.25 / 0.8, 0.2025 / 0.1, 0])
    with np.errstate(divide="ignore"):
        late = fused(lambda c: Late(c, 1.0, 1.0, 1.0), [0.5, 0.5], [0, 1])
    assert np.exp(late) == pytest.approx([0.5, 0.5 + 1 / 6])


def test_a_sure_model_is_left_alone_by_the_second_one() -> None:
    """UADF: where the entropy is 0 only the first counts."""
    sure, other = np.array([80.0, 0, 0], np.float32), np.array([0.0, 50, 0], np.float32)

    class Second(Companion):
        def logits(self, path: Sequence[int]) -> Any:
            return other

    found = Late(Second(Source(FakeRuntime()), ""), 1.0, 1.0, 100).process(sure, (), {})
    assert found.argmax() == 0
    unsure = Late(Second(Source(FakeRuntime()), ""), 10, 1.0, 100).process(sure / np.float32(8), (), {})
    assert unsure.argmax() == 1


def test_both_run_in_one_forward() -> None:
    on = FakeRuntime()
    stats = Stats()
    run(on, [Guidance(companion(Source(on, prompt=OTHER)), 2)], stats=stats, n=10)
    assert on.forwards == [2] * 10
    second = FakeRuntime(seed=5)
    on.forwards.clear()
    run(on, [Guidance(companion(Source(second, own=False)), 2)], n=10)
    assert (on.forwards, second.forwards) == ([1] * 10, [1] * 10)


def test_a_long_prompt_is_read_in_chunks() -> None:
    on, prompt = FakeRuntime(prefill_chunk=4), tuple(i % 13 for i in range(23))
    made = Guidance(companion(Source(on, prompt=prompt)), 2)
    wanted = run(FakeRuntime(), [Guidance(companion(Source(FakeRuntime(), prompt=prompt)), 2)])
    assert run(on, [made]) == wanted


def test_two_companions_of_one_text() -> None:
    on = FakeRuntime()

    def both() -> list[Any]:
        return [
            Guidance(companion(Source(on, prompt=OTHER)), 2),
            Contrast(companion(Source(SECOND, own=False)), 0.5, 0, 1.0),
        ]

    def after(new: list[int]) -> Any:
        own = logp(law(on, [*PROMPT, *new]))
        guided = (logp(law(on, [*OTHER, *new])) * -1 + 2 * own).astype(np.float32)
        scores = 1.5 * logp(guided) - 0.5 * logp(law(SECOND, [*PROMPT, *new]))
        return distribution(scores.astype(np.float32), WARM)

    wanted = naive(after, greedy=False)
    assert run(on, both(), sampling=WARM) == wanted
    assert run(on, both(), PerfectDrafter([*PROMPT, *wanted], decoys=1), WARM) == wanted


def test_forks_go_on_alone() -> None:
    """At every token of a text, with drafts in progress, a fork continues as the text itself does."""
    on = FakeRuntime()
    own = Guidance(companion(Source(on, prompt=OTHER)), 2)
    wanted = run(on, [own.fork()], n=20)
    context = Context(list(PROMPT), len(PROMPT), on.new_cache(128))
    config = GenerationConfig(processors=(own,), max_tokens=20)
    drafter = PerfectDrafter([*PROMPT, *wanted], decoys=1)
    for n, token in enumerate(run_loop(on, decode_loop(context, config, drafter), None), 1):
        assert token == wanted[n - 1]
        twin, rows = context.fork(), on.rows
        rest = GenerationConfig(processors=(own.fork(),), max_tokens=20 - n)
        assert [int(t) for t in run_loop(on, decode_loop(twin, rest, Off()))] == wanted[n:]
        # Nothing is read again: the fork's caches end where the text's own do.
        assert on.rows - rows <= 2 * (20 - n)


def test_a_text_that_slides_takes_its_companion_along() -> None:
    on = FakeRuntime(tiny_spec(context_length=32))
    texts = []
    for drafter in (Off(), RandomDrafter(3)):
        context = Context(list(PROMPT), len(PROMPT), on.new_cache(32), sinks=2)
        made = GenerationConfig(processors=(Guidance(companion(Source(on, prompt=(2, 7))), 2),), max_tokens=80)
        texts.append([int(token) for token in run_loop(on, decode_loop(context, made, drafter))])
        assert len(context.ids) <= 33
    assert texts[0] == texts[1]
    assert len(texts[0]) == 80


def test_a_companion_without_room_says_so_and_drafts_fit() -> None:
    on = FakeRuntime(tiny_spec(context_length=32))
    with pytest.raises(ContextFull, match=r"fuse test: 33 tokens do not fit its context of 32"):
        run(on, [Guidance(companion(Source(FakeRuntime(tiny_spec(context_length=32)), own=False)), 2)], n=60)
    room = companion(Source(on, prompt=(1,) * 20))
    context = Context([1] * 20, 5, on.new_cache(32))
    assert room.room(context) == 0, "35 tokens of 32"
    right = run(on, [Guidance(companion(Source(on, prompt=(1,) * 20)), 2)], n=12)
    drafter = PerfectDrafter([*PROMPT, *right, 1, 1, 1, 1, 1])
    assert run(on, [Guidance(companion(Source(on, prompt=(1,) * 20)), 2)], drafter, n=12) == right


def test_another_text_with_the_same_object() -> None:
    on = FakeRuntime()
    own = Guidance(companion(Source(on, prompt=OTHER)), 2)
    first = run(on, [own])
    own.reset()
    assert run(on, [own], prompt=[9, 9, 2]) == run(on, [own.fork()], prompt=[9, 9, 2]) != first
    own.reset()
    rows = on.rows
    assert run(on, [own], n=3) == first[:3]
    assert on.rows - rows == len(PROMPT) + 2 + 3  # of the second text only the last token of its prompt runs again


def test_alone_as_in_a_batch() -> None:
    on = FakeRuntime()
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6], [5, 3], [5, 8, 9, 7, 9]]

    def made(i: int) -> list[Any]:
        return [] if i == 1 else [Guidance(companion(Source(on, prompt=OTHER[i:])), 1.5 + i)]

    wanted = [run(on, made(i), prompt=prompt, sampling=WARM) for i, prompt in enumerate(prompts)]
    batch, found = Batch(on), [list[int]() for _ in prompts]
    for i, prompt in enumerate(prompts):
        context = Context(list(prompt), len(prompt), on.new_cache(64), rng=np.random.default_rng(7))
        config = GenerationConfig(WARM, processors=tuple(made(i)), max_tokens=24)
        loop = decode_loop(context, config, RandomDrafter(i), capabilities=on.capabilities)

        def take(token: Token | None, i: int = i) -> None:
            if token is not None:
                found[i].append(int(token))

        batch.add(context, loop, take, 64)
    on.forwards.clear()
    batch.run()
    assert found == wanted
    assert max(on.forwards) == 7  # three texts with a companion each, and one without


def logits_of(step: Any) -> Any:
    return step.logits


class Asking(BaseProcessor):
    """Asks for a call at each step, and for another one once the step's logits are known."""

    def __init__(self, on: FakeRuntime, fail_at: int = -1) -> None:
        self.on, self.seen, self.fail_at, self.closed = on, list[tuple[int, int]](), fail_at, 0

    def process(self, logits: Any, path: Any, early: Any) -> Any:
        return logits

    def gather(self, step: Any) -> Any:
        assert step.logits is None
        try:
            answers = yield [self._call(2), self._call(1)]
            assert [len(done.result.logits) for done in answers] == [2, 1]
            assert len(logits_of(step)) == len(step.rows) - step.root
            assert np.array_equal(logits_of(step)[0], law(FakeRuntime(), step.context.ids))
            (done,) = yield [self._call(3)]
            self.seen.append((len(step.rows), len(done.result.logits)))
        finally:
            self.closed += 1

    def _call(self, n: int) -> Any:
        return Call(Rows.chain([1] * n, 0), self.on.new_cache(8), outputs=Outputs(logits=True))

    def room(self, context: Context) -> int:
        return 2

    def held(self, tokens: int) -> int:
        return 0


def test_calls_after_the_steps_own() -> None:
    on = FakeRuntime()
    asking, other = Asking(on), Guidance(companion(Source(on, prompt=OTHER)), 2)
    wanted = run(on, [Guidance(companion(Source(on, prompt=OTHER)), 2)], n=6)
    on.forwards.clear()
    drafter = PerfectDrafter([*PROMPT, *wanted])
    assert run(on, [asking, other], drafter, n=6) == wanted
    assert on.forwards == [4, 1] * len(asking.seen)
    assert [rows for rows, _ in asking.seen] == [7, 3]  # the prompt, then a token; each with two drafts at most
    assert asking.closed == 2


def test_a_call_that_fails_leaves_the_text_as_it_was() -> None:
    on = FakeRuntime()
    own = Guidance(companion(Source(on, prompt=OTHER)), 2)
    context = Context(list(PROMPT), len(PROMPT), on.new_cache(128))
    wanted = run(on, [own.fork()], n=8)
    drafter = Limited(PerfectDrafter([*PROMPT, *wanted]), 2)
    loop = decode_loop(context, GenerationConfig(processors=(own,), max_tokens=8), drafter)
    item, found = next(loop), list[int]()
    while isinstance(item, Token) or not found:
        if isinstance(item, Token):
            found.append(int(item))
            item = next(loop)
        else:
            assert isinstance(item, Together)
            item = loop.send(run_requests(on, item.requests))
    assert isinstance(item, Together)
    with pytest.raises(MemoryError):
        loop.throw(MemoryError("no room"))
    assert 1 <= len(found) < 8
    assert context.ids == [*PROMPT, *found]
    assert context.cache.length <= len(context.ids)
    rest = GenerationConfig(processors=(own,), max_tokens=8 - len(found))
    assert found + [int(t) for t in run_loop(on, decode_loop(context, rest, Off()))] == wanted


def test_logits_of_a_path_that_was_not_read_are_refused() -> None:
    with pytest.raises(UsageError, match="fuse test: the second text has not read"):
        companion(Source(FakeRuntime())).logits([1])


def test_the_first_of_twins_has_the_path() -> None:
    assert paths_of([8, 8, 5, 5], [-1, -1, 0, 1]) == {(): 0, (8,): 1, (8, 5): 3}


def test_what_a_companion_holds() -> None:
    on = FakeRuntime()
    assert companion(Source(on, prompt=OTHER)).held(10) == 14
    assert companion(Source(on)).held(10) == 10
    assert companion(Source(on, own=False)).held(10) == 0
    assert Guidance(companion(Source(on)), 1).held(10) == 0
    assert Guidance(companion(Source(on)), 2).held(10) == 10
