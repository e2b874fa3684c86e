"""Skipping blocks: the text and its cache stay what they were, and the search finds blocks nobody misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drafting import PROMPT, SAMPLINGS, draft_of, finish, host, left, run, saved
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from searches import gained

import edgedec
from edgedec.cache import HostCache
from edgedec.cache.rows import Rows
from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import DrafterContext, make_drafter
from edgedec.drafters._slices.block_search import Search, even
from edgedec.drafters._slices.costs import SliceCosts
from edgedec.drafters.off import Off
from edgedec.drafters.skip import Skip
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, CallResult, Hidden, Logits, Runtime, logits_of
from edgedec.sampling import Sampling
from edgedec.spec import Mlp, Ssm
from edgedec.testing.fakes import FakeRuntime, random_reference, tiny_layer, tiny_spec

LAYERS = 8
# Wide layers beside a small head, as models have them.
SPEC = tiny_spec(n_layers=LAYERS, context_length=1024, hidden_size=32, inner_size=64)
needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


@pytest.fixture(autouse=True)
def proportional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls cost what their multiply-adds say: the seconds of a fake say nothing."""
    monkeypatch.setattr(SliceCosts, "add", lambda *args: None)


class Graded(FakeRuntime):
    """Each token has a follower. A block of `needed` that was not run makes a quarter of the tokens go wrong;
    the others nobody misses. `work`: rows run by block."""

    def __init__(self, needed: Sequence[int] = ()) -> None:
        super().__init__(SPEC)
        self.needed, self.work = needed, Counter[int]()

    def run_block(self, b: int, hidden: Hidden, call: Call, span: tuple[int, int]) -> None:
        self.work[b] += call.rows.count
        hidden[:, 2 + b] = 1.0
        if b in self.spec.attention:
            # So that a row of the cache says which blocks its token had been through.
            assert isinstance(call.cache, HostCache)
            keys, values = call.cache.data(b)
            keys[:, slice(*span), 0] = hidden[:, 0]
            values[:, slice(*span), 0] = hidden[:, 2:].sum(axis=1)

    def head(self, hidden: Hidden) -> Logits:
        logits = np.zeros((len(hidden), 13), np.float32)
        for row, out in zip(hidden, logits, strict=True):
            token = int(row[0])
            wrong = sum((token + block) % 4 == 0 and not row[2 + block] for block in self.needed)
            out[(5 * token + 3 + wrong) % 13] = 6.0
        return logits


class Hashed(FakeRuntime):
    """Every block matters to everything. `work`: rows run by block."""

    def __init__(self) -> None:
        super().__init__(SPEC, spread=60.0)
        self.work = Counter[int]()

    def run_block(self, b: int, hidden: Hidden, call: Call, span: tuple[int, int]) -> NDArray[np.float32] | None:
        self.work[b] += call.rows.count
        return super().run_block(b, hidden, call, span)


def skipping(runtime: Runtime, **options: Any) -> Skip:
    drafter = make_drafter("skip", host(runtime), {key: str(value) for key, value in options.items()})
    assert isinstance(drafter, Skip)
    return drafter


