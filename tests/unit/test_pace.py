"""Long prompts are read in parts that keep other texts waiting no longer than they may; on a clock of known costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from loops import decode

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Token
from edgedec.decoding.scheduler import batch as scheduler
from edgedec.decoding.scheduler.batch import Batch, Job
from edgedec.decoding.scheduler.pace import PromptRowCosts
from edgedec.drafters.off import Off
from edgedec.runtime import Call, CallResult
from edgedec.testing.fakes import FakeRuntime, tiny_spec

SPEC = tiny_spec(n_layers=1, context_length=4096)
PAUSE = 0.05
LONG = 600


class Timed(FakeRuntime):
    """A call takes `call` seconds and `row` for each of its rows, a thousandth of that for each cached token before it;
    `sizes`: rows of each call, by text."""

    def __init__(self, call: float = 0.02, row: float = 0.002, chunk: int = 256) -> None:
        super().__init__(SPEC, prefill_chunk=chunk, masks=False)
        self.call, self.row, self.now = call, row, 0.0
        self.sizes: list[list[int]] = []

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        self.sizes.append([len(call.rows) for call in calls])
        read = sum(len(call.rows) * (1 + call.cache.length / 1000) for call in calls)
        self.now += self.call + self.row * read
        return super().forward(calls)


class Text:
    """A text in a batch, and when its tokens came."""

    def __init__(self, batch: Batch, runtime: Timed, n: int, tokens: int, owner: tuple[str, ...] = ()) -> None:
        self.runtime, self.at, self.tokens = runtime, list[float](), list[int]()
        self.context = context(n, runtime)
        config = GenerationConfig(max_tokens=tokens)
        loop = decode_loop(self.context, config, Off(), None, None, frozenset(), runtime.capabilities)
        self.job: Job = batch.add(self.context, loop, self._take, n + tokens)
        self.job.owner = owner

    def _take(self, token: Token | None) -> None:
        if token is not None:
            self.at.append(self.runtime.now)
            self.tokens.append(int(token))

    @property
    def gap(self) -> float:
        """The longest time between two tokens."""
        return max(after - before for before, after in pairwise(self.at))


def context(n: int, runtime: FakeRuntime) -> Context:
    ids = np.random.default_rng(n).integers(0, SPEC.vocab_size, n).tolist()
    return Context(ids, n, runtime.new_cache(SPEC.context_length))


@cache
def alone(n: int, tokens: int) -> list[int]:
    runtime = FakeRuntime(SPEC)
    return [int(token) for token in decode(runtime, context(n, runtime), GenerationConfig(max_tokens=tokens), Off())]


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A batch on a runtime's clock."""

    def make(runtime: Timed, pause: float = PAUSE, **options: Any) -> Batch:
        monkeypatch.setattr(scheduler, "perf_counter", lambda: runtime.now)
        return Batch(runtime, pause=pause, **options)

    return make


def steps(batch: Batch, n: int) -> None:
    for _ in range(n):
        batch.step()


@pytest.mark.parametrize("row", [0.0001, 0.001, 0.004])
@pytest.mark.parametrize("prompts", [1, 4])
def test_nobody_waits_longer_than_two_calls_and_the_pause(batched: Any, row: float, prompts: int) -> None:
    runtime = Timed(row=row)
    batch = batched(runtime)
    others = [Text(batch, runtime, 5, 300) for _ in range(3)]
    steps(batch, 20)
    usual = max(text.gap for text in others)
    long = [Text(batch, runtime, LONG + i, 3) for i in range(prompts)]
    while not all(text.job.done for text in long):
        batch.step()
    assert not any(text.job.done for text in others)
    gaps = [after - before for text in others for before, after in pairwise(text.at[20:])]
    first = [after - before for text in others for before, after in pairwise(text.at[18:22])]
    # Of the first parts the costs are unknown; the last ones, up to 12 rows, are not delayed.
    assert max(first) <= 2 * usual + max(PAUSE, 32 * row)
    assert sorted(gaps)[-2 * len(others)] <= 2 * usual + max(PAUSE, 12 * row * prompts)
    if row > 0.0001:
        whole = Timed(row=row)
        unbounded = batched(whole, 0.0)
        waiting = Text(unbounded, whole, 5, 300)
        steps(unbounded, 20)
        Text(unbounded, whole, LONG, 3)
        unbounded.run()
        assert waiting.gap > 2 * usual + PAUSE, "without a limit it does wait"
    else:
        assert max(map(max, runtime.sizes)) > 240, "calls that are short enough are as large as may be"
    batch.run()
    for text in [*others, *long]:
        assert text.tokens == alone(text.context.n_prompt, len(text.tokens))


