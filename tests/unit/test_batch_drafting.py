"""Drafting in a batch: the forwards of many sequences' drafts run together, with whatever else the batch runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from drafting import host, left
from loops import decode

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Stats
from edgedec.decoding.runner import is_own
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters import Drafter, make_drafter
from edgedec.drafters.model import ModelDrafter
from edgedec.drafters.off import Off
from edgedec.runtime import Call, CallResult, Outputs, Rows
from edgedec.sampling import Sampling
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, tiny_spec

pytestmark = pytest.mark.usefixtures("ticking")

N, TOKENS = 8, 40
SPEC = tiny_spec(n_layers=6, context_length=512)
PROMPTS = [[i % 13, (3 * i + 1) % 13, 5] for i in range(N)]
SAMPLINGS = [Sampling(), Sampling(temperature=0.8)]


class Logged(FakeRuntime):
    """`batches`: the calls of each forward."""

    def __init__(self, seed: int = 0, spread: float = 60.0) -> None:
        super().__init__(SPEC, seed=seed, spread=spread)
        self.batches: list[list[Call]] = []

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        self.batches.append(list(calls))
        return super().forward(calls)


def context_of(runtime: FakeRuntime, i: int) -> Context:
    return Context(list(PROMPTS[i]), 3, runtime.new_cache(256), rng=np.random.default_rng(i))


def config_of(i: int) -> GenerationConfig:
    return GenerationConfig(SAMPLINGS[i % 2], max_tokens=TOKENS)


def together(runtime: FakeRuntime, make: Callable[[int], Drafter]) -> tuple[list[Context], list[Stats]]:
    """All texts in one batch."""
    batch, contexts, found = Batch(runtime), [context_of(runtime, i) for i in range(N)], [Stats() for _ in range(N)]
    for i, (context, stats) in enumerate(zip(contexts, found, strict=True)):
        loop = decode_loop(context, config_of(i), make(i), stats, capabilities=runtime.capabilities)
        batch.add(context, loop, lambda token: None, 100)
    batch.run()
    return contexts, found


def apart(runtime: FakeRuntime) -> list[Context]:
    """Each text alone, without drafts."""
    contexts = [context_of(runtime, i) for i in range(N)]
    for i, context in enumerate(contexts):
        assert len(list(decode(runtime, context, config_of(i), Off()))) == TOKENS
    return contexts


def governed(drafter: Drafter, fixed: int = 5) -> Governor:
    return Governor([("it", drafter)], lambda: Costs({1: 1.0, 32: 2.0}), fixed)


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "governed"])
def test_the_draft_forwards_of_all_sequences_are_one(wrapped: bool) -> None:
    draft = Logged()
    drafters: list[Drafter] = [ModelDrafter(draft, 13, gamma=4) for _ in range(N)]
    contexts, found = together(Logged(), lambda i: governed(drafters[i]) if wrapped else drafters[i])
    assert list(map(left, contexts)) == list(map(left, apart(Logged())))
    assert all(stats.accepted > TOKENS / 2 for stats in found)
    assert max(draft.forwards) == N
    # Some drafts of sampled texts are wrong, so that these fall back a little.
    assert sum(draft.forwards) / len(draft.forwards) > 0.8 * N


def test_a_long_text_read_by_the_draft_model_does_not_stop_the_others() -> None:
    runtime, draft = Logged(), FakeRuntime(SPEC, spread=60.0, prefill_chunk=16)
    tokens: list[tuple[int, int]] = []
    batch = Batch(runtime)
    for i in range(2):
        ids = [j * j % 13 for j in range(200)] if i else PROMPTS[0]
        context = Context(list(ids), len(ids), runtime.new_cache(400))
        drafter = ModelDrafter(draft, 13, gamma=4) if i else Off()
        loop = decode_loop(context, GenerationConfig(max_tokens=20), drafter, capabilities=runtime.capabilities)
        batch.add(context, loop, lambda token, i=i: tokens.append((i, len(runtime.forwards))), 300)  # type: ignore[misc]
    batch.run()
    first = next(at for i, at in tokens if i == 1)
    # Thirteen chunks, each beside a step of the other sequence.
    assert draft.calls > 13
    assert sum(i == 0 and at < first for i, at in tokens) >= 13


def test_resumed_calls_run_beside_whole_ones() -> None:
    """Half of the sequences leave early, one skips, the others decode plainly. While drafts are made the others wait,
    and every step is one forward of all."""
    runtime = Logged()

    def make(i: int) -> Drafter:
        if i == 0:
            return make_drafter("skip", host(runtime), {"skip": "0.2", "search": "off"})
        return make_drafter("exit", host(runtime), {"layer": "2", "threshold": "0"}) if i % 2 else Off()

    contexts, found = together(runtime, make)
    assert list(map(left, contexts)) == list(map(left, apart(Logged())))
    assert all(found[i].proposed > 0 for i in range(1, N, 2))
    resumed = range(4, 12)
    drafting = [batch for batch in runtime.batches if any(call.blocks == range(4) for call in batch)]
    steps = [batch for batch in runtime.batches if len(batch) == N]
    assert len(drafting) > 5
    assert all(call.blocks is not None for batch in drafting for call in batch), "a step runs beside a draft"
    mixed = [
        batch
        for batch in steps
        if any(call.blocks == resumed and call.hidden is not None for call in batch)
        and any(call.blocks is None for call in batch)
    ]
    assert len(mixed) > 5
    # Until the first text ends, no step is of fewer sequences.
    whole = [batch for batch in runtime.batches if any(call.blocks is None for call in batch)]
    assert all(len(batch) == N for batch in whole[: len(steps)])


def test_exits_of_all_sequences_are_one_forward() -> None:
    runtime = Logged()
    drafters = [make_drafter("exit", host(runtime), {"layer": "2", "threshold": "0"}) for _ in range(N)]
    contexts, found = together(runtime, lambda i: governed(drafters[i]))
    assert list(map(left, contexts)) == list(map(left, apart(Logged())))
    assert all(stats.proposed > 0 for stats in found)
    drafting = [batch for batch in runtime.batches if any(call.blocks == range(4) for call in batch)]
    assert max(map(len, drafting)) == N


def test_a_sequence_that_is_cancelled_while_it_drafts_leaves_its_cache_whole() -> None:
    runtime = Logged()
    batch, contexts = Batch(runtime), [context_of(runtime, i) for i in range(2)]
    drafters = [make_drafter("exit", host(runtime), {"layer": "2", "threshold": "0"}) for _ in range(2)]
    jobs = []
    for context, drafter in zip(contexts, drafters, strict=True):
        loop = decode_loop(context, GenerationConfig(max_tokens=TOKENS), drafter, capabilities=runtime.capabilities)
        jobs.append(batch.add(context, loop, lambda token: None, 100))
    for _ in range(9):
        batch.step()
    assert runtime.batches[-1][0].blocks == range(4)  # in the middle of a draft
    batch.cancel(jobs[0])
    batch.run()
    cut = contexts[0]
    whole = context_of(runtime, 0)
    list(decode(runtime, whole, GenerationConfig(max_tokens=len(cut.ids) - 3), Off()))
    assert 3 < len(cut.ids) < 3 + TOKENS
    assert cut.ids == whole.ids
    assert len(contexts[1].ids) == 3 + TOKENS
    list(decode(runtime, cut, GenerationConfig(max_tokens=5), Off()))
    list(decode(runtime, whole, GenerationConfig(max_tokens=5), Off()))
    assert left(cut) == left(whole)


def test_which_calls_are_a_text_s_own_steps() -> None:
    """The whole stack with its head, or verification that resumes after the first blocks; no part of a draft."""
    runtime = FakeRuntime(tiny_spec())
    cache, n = runtime.new_cache(8), runtime.spec.n_blocks
    rows, states = Rows.chain([1], 0), np.zeros((1, runtime.spec.hidden_size), np.float32)
    assert n > 2
    assert is_own(Call(rows, cache, outputs=Outputs(top=1)))
    assert not is_own(Call(rows, cache)), "a chunk of a prompt"
    assert is_own(Call(rows, cache, range(1, n), states))
    assert not is_own(Call(rows, cache, range(1, n - 1), states)), "a part of a draft"
    assert not is_own(Call(rows, cache, range(0, n))), "of an exit that reads all blocks"
    assert not is_own(Call(rows, cache, (), states)), "the head alone"


def test_drafts_of_texts_that_wait_for_each_other_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pause the drafts of a call take their shares of it; a text alone has what pays."""
    monkeypatch.setattr(Costs, "add", lambda *_: False)
    texts, longest = apart(Logged()), list[int]()
    for pause, n in ((0.0, N), (0.001, N), (0.001, 1)):
        runtime = Logged()
        batch, contexts = Batch(runtime, pause=pause), [context_of(runtime, i) for i in range(n)]
        for i, context in enumerate(contexts):
            costs = Costs({1: 0.010, 8: 0.011, 128: 0.041})
            drafter = Governor([("it", PerfectDrafter(texts[i].ids))], lambda costs=costs: costs)
            loop = decode_loop(context, config_of(i), drafter, Stats(), capabilities=runtime.capabilities)
            batch.add(context, loop, lambda token: None, 100)
        batch.run()
        assert [context.ids for context in contexts] == [text.ids for text in texts[:n]]
        longest.append(max(len(call.rows) for calls in runtime.batches for call in calls if len(calls) == n))
    assert longest[0] > 10
    assert 2 <= longest[1] <= 7, "a text's eighth of 12 ms is six rows"
    assert longest[2] > 10
