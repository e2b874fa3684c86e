"""Parts of the loop by themselves: what a row shows, which positions may be filled, caches that begin anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from diffusion.texts import MASK, VOCAB, decode

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.decoding.runner import run_loop
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.loop import PassCounts, diffusion_loop
from edgedec.diffusion.picking import Picker
from edgedec.diffusion.seen import Line, see
from edgedec.diffusion.words import parse_diffusion
from edgedec.runtime import Call, CallResult, Outputs, Rows, entropy_of, head_outputs
from edgedec.testing.fake_runtime import FakeRuntime, tiny_spec


def hashes() -> FakeRuntime:
    return FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=14.0)


def test_the_mask_is_never_among_the_best_but_counts_in_the_sum() -> None:
    """The same from all logits as from the best ones."""
    logits = np.log(np.array([[0.1, 0.2, 0.4, 0.3], [0.7, 0.1, 0.1, 0.1]], np.float32))
    best = head_outputs(logits, Outputs(top=3, logsum=True))
    for result in (CallResult(logits=logits), best):
        found = see({5: Line(result, 0), 9: Line(result, 1)}, 2, result.logits is not None, None)
        assert found.tokens.tolist() == [[3, 1], [0, 1]]
        np.testing.assert_allclose(found.p, [[0.3, 0.2], [0.7, 0.1]], atol=1e-6)
        if found.entropy is not None:
            p = np.exp(logits.astype(float))
            np.testing.assert_allclose(found.entropy, -(p * np.log(p)).sum(1), atol=1e-6)


def test_entropy_comes_beside_the_best_tokens() -> None:
    """A schedule that reads it takes no logits, and sees what it would see of all of them; drawing takes all."""
    runtime, facts = hashes(), DiffusionFacts(MASK, True, "causal", 8)
    wanted, forward = list[Outputs](), runtime.forward

    def noted(calls: Sequence[Call]) -> list[CallResult]:
        wanted.extend(call.outputs for call in calls)
        return forward(calls)

    runtime.forward = noted  # type: ignore[method-assign]
    found, _, _ = decode(runtime, facts, [1, 2, 3], "schedule=entropy:most=2.5", max_tokens=16)
    assert all(outputs.entropy and not outputs.logits for outputs in wanted)
    blind = FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=14.0, entropy=False)
    expected, _, _ = decode(blind, facts, [1, 2, 3], "schedule=entropy:most=2.5", max_tokens=16)
    assert list(map(int, found)) == list(map(int, expected))
    wanted.clear()
    decode(runtime, facts, [1, 2, 3], "schedule=entropy", max_tokens=8, temperature=0.5)
    assert all(outputs.logits for outputs in wanted)


def test_entropy_of_logits() -> None:
    logits = np.array([[1.0, 1.0, -np.inf], [80.0, 0.0, 0.0]], np.float32)
    np.testing.assert_allclose(entropy_of(logits), [np.log(2), 0], atol=1e-12)
    both = Outputs(top=2) | Outputs(entropy=True)
    assert (both.entropy, both.head, Outputs(entropy=True).head) == (True, True, True)


def test_settings_that_need_the_text_fill_from_the_left() -> None:
    runtime = hashes()
    context = Context([1], 1, runtime.new_cache(8))
    free, bound = (
        Picker(GenerationConfig().override(options), context, frozenset(), runtime.capabilities, MASK, False, False)
        for options in ({}, {"repetition_penalty": 1.2})
    )
    assert free.allowed([7, 5], [3, 4, 5, 7]) == [5, 7]
    assert bound.allowed([7, 5], [3, 4, 5, 7]) == [3]
    assert bound.allowed([3, 4, 5, 7], [3, 4, 5, 7]) == [3, 4, 5]
    assert bound.allowed([3, 5], [3, 4, 5]) == [3]
    assert free.allowed([], [3, 4]) == [3]


@pytest.mark.parametrize(("context", "shift"), [("causal", True), ("causal", False), ("block", True), ("block", False)])
@pytest.mark.parametrize("cached", [3, 8, 10, 11, 12])
def test_a_text_may_begin_with_any_part_of_it_cached(context: Any, shift: bool, cached: int) -> None:
    facts, ids, runtime = DiffusionFacts(MASK, shift, context, 4), list(range(12)), hashes()
    held = Context(list(ids), len(ids), runtime.new_cache(64))
    chain = Rows.chain(ids[:cached], 0)
    groups = chain.positions // 4 if context == "block" else None
    # What a cut cache holds of a block depends on the rest of it, which is why it is read again.
    runtime.forward([Call(Rows(chain.tokens, chain.positions, chain.parents, groups=groups), held.cache)])
    held.cache.commit(range(cached))
    methods = parse_diffusion("", context).make(DiffusionHost(facts, runtime.capabilities))
    config = GenerationConfig(max_tokens=10)
    loop = diffusion_loop(held, config, methods, facts, Stats(), PassCounts(), frozenset(), runtime.capabilities)
    expected, _, _ = decode(hashes(), facts, ids, max_tokens=10)
    assert list(map(int, run_loop(runtime, loop))) == list(map(int, expected))
