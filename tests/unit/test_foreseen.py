"""Drafts made with the target's own random numbers: more of them come true, and no seed gives another token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut import first_layers
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import StepResult
from edgedec.drafters._heads import foreseen
from edgedec.drafters._heads.feature_tree import FeatureTree
from edgedec.drafters._heads.foreseen import Foreseen, drawn, upcoming
from edgedec.drafters._heads.pace import LevelPace
from edgedec.kernels.cpu import loader
from edgedec.runtime import CallResult, Rows
from edgedec.sampling import Sampling, distribution, draw_at
from edgedec.testing.fakes import FakeRuntime, tiny_spec

native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
HOT = Sampling(temperature=1.0, seed=3)
WORLDS = 400


def logits_of(rng: np.random.Generator, n: int = 60) -> np.ndarray:
    return rng.normal(0, 2.5, n).astype(np.float32)


def test_the_worked_example() -> None:
    ids, chances = drawn(np.log(np.array([0.5, 0.3, 0.2], np.float32)), 0.6, HOT, 3)
    assert ids.tolist() == [1, 0, 2]
    np.testing.assert_allclose(chances, [0.55, 0.32, 0.13], atol=0.02)


@given(st.integers(0, 10**6), st.floats(0.05, 0.95), st.floats(0.2, 1.2))
@settings(max_examples=60, deadline=None)
def test_chances_are_those_of_a_distribution(seed: int, u: float, temperature: float) -> None:
    logits = logits_of(np.random.default_rng(seed))
    ids, chances = drawn(logits, u, Sampling(temperature=temperature), 60)
    assert len(set(ids.tolist())) == len(ids) > 0
    assert (chances >= 0).all()
    assert (np.diff(chances) <= 0).all(), "the likeliest first"
    assert 0.85 < chances.sum() <= 1 + 1e-9, "what is missing is of tokens that hardly ever come"


@pytest.mark.parametrize("sampling", [HOT, Sampling(temperature=0.8, top_k=9), Sampling(temperature=0.8, top_p=0.9)])
def test_more_is_guessed_than_by_the_likeliest_tokens(sampling: Sampling) -> None:
    """Of a head that says what the target says; four guesses each."""
    rng, foreseen_, likeliest = np.random.default_rng(1), 0, 0
    for _ in range(WORLDS):
        logits, u = logits_of(rng) / np.float32(1.5), float(rng.random())
        token = draw_at(distribution(logits, sampling), u)
        foreseen_ += token in drawn(logits, u, sampling, 4)[0]
        likeliest += token in np.argsort(-logits)[:4]
    assert likeliest > 0.4 * WORLDS
    assert foreseen_ > 1.2 * likeliest


def test_chances_come_true_where_the_law_is_as_supposed() -> None:
    rng, told, came = np.random.default_rng(2), 0.0, 0
    for _ in range(WORLDS):
        logits, u = logits_of(rng), float(rng.random())
        p = np.exp(logits - logits.max())
        target = rng.dirichlet(np.maximum(foreseen.HEAD * p / p.sum(), 1e-6))
        ids, chances = drawn(logits, u, HOT, 3)
        told += chances.sum()
        came += int(np.searchsorted(np.cumsum(target), u)) in ids
    assert came / WORLDS == pytest.approx(told / WORLDS, abs=0.06)


def test_tokens_are_the_targets_and_each_level_has_its_number() -> None:
    logits = np.log(np.array([[0.5, 0.5]], np.float32))
    head = Foreseen(1, (0,), np.array([7, 9], np.int32), HOT, [0.1, 0.9])
    result = CallResult(logits, None, None, None)
    assert [head.guesses(result, level)[0] for level in (0, 1)] == [[[7]], [[9]]]  # type: ignore[index]
    assert head.guesses(CallResult(None, None, None, None), 0) is None


def test_numbers_are_those_of_the_next_draws() -> None:
    runtime = FakeRuntime(tiny_spec())
    context = Context([1], 1, runtime.new_cache(8), rng=np.random.default_rng(5))
    numbers = upcoming(context, 3)
    assert numbers == upcoming(context, 3), "looking draws nothing"
    assert [context.rng.random() for _ in range(3)] == numbers


OPENINGS = ("Once upon a time", "One day, a dog", "Tom and Lily went", "Ben had a red", "In the big forest", "Hi")


@native
@pytest.mark.parametrize("sampling", [HOT, Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)])
def test_more_of_a_sampled_text_is_foreseen(nano: Path, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens and cache as without drafts, in fewer calls than with the likeliest tokens as guesses."""
    model = edgedec.open(nano, engine="native", threads=1)
    prompts = [model.tokenizer.encode(text) for text in OPENINGS]

    def run(spec: str) -> tuple[list[list[int]], int, int, bytes]:
        session, texts, calls, proposed = model.session(speculate=spec), [], 0, 0
        for ids in prompts:
            texts.append(list(map(int, session.tokens(ids, max_tokens=80, sampling=sampling, ignore_eos=True))))
            calls, proposed = calls + session.stats.calls, proposed + session.stats.proposed
        kept = b"".join(array.tobytes() for array in session._context.cache.save().values())
        return texts, calls, proposed, kept

    texts, plain, _, kept = run("off")
    again, calls, proposed, ours = run("eagle3:fixed=7")
    assert proposed > 500, "nothing was drafted"
    assert (again, ours) == (texts, kept)
    assert calls < 0.65 * plain
    monkeypatch.setattr(FeatureTree, "_sight", lambda self, context: self._likeliest)
    same, without, _, _ = run("eagle3:fixed=7")
    assert same == texts
    if sampling == HOT:
        assert calls < 0.97 * without


