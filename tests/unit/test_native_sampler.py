"""The engine's sampler draws what Python's sampling draws, for every setting and random number, or says that it cannot
tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import edgedec
from edgedec import Sampling
from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import (
    ALL_LOGITS,
    Call,
    CallResult,
    Drawing,
    Outputs,
    Readout,
    Rows,
    Runtime,
    forward_one,
    logits_of,
)
from edgedec.runtimes._native_sampler import NativeSampler
from edgedec.sampling import draw_at, probs

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

SAMPLING = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.05, 0.3, 0.8, 1.0, 1.7, 30.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 70, 5000]),
    top_p=st.sampled_from([1.0, 1.0, 0.999, 0.95, 0.6, 0.05]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    logit_bias=st.sampled_from([{}, {}, {0: 3.0, 5: -float("inf")}]),
)


def row(seed: int, vocab: int, shape: str) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    scores = rng.gumbel(size=vocab) * {"peaked": 6, "flat": 0.3}.get(shape, 2)
    if shape == "ties":
        scores = np.round(scores)
    if shape == "masked":
        scores[rng.random(vocab) < 0.95] = -np.inf
        scores[3] = 0
    return scores.astype(np.float32)


def both(scores: NDArray[np.float32], sampling: Sampling, ids: list[int], path: list[int], u: float) -> tuple[int, int]:
    """What the engine draws, and Python."""
    sampler = NativeSampler(sampling, len(scores))
    sampler.read(ids, len(ids) // 2)
    oracle = probs(scores, sampling, [*ids, *path], len(ids) // 2)
    return sampler.draw(scores, path, u), draw_at(oracle, u)


@settings(max_examples=400, deadline=None)
@given(
    SAMPLING,
    st.integers(0, 10**6),
    st.sampled_from([7, 64, 500, 4096]),
    st.sampled_from(["plain", "peaked", "flat", "ties", "masked"]),
    st.floats(0, 1, exclude_max=True),
    st.lists(st.integers(0, 499), max_size=30),
    st.lists(st.integers(0, 9), max_size=4),
)
def test_no_other_token(
    sampling: Sampling, seed: int, vocab: int, shape: str, u: float, ids: list[int], path: list[int]
) -> None:
    mine, oracle = both(row(seed, vocab, shape), sampling, ids, path, u)
    assert mine in (-1, oracle)


@pytest.mark.parametrize("vocab", [4096, 40000])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_p=0.9),
        Sampling(temperature=0.7, top_k=40),
        Sampling(temperature=0.9, min_p=0.05),
        Sampling(temperature=0.6, top_k=40, top_p=0.9, min_p=0.02, repetition_penalty=1.1, frequency_penalty=0.2),
    ],
    ids=str,
)
def test_almost_always_decided(sampling: Sampling, vocab: int) -> None:
    rng, undecided, drawn = np.random.default_rng(1), 0, set[int]()
    for seed in range(100):
        mine, oracle = both(row(seed, vocab, "plain"), sampling, [1, 2, 3, 7, 9], [3, 11], rng.random())
        undecided += mine < 0
        drawn.add(mine)
        assert mine in (-1, oracle)
    assert undecided <= 2
    assert len(drawn) > 50


def test_penalties_of_a_path_are_taken_back() -> None:
    sampling = Sampling(temperature=0.0, repetition_penalty=1.5, frequency_penalty=1.0)
    scores = np.array([0.1, 3.0, 2.5, 1.2], np.float32)
    sampler = NativeSampler(sampling, 4)
    sampler.read([0], 1)
    assert sampler.draw(scores, [], 0.0) == 1
    assert sampler.draw(scores, [1], 0.0) == 2
    assert sampler.draw(scores, [1, 2], 0.0) == 3
    assert sampler.draw(scores, [], 0.0) == 1
    sampler.accept(1)
    assert sampler.draw(scores, [], 0.0) == 2
    sampler.read([0, 2, 2, 3], 1)
    assert sampler.draw(scores, [], 0.0) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_left_to_python(bad: float) -> None:
    scores = np.linspace(0, 1, 300).astype(np.float32)
    scores[200] = bad
    for temperature in (0.0, 1.0):
        sampler = NativeSampler(Sampling(temperature=temperature, repetition_penalty=1.1), 300)
        assert sampler.draw(scores, [], 0.5) == -1


WAYS: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.3},
    {"temperature": 0.0, "repetition_penalty": 1.2},
    {"temperature": 0.9, "top_k": 30, "min_p": 0.05},
]


@pytest.mark.parametrize("speculate", ["off", "copy+recycling:fixed=4"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_generations_are_those_of_python(nano: Path, way: dict[str, Any], speculate: str) -> None:
    """Through drafts, penalties over the path, a context that slides, and a second generation of the session."""
    model = edgedec.open(nano, engine="native", threads=1)
    assert model.runtime.capabilities.sampler is NativeSampler
    calls, texts, drawn = [0], [], count_drawn(model)
    can = model.runtime.capabilities
    for native, draws in ((True, True), (True, False), (False, False)):
        before, calls[0] = len(drawn), 0

        class Counted(NativeSampler):
            def draw(self, *args: Any) -> int:
                calls[0] += 1
                return super().draw(*args)

        model.runtime.capabilities = replace(can, sampler=Counted if native else None, draws=draws, steps=None)
        session = model.session(speculate=speculate, context=96, on_full="slide")
        ids = model.tokenizer.encode("Once upon a time there was a cat. The cat was a big cat.")
        sampling = Sampling(seed=5, **way)
        found = list(session.tokens(ids, max_tokens=150, ignore_eos=True, sampling=sampling, min_tokens=3))
        found += session.tokens(max_tokens=20, ignore_eos=True, sampling=sampling)
        texts.append(found)
        made = calls[0] + len(drawn) - before
        assert made >= 170 - session.stats.accepted if native else made == 0
        assert (len(drawn) > before) == draws
        assert (calls[0] > 0) == (native and (speculate != "off" or not draws))
        if speculate != "off":
            assert session.stats.proposed > 0
    assert texts[0] == texts[1] == texts[2]


def count_drawn(model: edgedec.Model) -> list[int]:
    """The tokens that calls draw from now on."""
    run, drawn = model.runtime.forward, list[int]()

    def counted(calls: Sequence[Call]) -> list[CallResult]:
        results = run(calls)
        drawn.extend(result.drawn for result in results if result.drawn is not None)
        return results

    model.runtime.forward = counted  # type: ignore[method-assign]
    return drawn


def read(runtime: Runtime, ids: list[int]) -> Cache:
    cache = runtime.new_cache(len(ids) + 2)
    forward_one(runtime, Call(Rows.chain(ids, 0), cache))
    cache.commit(range(len(ids)))
    return cache


KINDS: list[Outputs | Sampling] = [
    Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.3),
    Outputs(top=1),
    Sampling(temperature=1.0),
    Outputs(top=3, logsum=True),
    Sampling(temperature=0.7, top_p=0.9, logit_bias={5: 2.0}, frequency_penalty=0.5),
    Outputs(logits=True),
    Sampling(temperature=0.0, repetition_penalty=1.5),
    Sampling(temperature=200.0, top_p=0.9, presence_penalty=1.0),  # never decided
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("which", ["drawn", "any"])
def test_calls_draw_what_a_sampler_draws_from_their_logits(nano: Path, threads: int, which: str) -> None:
    """More rows than logits are computed of at a time, penalties, and other calls between."""
    runtime = edgedec.open(nano, engine="native", threads=threads).runtime
    kinds = [kind for kind in KINDS if which == "any" or isinstance(kind, Sampling)] * 6
    vocab, rng = runtime.spec.vocab_size, np.random.default_rng(4)
    texts = [rng.integers(3, vocab, 20).tolist() for _ in kinds]
    caches = [read(runtime, ids) for ids in texts]
    plain = [call(ids, cache, ALL_LOGITS) for ids, cache in zip(texts, caches, strict=True)]
    logits = [logits_of(runtime, one.rows, one.cache)[0].copy() for one in plain]
    samplers = [NativeSampler(kind, vocab) if isinstance(kind, Sampling) else None for kind in kinds]
    drawings = [None if sampler is None else Drawing(sampler, np.random.default_rng(7)) for sampler in samplers]
    for sampler, ids in zip(samplers, texts, strict=True):
        if sampler is not None:
            sampler.read([*ids, 9], 5)
    for _ in range(2):  # run again, a call has the same number
        wanted = [
            kind if isinstance(kind, Outputs) else Outputs(top=2 * (i % 2 and which == "any"), draw=drawing)
            for i, (kind, drawing) in enumerate(zip(kinds, drawings, strict=True))
        ]
        found = runtime.forward([call(*each) for each in zip(texts, caches, wanted, strict=True)])
        decided = 0
        for row, kind, sampler, result in zip(logits, kinds, samplers, found, strict=True):
            if isinstance(kind, Outputs):
                assert result.drawn is None
                assert result.ids is None or result.ids[0, 0] == row.argmax()
                assert result.logits is None or (result.logits[0] == row).all()
                continue
            assert sampler is not None
            assert result.logits is None
            u = np.random.default_rng(7).random() if kind.temperature > 0 else 0.0
            assert result.drawn == sampler.draw(row, (), u)
            assert (result.drawn < 0) == (kind.temperature == 200)
            if result.drawn < 0:
                assert (sampler.row()[0] == row).all()
            decided += result.drawn >= 0
        assert decided >= 24


def call(ids: list[int], cache: Cache, outputs: Outputs) -> Call:
    return Call(Rows.chain([9], len(ids)), cache, outputs=outputs)


def test_what_is_never_decided_is_what_python_says(nano: Path) -> None:
    """A token of each call is -1, and all logits come out of the sampler."""
    model = edgedec.open(nano, engine="native", threads=1)
    drawn, texts, can = count_drawn(model), [], model.runtime.capabilities
    for draws in (True, False):
        model.runtime.capabilities = replace(can, draws=draws, sampler=can.sampler if draws else None, steps=None)
        session = model.session(speculate="off")
        sampling = Sampling(temperature=150.0, top_p=0.5, repetition_penalty=1.2, seed=3)
        texts.append(list(session.tokens([5, 6, 7], max_tokens=20, ignore_eos=True, sampling=sampling)))
    assert drawn == [-1] * 20
    assert texts[0] == texts[1]


@pytest.mark.parametrize("after", [False, True])
def test_a_call_that_fails_draws_no_number(nano: Path, after: bool) -> None:
    """Whether it fails before the engine drew or after, or its generation is given up: the next one has its number."""
    model = edgedec.open(nano, engine="native", threads=1)
    sampling, run, failed = Sampling(temperature=1.0, seed=8), model.runtime.forward, list[float]()
    expected = list(model.session(speculate="off").tokens([5, 6, 7], max_tokens=12, ignore_eos=True, sampling=sampling))
    session = model.session(speculate="off")

    def failing(calls: Sequence[Call]) -> list[CallResult]:
        if after:
            run(calls)
        failed.extend(call.outputs.draw.number() for call in calls if call.outputs.draw is not None)
        raise MemoryError

    model.runtime.forward = failing  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        list(session.tokens([5, 6, 7], max_tokens=4, ignore_eos=True, sampling=sampling))
    assert len(failed) == 1
    model.runtime.forward = run  # type: ignore[method-assign]
    assert list(session.tokens(max_tokens=12, ignore_eos=True, sampling=replace(sampling, seed=None))) == expected


def test_who_draws_says_so(nano: Path) -> None:
    reference, native = (edgedec.open(nano, engine=engine).runtime for engine in ("reference", "native"))
    drawing = Drawing(NativeSampler(Sampling(temperature=1.0), native.spec.vocab_size), np.random.default_rng(0))
    for runtime, reason in ((reference, "declares no draws"), (native, "a readout gives the best tokens only")):
        readout = None if runtime is reference else Readout(np.arange(5, 9))
        wanted = Outputs(top=1, readout=readout, draw=drawing)
        with pytest.raises(UsageError, match=reason):
            forward_one(runtime, Call(Rows.chain([5], 0), runtime.new_cache(4), outputs=wanted))