def test_a_prompt_alone_is_read_as_without_a_limit(batched: Any) -> None:
    sizes = []
    for pause in (PAUSE, 0.0):
        runtime = Timed(row=0.01)
        batch = batched(runtime, pause)
        Text(batch, runtime, LONG, 5)
        batch.run()
        sizes.append(runtime.sizes)
    assert sizes[0] == sizes[1]
    assert sizes[0][:3] == [[256], [256], [LONG - 512]]


def test_prompts_without_other_texts_share_whole_calls(batched: Any) -> None:
    runtime = Timed(row=0.001)
    batch = batched(runtime)
    texts = [Text(batch, runtime, LONG + i, 1) for i in range(8)]
    batch.run()
    rows = [sum(sizes) for sizes in runtime.sizes]
    assert max(rows) == 256
    assert len(rows) < 8 * LONG / 256 * 1.4
    assert all(text.tokens == alone(text.context.n_prompt, 1) for text in texts)


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("row", [0.0001, 0.004])
def test_every_call_has_the_texts_that_decode(batched: Any, row: float, owned: bool) -> None:
    runtime = Timed(row=row, chunk=120)
    batch = batched(runtime)
    others = [Text(batch, runtime, 5, 1000, (f"a{i}",) if owned else ()) for i in range(20)]
    steps(batch, 10)
    for i in range(4):
        Text(batch, runtime, LONG + i, 3, ("many",) if owned else ())
    before = [len(text.at) for text in others]
    steps(batch, 30)
    assert [len(text.at) for text in others] == [n + 30 for n in before], "two chunks more would not fit with them"


def test_parts_of_prompts_are_shared_between_owners(batched: Any) -> None:
    """Who has one prompt does not wait for eight of another."""
    runtime = Timed(row=0.004)
    batch = batched(runtime)
    Text(batch, runtime, 5, 4000, ("decodes",))
    steps(batch, 10)
    many = [Text(batch, runtime, LONG + i, 1, ("many",)) for i in range(8)]
    one = Text(batch, runtime, LONG, 1, ("one",))
    while not one.job.done:
        batch.step()
    assert sum(text.job.done for text in many) <= 1
    read = sum(text.context.cache.length for text in many)
    assert LONG / 2 < read < 2 * LONG


def test_prompts_go_on_where_their_rows_cost_much(batched: Any) -> None:
    """However slow a row is, a prompt is read, at least 8 rows a call."""
    runtime = Timed(call=0.001, row=1.0)
    batch = batched(runtime)
    Text(batch, runtime, 5, 1000)
    steps(batch, 10)
    long = Text(batch, runtime, 200, 2)
    steps(batch, 30)
    assert long.job.done
    assert sorted({max(sizes) for sizes in runtime.sizes[12:20]}) == [8]


def test_the_rows_follow_the_costs() -> None:
    pace = PromptRowCosts(0.05)
    assert pace.most == 32
    for _ in range(40):
        pace.note(0, 0.02)
        pace.note(pace.most, 0.02 + 0.001 * pace.most)
    assert pace.most == pytest.approx(56, abs=1)
    pace.note(pace.most, 9.0)  # another program had the core
    assert pace.most > 28
    for _ in range(40):
        pace.note(pace.most, 0.02 + 0.002 * pace.most)
    assert pace.most == pytest.approx(28, abs=1)


def test_rows_are_those_of_static_shapes() -> None:
    pace = PromptRowCosts(0.05, (1, 16, 64, 128))
    assert pace.most == 16
    pace.note(0, 0.02)
    for _ in range(30):
        pace.note(100, 0.02 + 0.0004 * 100)
    assert pace.most == 128
    small = PromptRowCosts(0.05, (64,))
    assert small.most == 64