@native
def test_a_draft_model_foresees_more_of_a_sampled_text(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nano's first layers draft: the same text by the same seed, in fewer calls than with their likeliest tokens."""
    model, small = edgedec.open(nano, engine="native", threads=1), first_layers(nano, tmp_path / "small", 6)
    prompts = [model.tokenizer.encode(text) for text in OPENINGS]

    def run(spec: str) -> tuple[list[list[int]], int, int]:
        session, texts, calls, proposed = model.session(speculate=spec), [], 0, 0
        for ids in prompts:
            texts.append(list(map(int, session.tokens(ids, max_tokens=60, sampling=HOT, ignore_eos=True))))
            calls, proposed = calls + session.stats.calls, proposed + session.stats.proposed
        return texts, calls, proposed

    texts, plain, _ = run("off")
    again, calls, proposed = run(f"model:path={small},gamma=5,fixed=6")
    assert proposed > 300, "nothing was drafted"
    assert again == texts
    monkeypatch.setattr("edgedec.drafters.model.upcoming", lambda context, n: [])
    same, without, _ = run(f"model:path={small},gamma=5,fixed=6")
    assert same == texts
    assert calls < 0.95 * without < plain


# ── how far a head goes ──


def verified(tokens: int, seconds: float) -> StepResult:
    rows = Rows.tree([1, 2, 3], [-1, 0, 1], 4)
    return StepResult(rows, 0, range(tokens), [0] * tokens, CallResult(None, None, None, None), seconds, total=3)


def test_a_level_is_drafted_where_it_is_worth_its_time() -> None:
    pace = LevelPace()
    assert pace.pays(0.0), "nothing is known yet"
    pace.add_call(verified(2, 1.0))
    pace.add_level(0.05 - 1e-4)
    assert pace.pays(0.2)
    assert not pace.pays(0.1)
    for _ in range(60):
        pace.add_call(verified(1, 1.0))
    assert pace.pays(0.1), "where a call gives one token, a token is worth a call"


def test_levels_that_cost_much_are_left_out(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head whose level takes as long as two calls drafts one level, unless all levels are asked for."""
    if loader.why_not() is not None:
        pytest.skip(f"native engine: {loader.why_not()}")
    model = edgedec.open(nano, engine="native", threads=1)
    monkeypatch.setattr(LevelPace, "add_level", lambda self, seconds: setattr(self, "level_s", 1e9))
    depths = list[int]()

    def run(least: float) -> int:
        session = model.session(speculate="eagle3:fixed=7")
        if least:
            governor: Any = session._drafter.drafter  # type: ignore[attr-defined]
            propose = governor.propose
            monkeypatch.setattr(governor, "propose", lambda context, nodes, _: propose(context, nodes, least))
        trace: list[StepTrace] = []
        list(session.tokens(model.tokenizer.encode("Once upon a time"), max_tokens=40, ignore_eos=True, trace=trace))
        depths[:] = [depth_of(step.draft.parents) for step in trace[4:] if step.draft.tokens]
        return len(depths)

    assert run(0.0) > 3
    assert max(depths) > 2
    assert run(0.01) > 3
    assert max(depths) == 1


def depth_of(parents: Sequence[int]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths)
