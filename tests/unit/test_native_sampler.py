"""The engine's sampler draws what Python's sampling draws, for every setting and random number, or says that it cannot
tell."""

from __future__ import annotations

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
from edgedec.kernels.cpu import loader
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
    calls, texts = [0], []
    for native in (True, False):

        class Counted(NativeSampler):
            def draw(self, *args: Any) -> int:
                calls[0] += 1
                return super().draw(*args)

        model.runtime.capabilities = replace(model.runtime.capabilities, sampler=Counted if native else None)
        session = model.session(speculate=speculate, context=96, on_full="slide")
        ids = model.tokenizer.encode("Once upon a time there was a cat. The cat was a big cat.")
        sampling = Sampling(seed=5, **way)
        found = list(session.tokens(ids, max_tokens=150, ignore_eos=True, sampling=sampling, min_tokens=3))
        found += session.tokens(max_tokens=20, ignore_eos=True, sampling=sampling)
        texts.append(found)
        if native:
            assert calls[0] >= 170 - session.stats.accepted
            if speculate != "off":
                assert session.stats.proposed > 0
            made = calls[0]
    assert calls[0] == made
    assert texts[0] == texts[1]
