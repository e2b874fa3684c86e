"""Logits processors: their order, paths and forks in the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loops import decode

from edgedec.decoding.chain import make_chain
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.logits import BaseProcessor, ConstraintMask, MinTokens, Penalties
from edgedec.decoding.messages import Stats
from edgedec.drafters import Drafter
from edgedec.drafters.off import Off
from edgedec.runtime import Runtime
from edgedec.sampling import Sampling
from edgedec.sampling.best import Best
from edgedec.testing.fakes import (
    FakeRuntime,
    Limited,
    PerfectDrafter,
    RandomDrafter,
    SetConstraint,
)

VOCAB, PROMPT = 13, [3, 1, 4, 1, 5]
INF = float("inf")


class Alternating(BaseProcessor):
    """Forbids the token generated two places before; counts what it accepted, and is given paths to check."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.paths: list[list[int]] = []

    def process(self, logits: np.ndarray, path: Sequence[int], early: Mapping[int, np.ndarray]) -> np.ndarray:
        self.paths.append(list(path))
        text = [*self.text, *path]
        if len(text) < 2:
            return logits
        changed = logits.copy()
        changed[text[-2]] = -INF
        return changed

    def accept(self, token: int) -> None:
        self.text.append(int(token))

    def reset(self) -> None:
        self.text.clear()

    def fork(self) -> Alternating:
        twin = Alternating()
        twin.text = list(self.text)
        return twin


def run(
    on: Runtime, drafter: Drafter | None = None, seed: int = 7, stats: Stats | None = None, **config: Any
) -> list[int]:
    context = Context(list(PROMPT), len(PROMPT), on.new_cache(64), None, np.random.default_rng(seed))
    options = {"max_tokens": 20} | config
    found = decode(on, context, GenerationConfig(**options), Limited(drafter or Off(), 6), stats)
    return [int(token) for token in found]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, top_k=5)], ids=["greedy", "sampled"])
def test_a_processor_holds_at_every_node(sampling: Sampling) -> None:
    processor = Alternating()
    plain = run(FakeRuntime(), sampling=sampling, processors=(processor,))
    assert processor.text == plain
    assert all(a != b for a, b in zip(plain, plain[2:], strict=False))
    assert plain != run(FakeRuntime(), sampling=sampling)
    for drafter in (PerfectDrafter([*PROMPT, *plain]), PerfectDrafter([*PROMPT, *plain], 1), RandomDrafter(1)):
        processor, stats = Alternating(), Stats()
        assert run(FakeRuntime(), drafter, stats=stats, sampling=sampling, processors=(processor,)) == plain
        assert processor.text == plain
        assert stats.proposed
        assert any(processor.paths)


class Adding(BaseProcessor):
    """Adds to one token's logit, and names itself in a list."""

    def __init__(self, name: str, calls: list[str], by: float = 0.0) -> None:
        self.name, self.calls, self.by = name, calls, by

    def process(self, logits: np.ndarray, path: Sequence[int], early: Mapping[int, np.ndarray]) -> np.ndarray:
        self.calls.append(self.name)
        changed: np.ndarray = logits + np.float32(self.by)
        return changed


def test_the_order() -> None:
    """Processors as given, then bias and penalties, the constraint, min_tokens."""
    calls = list[str]()
    constraint = SetConstraint({key: {2, 3, 4} for key in range(-1, VOCAB)})
    sampling = Sampling(temperature=1.0, logit_bias={3: 2.0}, repetition_penalty=2.0)
    processors = Adding("a", calls, 1.0), Adding("b", calls)
    config = GenerationConfig(sampling, min_tokens=2, processors=processors, constraint=constraint)
    context = Context([3, 5], 2, FakeRuntime().new_cache(8))
    chain = make_chain(config, context, frozenset({2}))
    found = chain.process(np.full(VOCAB, 1, np.float32), [], {})
    assert calls == ["a", "b"]
    assert found[[2, 3, 4]].tolist() == [-INF, 2.0, 2.0]  # (1 + 1 + 2) / 2, and 1 + 1
    assert np.isneginf(np.delete(found, [3, 4])).all()
    chain.accept(4)
    chain.accept(3)
    assert constraint.accepted == [4, 3]
    assert chain.process(np.full(VOCAB, 1, np.float32), [], {})[2] == 2.0  # may end now
    assert not chain.takes_best  # one of them needs all logits
    assert make_chain(replace(config, processors=()), context, frozenset({2})).takes_best