@settings(deadline=None, derandomize=True)
@given(n=st.integers(1, 90), share=st.floats(0.01, 0.99))
def test_skipped_layers_are_whole_and_spread_evenly(n: int, share: float) -> None:
    skipped = even(tiny_spec(n_layers=n), share)
    assert list(skipped) == sorted(set(skipped))
    layers = sorted({block // 2 for block in skipped})
    assert len(skipped) == 2 * len(layers)
    assert len(layers) == max(min(max(round(share * n), 1), n - 2), 0)
    kept = [layer for layer in range(n) if layer not in layers]
    assert 0 in kept
    assert n - 1 in kept
    gaps = np.diff(kept)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


def test_rows_that_a_draft_began_cost_the_blocks_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft ran the first four blocks on its rows: a call of these, or of the first of them, runs the others only;
    a call of other rows, or without a draft, runs all."""
    drafter, made = skipping(Graded()), list[tuple[float, float, int, float]]()
    costs, n = drafter._slice_costs, SPEC.n_blocks
    monkeypatch.setattr(SliceCosts, "add", lambda self, *call: made.append(call))
    monkeypatch.setattr(drafter, "_trusts", SimpleNamespace(observe=lambda *seen: None))
    for drafted, known in (([4, 5, 6], True), ([4, 5], True), ([4, 6], False), ([7], False), ([4], None)):
        drafter._tree = None if known is None else SimpleNamespace(tokens=[4, 5, 6])  # type: ignore[assignment]
        drafter._first = 4
        rows = Rows.chain([1, 2, 9, *drafted], 0)
        drafter.observe(StepResult(rows, 2, [0], [3], CallResult(), 0.5, 10))
        assert made.pop() == (costs.blocks(4 if known else 0, n), costs.head, len(rows), 0.5 * len(rows) / 10)
    drafter.observe(StepResult(Rows.chain(list(range(40)), 0), 39, [0], [3], CallResult(), 0.5, 40))
    assert made == [], "a prompt was read with it"


def test_the_worked_example() -> None:
    assert even(tiny_spec(n_layers=6), 0.5) == (2, 3, 6, 7, 8, 9)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("search", [0, 1e9])
@pytest.mark.parametrize("make", [Hashed, lambda: Graded([3, 6, 9])])
def test_the_text_and_its_cache_stay(make: Any, search: float, sampling: str) -> None:
    expected, context, _, _ = run(make(), Off(), max_tokens=120, sampling=SAMPLINGS[sampling])
    runtime = make()
    drafter = skipping(runtime, share=search)
    found, drafted, stats, _ = run(runtime, drafter, max_tokens=120, sampling=SAMPLINGS[sampling])
    assert found == expected
    assert left(drafted) == left(context)
    assert stats.proposed > 0
    assert (drafter.search.trials > 0) == (search > 0)


def test_what_the_first_blocks_made_is_not_made_again() -> None:
    runtime = Graded([])
    drafter = skipping(runtime, share=0)
    _, _, stats, trace = run(runtime, drafter)
    first, rows = drafter.search.skipped[0], sum(len(turn.step.rows) for turn in trace)
    assert first == 2
    assert stats.calls < 12
    assert stats.accepted == stats.proposed
    for block in range(2 * LAYERS):
        if block < first or block in drafter.search.skipped:
            assert runtime.work[block] == rows
        else:
            # The draft ran it as well, but for the last drafted token of each call (and the last call's).
            assert rows < runtime.work[block] < 2 * rows


def test_while_the_prompt_is_read_nothing_is_drafted() -> None:
    prompt = [i * i % 13 for i in range(300)]
    drafter = skipping(runtime := Graded([]))
    found, _, _, trace = run(runtime, drafter, prompt, max_tokens=20)
    assert trace[0].draft.hidden is None
    assert not trace[0].draft.tokens
    assert trace[1].draft.tokens
    assert found == run(Graded([]), Off(), prompt, max_tokens=20)[0]


@pytest.mark.parametrize("capacity", [8, 33, 48])
def test_a_context_fills_to_its_end(capacity: int) -> None:
    runtime = Graded([3])
    drafter = skipping(runtime, share=1e9)
    found, context, stats, _ = run(runtime, drafter, capacity=capacity, max_tokens=None)
    expected, plain, other, _ = run(Graded([3]), Off(), capacity=capacity, max_tokens=None)
    assert (found, left(context), stats.finish) == (expected, left(plain), other.finish)
    assert stats.finish == "context"
    assert stats.accepted > 0


def test_no_more_than_asked_and_nothing_unlikely_is_drafted() -> None:
    drafter = skipping(runtime := Graded([]), gamma=5, width=1)
    context = Context(list(PROMPT), 5, runtime.new_cache(64))

    def drafted(nodes: int, min_path_prob: float = 0.0) -> int:
        return len(draft_of(runtime, drafter.propose(context, nodes, min_path_prob)).tokens)

    assert drafted(3) == 3
    assert drafted(9) == 5
    assert drafted(0) == 0
    assert drafted(5, 0.99) == 0
    assert context.cache.length == 0


def test_a_trial_does_not_touch_the_cache_even_if_it_is_abandoned() -> None:
    runtime = Hashed()
    drafter = skipping(runtime)
    context = run(runtime, Off(), max_tokens=60)[1]
    before, calls = left(context), runtime.calls
    rate = finish(runtime, drafter._match(context, (2, 3, 4, 7)))
    assert rate is not None
    assert 0 <= rate < 0.5
    assert runtime.calls == calls + 1
    assert left(context) == before
    assert finish(runtime, drafter._match(context, (2 * LAYERS,))) == 1.0
    trial = drafter._match(context, (2, 3))
    call = next(trial)
    assert isinstance(call, Call)
    assert call.cache is not context.cache
    assert call.rows.count == 32
    trial.close()
    assert left(context) == before


def test_a_trial_reads_generated_tokens_only() -> None:
    prompt = [i * i % 13 for i in range(100)]
    for n, trials in ((30, 0), (34, 1)):
        drafter = skipping(runtime := Graded([]), share=1e9)
        run(runtime, drafter, prompt, max_tokens=n, sampling=Sampling(temperature=9.0, seed=1))
        assert min(drafter.search.trials, 1) == trials


def test_where_a_recurrent_block_cannot_go_back_there_is_no_trial() -> None:
    mixed = (Ssm(2, 4, 4), Mlp(24))
    runtime = FakeRuntime(
        tiny_spec(layers=(tiny_layer(), mixed, tiny_layer(), tiny_layer()), context_length=256), spread=60.0
    )
    drafter = skipping(runtime, share=1e9)
    found, _, stats, _ = run(runtime, drafter, capacity=256, max_tokens=100)
    assert stats.proposed > 0
    assert found == run(runtime, Off(), capacity=256, max_tokens=100)[0]
    assert drafter.search.trials == 0


def test_trials_keep_their_distance_and_end() -> None:
    drafter = skipping(runtime := Graded([]), share=1e9)
    _, _, stats, _ = run(runtime, drafter, max_tokens=200, sampling=Sampling(temperature=3.0, seed=1))
    assert 1 <= drafter.search.trials <= stats.calls // 16
    drafter.search.stale = 50
    trials = drafter.search.trials
    run(runtime, drafter, max_tokens=200, sampling=Sampling(temperature=3.0, seed=1))
    assert drafter.search.trials == trials
    never = skipping(runtime, share=0)
    run(runtime, never, max_tokens=200)
    assert never.search.trials == 0


def test_the_search_finds_blocks_that_nobody_misses() -> None:
    needed = [4, 5, 9, 10]
    drafter = skipping(runtime := Graded(needed), skip=0.3, share=1e9)
    start = drafter.search.skipped
    assert set(start) & set(needed)
    for seed in range(8):
        # Hot enough to leave the cycles of the fake, so that the windows differ.
        run(runtime, drafter, max_tokens=400, sampling=Sampling(temperature=1.5, seed=seed))
    found = drafter.search.skipped
    assert not set(found) & set(needed)
    assert len(found) > len(start)


@pytest.mark.parametrize("seed", range(4))
def test_the_search_gains_on_noisy_trials(seed: int) -> None:
    assert gained(Search, seed, 200) > 1.3


def test_one_lucky_window_is_not_enough() -> None:
    search = Search(SPEC, even(SPEC, 0.3), 6)
    start, other = search.skipped, (2, 3)
    search.add_trial(start, 0.5, None)
    search.add_trial(other, 1.0, 0.5)
    assert search.skipped == start
    assert search.candidate() == other
    search.add_trial(other, 0.2, 0.6)
    assert search.skipped == start
    assert search.stale == 3
    for _ in range(2):
        search.add_trial(other, 1.0, 0.5)
    assert search.skipped == other
    assert search.stale == 0


def test_on_real_arithmetic_the_text_stays() -> None:
    for seed in range(3):
        runtime = random_reference(tiny_spec(window=4, n_layers=8), seed)
        expected = run(runtime, Off(), capacity=64, max_tokens=50)[0]
        found, _, stats, _ = run(runtime, skipping(runtime, skip=0.6, share=1e9), capacity=64, max_tokens=50)
        assert found == expected
        assert stats.proposed > 0


@needs_native
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kv", ["f32", "int8"])
def test_on_nano_text_and_cache_are_those_of_plain_decoding(kv: str, sampling: str) -> None:
    model = edgedec.open("nano", engine="native", threads=1, kv=kv)
    drafter = make_drafter(
        "skip", DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer), {"share": "1e9"}
    )
    assert isinstance(drafter, Skip)
    prompt, ask = model.tokenizer.encode("Once upon a time"), {"max_tokens": 200, "sampling": SAMPLINGS[sampling]}
    expected, context, _, _ = run(model.runtime, Off(), prompt, **ask)
    found, drafted, stats, _ = run(model.runtime, drafter, prompt, **ask)
    assert found == expected
    assert left(drafted) == left(context)
    assert stats.accepted > 0
    assert drafter.search.trials > 1


@needs_native
def test_a_session_speaks_as_without() -> None:
    model = edgedec.open("nano", engine="native", threads=1)
    texts, caches = [], []
    for spec in ("off", "skip:skip=0.2"):
        session = model.session(speculate=spec)
        texts.append("".join(session.generate("Tom had a big red ball.", max_tokens=60, ignore_eos=True)))
        caches.append(saved(session._context.cache))
    assert texts[0] == texts[1]
    assert caches[0] == caches[1]


def test_the_reference_says_the_same() -> None:
    model = edgedec.open("nano", engine="reference", kv="f32")
    drafter = make_drafter(
        "skip", DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer), {"skip": "0.2"}
    )
    prompt = model.tokenizer.encode("Once upon a time")
    expected = run(model.runtime, Off(), prompt, max_tokens=12)[0]
    assert run(model.runtime, drafter, prompt, max_tokens=12)[0] == expected


def learned() -> tuple[Graded, Skip]:
    drafter = skipping(runtime := Graded([4, 5, 9, 10]), share=1e9)
    for _ in range(4):
        run(runtime, drafter, max_tokens=300, sampling=Sampling(temperature=1.5, seed=1))
    return runtime, drafter


def test_what_was_learned_goes_on() -> None:
    runtime, drafter = learned()
    assert drafter.search.trials > 2
    twin = skipping(runtime, skip=0.6)
    assert twin.state() == {}
    twin.restore({})
    twin.restore(drafter.state())
    assert twin.search.skipped == drafter.search.skipped
    for key, value in drafter.state().items():
        assert np.array_equal(twin.state()[key], value)
    # What it learns now is its own.
    kept = drafter.state()["common/precision"].copy()
    twin.search.add_trial(twin.search.skipped, 0.5, None)
    assert np.array_equal(drafter.state()["common/precision"], kept)


def test_what_cannot_be_its_state_is_refused() -> None:
    _, drafter = learned()
    good = {key.removeprefix("common/"): array for key, array in drafter.state().items()}
    bad = [
        {"skipped": good["skipped"]},
        good | {"skipped": np.array([0, 1])},
        good | {"skipped": np.array([3, 2])},
        good | {"skipped": np.array([2, 2])},
        good | {"skipped": np.array([2 * LAYERS])},
        good | {"skipped": np.array([], np.int64)},
        good | {"seen": np.array([1.5, 1.0, 1.0])},
        good | {"seen": np.array([0.5, np.nan, 1.0])},
        good | {"seen": np.array([0.5, -1.0, 1.0])},
        good | {"weight": good["weight"][1:]},
        good | {"precision": -good["precision"]},
        good | {"precision": np.full_like(good["precision"], np.inf)},
    ]
    for state in bad:
        with pytest.raises(UsageError, match="drafter skip: the state kept"):
            drafter.restore(state)
    assert drafter.search.skipped == tuple(good["skipped"].tolist())


@pytest.mark.parametrize(
    "options",
    [
        {"skip": "0"},
        {"skip": "1"},
        {"skip": "nan"},
        {"gamma": "0"},
        {"share": "-1"},
        {"share": "nan"},
        {"search": "no"},
        {"width": "0"},
        {"width": "9"},
        {"trim": "0"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"drafter skip|trim"):
        make_drafter("skip", host(Graded()), options)


def test_a_model_of_two_layers_skips_nothing() -> None:
    runtime = FakeRuntime(tiny_spec(n_layers=2))
    _, _, stats, _ = run(runtime, skipping(runtime), capacity=64, max_tokens=20)
    assert stats.proposed == 0


def test_the_fake_is_the_model_it_says() -> None:
    runtime = Graded([3])
    cache = runtime.new_cache(8)
    assert logits_of(runtime, Rows.chain([2], 0), cache).argmax() == 0
