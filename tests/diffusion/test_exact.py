"""What is exact of diffusion decoding, over many prompts on a model with several layers; each test asserts first that
positions were filled in parallel and that keys were reused."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from diffusion.texts import EOS, MASK, VOCAB, decode

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Stats
from edgedec.decoding.runner import run_loop
from edgedec.drafters import DrafterContext
from edgedec.drafters.block import BlockDrafter
from edgedec.drafters.off import Off
from edgedec.runtime import Call, Rows
from edgedec.speculation.costs import Costs
from edgedec.speculation.prompting import PromptingGovernor
from edgedec.testing.fake_runtime import FakeRuntime, random_reference, tiny_spec

COUNT = 200 if os.environ.get("EDGEDEC_SLOW_TESTS") else 20
PROMPTS = [list(np.random.default_rng(seed).integers(0, EOS, 2 + seed % 11)) for seed in range(COUNT)]
SOME, N = "schedule=threshold:p=0.4", 18


def hashes() -> FakeRuntime:
    return FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=14.0)


def ints(tokens: Any) -> list[int]:
    return list(map(int, tokens))


def same(facts: DiffusionFacts, ways: tuple[str, str], runtime: Any = hashes) -> tuple[int, int, int]:
    """Whether both ways give one text for each prompt; positions that were filled beside others, rows that the first
    saves, passes that it saves."""
    found = [[decode(runtime(), facts, ids, words, max_tokens=N) for words in ways] for ids in PROMPTS]
    parallel = sum(one[1].filled - one[1].passes for one, _ in found)
    rows = sum(other[1].rows - one[1].rows for one, other in found)
    passes = sum(other[1].passes - one[1].passes for one, other in found)
    for (text, _, _), (expected, _, _) in found:
        assert ints(text) == ints(expected)
        assert len(text) == N
    return parallel, rows, passes


@pytest.mark.parametrize(("context", "shift"), [("causal", True), ("causal", False), ("block", True), ("block", False)])
def test_the_block_cache(context: Any, shift: bool) -> None:
    parallel, rows, passes = same(DiffusionFacts(MASK, shift, context, 6), (SOME, SOME + ",keep=none"))
    assert parallel > COUNT
    assert rows > 20 * COUNT
    assert passes == 0


@pytest.mark.parametrize("shift", [False, True])
def test_delayed_keys_computed_anew_in_every_step(shift: bool) -> None:
    facts = DiffusionFacts(MASK, shift, "full", 6)
    parallel, rows, passes = same(facts, (SOME + ",keep=delayed:every=1", SOME))
    assert parallel > COUNT
    assert (rows, passes) == (0, 0)
    lossy = [decode(hashes(), facts, ids, SOME + ",keep=delayed:every=4", max_tokens=N) for ids in PROMPTS[:20]]
    whole = [decode(hashes(), facts, ids, SOME, max_tokens=N) for ids in PROMPTS[:20]]
    assert any(ints(one[0]) != ints(other[0]) for one, other in zip(lossy, whole, strict=True))
    assert sum(one[1].rows for one in lossy) < sum(other[1].rows for other in whole)


@pytest.mark.parametrize("states", [2, 4, 8])
def test_branches(states: int) -> None:
    ways = f"schedule=static,verify=branches:states={states}", "schedule=static"
    parallel, _, passes = same(DiffusionFacts(MASK, True, "causal", 6), ways)
    assert parallel == passes > 0


def test_the_reordered_prefix() -> None:
    """The cache after a generation is that of reading the text, for every prompt."""
    facts, parallel, words = DiffusionFacts(MASK, False, "causal", 6), 0, "schedule=entropy:most=2.6,keep=reorder"
    for ids in PROMPTS[: max(COUNT // 2, 20)]:
        runtime = random_reference(tiny_spec(vocab_size=VOCAB))
        _, counts, context = decode(runtime, facts, ids, words + ",blocks=sliding", max_tokens=N)
        parallel += counts.filled - counts.passes
        kept = context.cache.length
        assert kept > len(ids)
        cache = runtime.new_cache(64)
        runtime.forward([Call(Rows.chain(context.ids[:kept], 0), cache)])
        cache.commit(range(kept))
        for name, array in cache.save().items():
            np.testing.assert_allclose(array, context.cache.save()[name], rtol=1e-5, atol=1e-5)
    assert parallel > COUNT


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}], ids=["greedy", "drawn"])
def test_the_block_drafter(options: dict[str, Any]) -> None:
    facts, proposed, accepted = DiffusionFacts(MASK, True, "causal", 4), 0, 0
    for number, ids in enumerate(PROMPTS):
        config, texts = GenerationConfig(max_tokens=N).override({"temperature": 0.0, **options}), list[list[int]]()
        for drafting in (True, False):
            runtime, stats = FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=2.0), Stats()
            drafter = BlockDrafter(DrafterContext(runtime, None, lambda: None), facts, 3, 24)  # type: ignore[arg-type]
            governor = PromptingGovernor([("block", drafter)], lambda: Costs({1: 1e-3, 32: 1.1e-3}), 8)
            context = Context(list(ids), len(ids), runtime.new_cache(64), rng=np.random.default_rng(number))
            way: Any = governor if drafting else Off()
            loop = decode_loop(context, config, way, stats, capabilities=runtime.capabilities)
            texts.append(ints(run_loop(runtime, loop)))
            proposed, accepted = proposed + stats.proposed, accepted + stats.accepted
        assert texts[0] == texts[1]
    assert proposed > COUNT
    assert accepted > 0