class Spelling(SetConstraint):
    """3, 4 and 5, and then the end, 2."""

    def __init__(self) -> None:
        super().__init__({-1: {3}, 3: {4}, 4: {5}, 5: {2}})

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self.accepted[-1:] == [5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafted", [[], [3, 4, 5], [3, 4, 5, 2], [3, 4, 5, 7]])
def test_a_constraint_that_is_complete_ends_a_text_before_min_tokens(drafted: list[int], temperature: float) -> None:
    """With drafts, too, which reach the end of it within one call."""
    runtime, prompt, stats = FakeRuntime(), [6, 1], Stats()
    context = Context(prompt, len(prompt), runtime.new_cache(40), rng=np.random.default_rng(3))
    config = GenerationConfig(Sampling(temperature), max_tokens=20, min_tokens=9, constraint=Spelling())
    drafter = PerfectDrafter([*prompt, *drafted])
    found = decode(runtime, context, config, drafter, stats, eos=frozenset({2}))
    assert [int(token) for token in found] == [3, 4, 5]
    assert stats.finish == "eos"
    assert stats.calls == (1 if drafted else 3)


def test_an_end_is_masked_unless_it_is_all_that_is_left() -> None:
    few, chances = MinTokens(frozenset({2, 99}), 2), np.full(VOCAB, -INF, np.float32)
    chances[2] = 1.0
    assert few.process(chances, [], {}).tolist() == chances.tolist()
    chances[7] = -3.0
    assert np.flatnonzero(np.isfinite(few.process(chances, [1], {}))).tolist() == [7]
    assert np.flatnonzero(np.isfinite(few.process(chances, [1, 1], {}))).tolist() == [2, 7]


def test_own_processors_on_the_k_best() -> None:
    """The same scores as on all logits, where they are known."""
    rng = np.random.default_rng(1)
    context = Context([3, 5, 5, 1], 1, FakeRuntime().new_cache(8))
    constraint = SetConstraint({key: {0, 2, 3, 5, 8} for key in range(-1, VOCAB)})
    sampling = Sampling(logit_bias={3: 2.0, 11: 1.0}, repetition_penalty=1.5, frequency_penalty=0.5)
    for _ in range(40):
        logits = rng.normal(0, 3, VOCAB).astype(np.float32)
        ids = np.argsort(-logits)[:6]
        for path in ([], [8, 5]):
            for processor in (
                Penalties(sampling, context),
                MinTokens(frozenset({1, 5}), 2),
                ConstraintMask(constraint),
            ):
                best = Best.of(ids.astype(np.int32), logits[ids], VOCAB, float(np.log(np.exp(logits).sum())))
                best = processor.process_best(best, path)
                whole = processor.process(logits, path, {})
                assert best.scores.tolist() == whole[best.ids].tolist()
                assert np.delete(whole, best.ids).max() <= best.border


def test_a_fork_of_a_mask_is_independent() -> None:
    mask = ConstraintMask(SetConstraint({-1: {1}, 1: {2}, 2: {1}}))
    twin = mask.fork()
    mask.accept(1)
    assert np.flatnonzero(mask.process(np.zeros(VOCAB, np.float32), [], {}) == 0).tolist() == [2]
    assert np.flatnonzero(twin.process(np.zeros(VOCAB, np.float32), [], {}) == 0).tolist() == [1]
    mask.reset()
    assert np.flatnonzero(mask.process(np.zeros(VOCAB, np.float32), [], {}) == 0).tolist() == [1]
