"""The loop: whatever is drafted, constrained or interrupted, the text is that of plain decoding.

`FakeRuntime` hashes all that a row can see, so that a mistake in a mask, a position or the cache changes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import decode

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import Stats, StepResult, Token
from edgedec.drafters import Draft, Drafter
from edgedec.drafters.off import Off
from edgedec.errors import ContextFull, UsageError
from edgedec.runtime import Outputs, Rows, Runtime, capabilities, logits_of
from edgedec.sampling import Sampling, draw, logprob, probs
from edgedec.spec import KV_FORMATS
from edgedec.testing.fakes import (
    FakeRuntime,
    Limited,
    PerfectDrafter,
    RandomDrafter,
    SetConstraint,
    random_reference,
    tiny_spec,
)

VOCAB = 13
PROMPT = [3, 1, 4, 1, 5]
GREEDY = Sampling()
SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": Sampling(temperature=1.0),
    "penalties": Sampling(temperature=0.8, top_p=0.9, presence_penalty=1.0, repetition_penalty=1.2),
}
NODES = range(1, 9)


@dataclass
class Run:
    """A generation, and what it left behind."""

    tokens: list[Token]
    context: Context
    stats: Stats

    def state(self) -> tuple[Any, ...]:
        return state(self.context)


def state(context: Context) -> tuple[Any, ...]:
    """All that the next generation may depend on."""
    cache = context.cache
    saved = {name: (array.shape, array.tobytes()) for name, array in cache.save().items()}
    return tuple(context.ids), context.n_prompt, saved, str(context.rng.bit_generator.state)


def fresh(runtime: Runtime, capacity: int = 64, sinks: int | None = None, prompt: list[int] = PROMPT) -> Context:
    rng = np.random.default_rng(7)
    return Context(list(prompt), len(prompt), runtime.new_cache(capacity), sinks, rng)


def run(
    drafter: Drafter | None = None,
    runtime: Runtime | None = None,
    context: Context | None = None,
    nodes: int = 6,
    **options: Any,
) -> Run:
    """`nodes`: as many tokens may be drafted in a call."""
    runtime = runtime or FakeRuntime()
    context, stats = context or fresh(runtime), Stats()
    drafter = Limited(drafter or Off(), nodes)
    found = list(decode(runtime, context, GenerationConfig(**({"max_tokens": 12} | options)), drafter, stats))
    return Run(found, context, stats)


def knowing(plain: Run, decoys: int = 0) -> PerfectDrafter:
    """It drafts what the plain run said, and goes on with zeros where that ended."""
    return PerfectDrafter([*plain.context.ids, *[0] * 9], decoys)


def drafters(plain: Run) -> Iterator[Drafter]:
    yield from (knowing(plain, decoys) for decoys in (0, 1, 2))
    yield from (RandomDrafter(seed) for seed in range(3))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("nodes", NODES)
def test_drafting_changes_nothing(nodes: int, sampling: str, window: int | None) -> None:
    options: dict[str, Any] = {"sampling": SAMPLINGS[sampling], "nodes": nodes, "max_tokens": 12}
    plain = run(runtime=FakeRuntime(tiny_spec(window)), **options)
    assert len(plain.tokens) == plain.stats.calls == plain.stats.generated == 12
    for drafter in drafters(plain):
        drafted = run(drafter, FakeRuntime(tiny_spec(window)), **options)
        assert drafted.tokens == plain.tokens
        assert drafted.state() == plain.state()
        assert drafted.stats.finish == plain.stats.finish == "length"
    perfect = run(knowing(plain), FakeRuntime(tiny_spec(window)), **options)
    assert perfect.stats.calls == -(-12 // (nodes + 1))
    assert perfect.stats.accepted == perfect.stats.proposed == 12 - perfect.stats.calls


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_drafting_changes_nothing_in_any_cache_format(kv: str) -> None:
    plain = run(runtime=FakeRuntime(kv=kv))
    for drafter in drafters(plain):
        drafted = run(drafter, FakeRuntime(kv=kv))
        assert (drafted.tokens, drafted.state()) == (plain.tokens, plain.state())


@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_drafting_changes_nothing_in_real_arithmetic(kv: str) -> None:
    runtime = random_reference(tiny_spec(window=5), kv=kv)
    plain = run(runtime=runtime, max_tokens=30)
    assert len(set(plain.tokens)) > 3
    for drafter in drafters(plain):
        assert run(drafter, runtime, max_tokens=30).tokens == plain.tokens
    assert run(knowing(plain), runtime, max_tokens=30).stats.calls < 10


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
    st.integers(0, 12),
    st.integers(0, 9),
    st.sets(st.integers(0, VOCAB - 1), max_size=2),
    st.sampled_from(sorted(SAMPLINGS)),
)
def test_drafting_changes_nothing_whatever_the_options(
    seed: int, prompt: list[int], nodes: int, n: int, stops: set[int], sampling: str
) -> None:
    runtime = FakeRuntime(seed=seed % 5)
    options: dict[str, Any] = {
        "nodes": nodes,
        "max_tokens": n,
        "stop_tokens": frozenset(stops),
        "sampling": SAMPLINGS[sampling],
        "logprobs": 2,
    }
    plain = run(context=fresh(runtime, prompt=prompt), runtime=runtime, **options)
    for drafter in (RandomDrafter(seed), PerfectDrafter(plain.context.ids, seed % 2)):
        drafted = run(drafter, runtime, fresh(runtime, prompt=prompt), **options)
        assert drafted.tokens == plain.tokens
        assert [(t.logprob, t.top) for t in drafted.tokens] == [(t.logprob, t.top) for t in plain.tokens]
        assert drafted.state()[0] == plain.state()[0]
        assert drafted.state()[3] == plain.state()[3]
        assert drafted.stats.finish == plain.stats.finish


def test_a_draft_of_more_than_was_asked_for_changes_nothing_either() -> None:
    class Greedy(PerfectDrafter):
        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
            return super().propose(context, 20, min_path_prob)

    plain = run(max_tokens=12)
    for n in range(12):
        drafted = run(Greedy(plain.context.ids), max_tokens=n)
        assert drafted.tokens == plain.tokens[:n]
        assert drafted.state() == run(max_tokens=n).state()


def test_observing() -> None:
    plain = run()
    drafter = knowing(plain)
    run(drafter, nodes=3)
    assert drafter.observed == [3, 3, 3]


class Watching(PerfectDrafter):
    """Keeps what it observed, and how long the text was by then."""

    def __init__(self, *args: Any, outputs: Outputs = PerfectDrafter.outputs) -> None:
        super().__init__(*args)
        self.outputs, self.seen, self.context = outputs, list[tuple[int, StepResult]](), None

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self.context = context
        return replace(super().propose(context, nodes, min_path_prob), by=["me"] * nodes)

    def observe(self, step: StepResult) -> None:
        self.seen.append((len(self.context.ids), step))


@pytest.mark.parametrize("decoys", [0, 1])
def test_a_call_is_observed_before_its_tokens_are_yielded(decoys: int) -> None:
    plain = run()
    drafter = Watching([*plain.context.ids, *[0] * 9], decoys)
    runtime = FakeRuntime()
    told = len(PROMPT)
    for token in decode(runtime, fresh(runtime), GenerationConfig(max_tokens=12), Limited(drafter, 6)):
        length, seen = drafter.seen[-1]
        assert seen.picked[told - length] == token
        told += 1
    length = len(PROMPT)
    for known, seen in drafter.seen:
        assert known == length
        tokens = seen.tokens()
        assert tokens[0] == plain.context.ids[length - 1]
        assert [tokens[row] for row in seen.path[1:]] == seen.picked[:-1]
        assert seen.path == [i * (decoys + 1) for i in range(len(seen.path))]
        length += len(seen.picked)
    assert len(drafter.seen) < 6


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize(
    "wanted",
    [Outputs(top=3), Outputs(hidden=(5,)), Outputs(True, 2, hidden=(2, 5)), Outputs(logsum=True, attention=True)],
    ids=["top", "hidden", "logits", "attention"],
)
def test_a_drafter_is_shown_what_it_wants(wanted: Outputs, logprobs: int | None) -> None:
    plain = run()
    drafter = Watching([*plain.context.ids, *[0] * 9], 1, outputs=wanted)
    assert run(drafter, logprobs=logprobs).tokens == plain.tokens
    for length, seen in drafter.seen:
        n, result = len(seen.tokens()), seen.result
        assert result.logits is None or result.logits.shape == (n, VOCAB)
        assert result.logits is not None or not wanted.logits
        if wanted.top:
            assert result.ids is not None
            assert result.ids.shape == (n, wanted.top)
            assert [result.ids[row, 0] for row in seen.path] == seen.picked
        assert set(result.hidden) == set(wanted.hidden)
        for block, hidden in result.hidden.items():
            states = hidden[seen.root :]
            assert states.shape == (n, 16)
            ids = plain.context.ids[:length] + seen.picked[:-1]
            assert states[seen.path[-1], 0] == ids[-1]
            if block == 5:
                assert FakeRuntime().head(states[[seen.path[-1]]]).tolist() == [last_logits(ids).tolist()]
        assert set(result.attention) == ({0, 2, 4} if wanted.attention else set())
        assert (result.logsum is not None) == wanted.logsum


def test_a_trace_has_every_call_and_tokens_name_their_drafter() -> None:
    whole = run(max_tokens=20)
    drafter, trace = Watching([*whole.context.ids[:14], *[0] * 9]), list[StepTrace]()
    runtime = FakeRuntime()
    stats = Stats()
    config = GenerationConfig(max_tokens=12)
    tokens = list(decode(runtime, fresh(runtime), config, Limited(drafter, 3), stats, trace))
    assert len(trace) == stats.calls
    assert [call.step for call in trace] == [seen for _, seen in drafter.seen]
    assert sum(len(call.draft.tokens) for call in trace) == stats.proposed
    assert sum(len(call.step.path) - 1 for call in trace) == stats.accepted
    assert all(call.step.seconds <= call.seconds for call in trace)
    length, guessed = len(PROMPT), list[str]()
    for call in trace:
        assert call.length == length
        length += len(call.step.picked)
        guessed += ["me"] * (len(call.step.path) - 1) + [""]
    assert [token.by for token in tokens] == guessed[:12]
    assert len(set(guessed[:12])) == 2


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("n", range(9))
def test_max_tokens_inside_an_accepted_path(n: int, nodes: int) -> None:
    whole = run()
    found = run(knowing(whole), max_tokens=n, nodes=nodes)
    assert found.tokens == whole.tokens[:n]
    assert found.stats.finish == "length"
    assert found.state() == run(max_tokens=n).state()


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("decoys", [0, 1])
def test_a_stop_token_inside_an_accepted_path(nodes: int, decoys: int) -> None:
    whole = run()
    for stop in sorted(set(whole.tokens)):
        at = whole.tokens.index(stop)
        options: dict[str, Any] = {"stop_tokens": frozenset({stop}), "nodes": nodes}
        plain, constraint = run(**options), SetConstraint(lambda last: range(VOCAB))
        drafted = run(knowing(whole, decoys), constraint=constraint, **options)
        assert plain.tokens == drafted.tokens == whole.tokens[:at]
        assert plain.stats.finish == drafted.stats.finish == "eos"
        assert plain.state() == drafted.state()
        assert plain.context.ids == PROMPT + whole.tokens[:at]
        assert not any(stop in path for path in constraint.asked), "asked what follows the end"


def test_a_constraint_holds_at_every_node() -> None:
    def followers(last: int) -> set[int]:
        return {(last * 2 + 1) % VOCAB, (last + 3) % VOCAB, 5}

    for sampling in SAMPLINGS.values():
        options: dict[str, Any] = {"sampling": sampling, "max_tokens": 20}
        plain = run(constraint=SetConstraint(followers), **options)
        assert all(b in followers(a) for a, b in zip([-1, *plain.tokens], plain.tokens, strict=False))
        assert plain.tokens != run(**options).tokens
        for drafter in drafters(plain):
            constraint = SetConstraint(followers)
            drafted = run(drafter, constraint=constraint, **options)
            assert drafted.tokens == plain.tokens == constraint.accepted
            assert drafted.state() == plain.state()
        assert any(constraint.asked)


def test_a_constraint_knows_the_tokens_taken_and_no_more() -> None:
    plain = run()
    for n in range(1, 8):
        constraint = SetConstraint(lambda last: range(VOCAB))
        runtime = FakeRuntime()
        config = GenerationConfig(constraint=constraint)
        tokens = decode(runtime, fresh(runtime), config, Limited(knowing(plain), 5))
        assert list(islice(tokens, n)) == plain.tokens[:n] == constraint.accepted


@pytest.mark.parametrize("drafting", [False, True])
def test_logprobs_are_the_models_own(drafting: bool) -> None:
    plain = run(sampling=SAMPLINGS["penalties"])
    found = run(knowing(plain) if drafting else None, sampling=SAMPLINGS["penalties"], logprobs=3)
    assert found.tokens == plain.tokens
    assert all(t.logprob is None and t.top == () for t in plain.tokens)
    for i, token in enumerate(found.tokens):
        logits = last_logits([*PROMPT, *found.tokens[:i]])
        assert token.logprob == pytest.approx(logprob(logits, token))
        best = np.argsort(-logits, kind="stable")[:3]
        assert [t for t, _ in token.top] == best.tolist()
        assert [p for _, p in token.top] == pytest.approx([logprob(logits, t) for t in best])
        assert (token, token.token, type(token.token)) == (int(token), int(token), int)


def last_logits(ids: list[int], runtime: FakeRuntime | None = None) -> np.ndarray:
    """What follows `ids`, read in one call with an empty cache."""
    runtime = runtime or FakeRuntime()
    return logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(max(len(ids), 1)))[-1]


@pytest.mark.parametrize("max_tokens", [0, 1, 5, None])
def test_a_prompt_that_does_not_fit(max_tokens: int | None) -> None:
    runtime = FakeRuntime()
    context = fresh(runtime, capacity=len(PROMPT) - 1)
    before = state(context)
    if max_tokens == 0:
        assert run(runtime=runtime, context=context, max_tokens=0).tokens == []
        return
    with pytest.raises(ContextFull, match=r"^5 tokens do not fit a context of 4: shorten the prompt.*on_full='slide'"):
        run(runtime=runtime, context=context, max_tokens=max_tokens)
    assert state(context) == before


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("room", [0, 1, 4])
def test_the_context_fills_on_the_way(room: int, drafting: bool) -> None:
    whole = run(max_tokens=20)
    for nodes in NODES:
        drafter = knowing(whole) if drafting else Off()
        runtime = FakeRuntime()
        context = fresh(runtime, capacity=len(PROMPT) + room)
        found = run(drafter, runtime, context, max_tokens=None, nodes=nodes)
        assert found.tokens == whole.tokens[: room + 1]  # the last one is told, though not cached
        assert found.stats.finish == "context"
        with pytest.raises(ContextFull):
            run(drafter, runtime, context, max_tokens=None)
        context = fresh(runtime, capacity=len(PROMPT) + room)
        tokens = decode(runtime, context, GenerationConfig(max_tokens=room + 2), Limited(drafter, nodes))
        assert list(islice(tokens, room + 1)) == whole.tokens[: room + 1]
        with pytest.raises(ContextFull):
            next(tokens)
        assert context.ids == PROMPT + whole.tokens[: room + 1]
        context = fresh(runtime, capacity=len(PROMPT) + room)
        assert run(drafter, runtime, context, max_tokens=room + 1, nodes=nodes).stats.finish == "length"


def sliding(capacity: int, sinks: int, sampling: Sampling, n: int) -> tuple[list[int], list[int], int]:
    """Sliding, naively: every token from an empty cache. -> (tokens, ids at the end, of which prompt)"""
    ids, told, tokens = list(PROMPT), [False] * len(PROMPT), []
    rng = np.random.default_rng(7)
    for _ in range(n):
        if len(ids) > capacity:
            latest = capacity // 2 - sinks
            ids, told = ids[:sinks] + ids[-latest:], told[:sinks] + told[-latest:]
        tokens.append(draw(probs(last_logits(ids), sampling, ids, told.count(False)), rng))
        ids, told = [*ids, tokens[-1]], [*told, True]
    return tokens, ids, told.count(False)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("capacity", "sinks"), [(8, 0), (8, 2), (16, 4), (11, 1)])
def test_sliding_is_a_fresh_start_on_what_was_kept(capacity: int, sinks: int, sampling: str) -> None:
    want, ids, n_prompt = sliding(capacity, sinks, SAMPLINGS[sampling], 40)
    for drafter in (Off(), RandomDrafter(1), RandomDrafter(2)):
        runtime = FakeRuntime()
        context = fresh(runtime, capacity, sinks)
        found = run(drafter, runtime, context, sampling=SAMPLINGS[sampling], max_tokens=40)
        assert found.tokens == want
        assert (context.ids, context.n_prompt) == (ids, n_prompt)


def test_a_slide_resets_the_drafter() -> None:
    runtime = FakeRuntime()
    drafter = PerfectDrafter([])
    run(drafter, runtime, fresh(runtime, capacity=8, sinks=1), max_tokens=14)
    assert drafter.resets == 2


def test_a_long_prompt_slides_too() -> None:
    runtime = FakeRuntime()
    prompt = [i * 5 % VOCAB for i in range(30)]
    found = run(runtime=runtime, context=fresh(runtime, 8, 2, prompt), max_tokens=3)
    assert found.tokens == run(context=fresh(runtime, 8, 2, prompt[:2] + prompt[-2:]), max_tokens=3).tokens


@pytest.mark.parametrize("drafting", [False, True])
def test_reading_in_chunks_is_reading_at_once(monkeypatch: pytest.MonkeyPatch, drafting: bool) -> None:
    spec = tiny_spec(window=9, context_length=256)
    prompt = [i * i % VOCAB for i in range(150)]
    found, calls = [], []
    for chunk, cells in ((512, 4 << 20), (40, 4 << 20), (512, 1)):
        monkeypatch.setattr(capabilities, "_MASK_CELLS", cells)
        runtime = FakeRuntime(spec, prefill_chunk=chunk, largest_call=512)
        drafter = knowing(found[0], 1) if drafting and found else None
        found.append(run(drafter, runtime, fresh(runtime, 256, prompt=prompt), max_tokens=5))
        calls.append(runtime.calls - found[-1].stats.calls)
    assert found[0].tokens == found[1].tokens == found[2].tokens
    assert found[0].state() == found[1].state() == found[2].state()
    assert calls == [0, 3, 4]  # of 40 and of 32; the last chunk gives the first token


def test_a_text_that_is_all_in_the_cache_runs_its_last_token_again() -> None:
    runtime = FakeRuntime()
    context = fresh(runtime)
    whole = run(runtime=runtime, context=fresh(runtime))
    at = next(i for i in range(3, 8) if whole.tokens[i] not in whole.tokens[:i])
    run(runtime=runtime, context=context, stop_tokens=frozenset({whole.tokens[at]}))
    assert context.cache.length == len(context.ids)
    rows = runtime.rows
    assert run(runtime=runtime, context=context, max_tokens=5).tokens == whole.tokens[at : at + 5]
    assert runtime.rows - rows == 5


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("decoys", [0, 1])
def test_at_every_yield_the_context_is_that_of_plain_decoding(sampling: str, decoys: int) -> None:
    """So it may be forked, saved or taken over there, in the midst of an accepted path."""
    config = GenerationConfig(SAMPLINGS[sampling], max_tokens=12)
    runtime = FakeRuntime()
    context = fresh(runtime)
    states = [state(context) for _ in decode(runtime, context, config, Off())]
    drafter = Limited(knowing(run(sampling=SAMPLINGS[sampling]), decoys), 9)
    for n in range(1, 13):
        context = fresh(runtime)
        tokens = decode(runtime, context, config, drafter)
        taken = list(islice(tokens, n))
        assert state(context) == states[n - 1]
        tokens.close()
        assert state(context) == states[n - 1]
        rest = list(decode(runtime, context, replace(config, max_tokens=12 - n), drafter))
        assert [*PROMPT, *taken, *rest] == context.ids
        if n < 12:
            assert state(context) == states[-1]


def test_an_error_on_the_way_leaves_what_was_told() -> None:
    class Broken(FakeRuntime):
        def forward(self, *args: Any) -> Any:
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().forward(*args)

    plain = run()
    runtime = Broken()
    context = fresh(runtime)
    tokens = decode(runtime, context, GenerationConfig(max_tokens=12), Limited(knowing(plain), 2))
    assert list(islice(tokens, 9)) == plain.tokens[:9]
    with pytest.raises(KeyboardInterrupt):
        next(tokens)
    runtime.calls += 1
    assert context.ids == PROMPT + plain.tokens[:9]
    assert run(runtime=runtime, context=context, max_tokens=3).state() == plain.state()


def test_nothing_to_continue() -> None:
    runtime = FakeRuntime()
    with pytest.raises(UsageError, match="nothing to continue: give at least one token"):
        run(runtime=runtime, context=fresh(runtime, prompt=[]))


@pytest.mark.parametrize("bad", [{"max_tokens": -1}, {"logprobs": -1}, {"logprobs": 101}])
def test_options_out_of_range_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(bad))} .*must be"):
        GenerationConfig(**bad)
