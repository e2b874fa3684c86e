"""The loop of diffusion decoding: exact caches, exact distributions, ends, limits, cancellation."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise, permutations, product
from typing import Any

import numpy as np
import pytest
from diffusion.texts import EOS, MASK, VOCAB, decode

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import Stats, Token
from edgedec.decoding.runner import run_loop
from edgedec.decoding.scheduler.batch import Batch
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.loop import PassCounts, diffusion_loop
from edgedec.diffusion.words import parse_diffusion
from edgedec.drafters.off import Off
from edgedec.errors import ContextFull, UsageError
from edgedec.testing.fake_runtime import FakeRuntime, tiny_spec
from edgedec.testing.fakes import SetConstraint
from edgedec.testing.joint import JointRuntime, random_joint
from edgedec.testing.stats import chi_square

KINDS = list(product(("causal", "block"), (False, True)))


def facts_of(context: Any, shift: bool, block: int = 4, mask: int = MASK) -> DiffusionFacts:
    return DiffusionFacts(mask, shift, context, block)


def hashes(**changes: Any) -> FakeRuntime:
    """Logits of hashes: any row that sees anything else gives other tokens."""
    return FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=14.0, **changes)


PROMPTS = [list(np.random.default_rng(seed).integers(0, EOS, 3 + seed)) for seed in range(8)]


@pytest.mark.parametrize(("context", "shift"), KINDS)
@pytest.mark.parametrize("schedule", ["static", "static:count=2", "threshold:p=0.4"])
def test_the_block_cache_is_exact(context: str, shift: bool, schedule: str) -> None:
    facts, reused, parallel = facts_of(context, shift), 0, 0
    for ids in PROMPTS:
        runtime, oracle = hashes(), hashes()
        found, counts, _ = decode(runtime, facts, ids, f"schedule={schedule}", max_tokens=21)
        expected, all_counts, _ = decode(oracle, facts, ids, f"schedule={schedule},keep=none", max_tokens=21)
        assert list(map(int, found)) == list(map(int, expected))
        assert len(found) == 21
        assert MASK not in map(int, found)
        assert counts.passes == all_counts.passes
        reused += all_counts.rows - counts.rows
        parallel += counts.filled - counts.passes
    assert reused > 100  # keys were reused
    assert parallel == 0 if schedule == "static" else parallel > 10


def test_commits_are_fused_with_the_next_block() -> None:
    """Beyond the prompt each token runs once for its commit, and each pass runs its block: no call commits alone."""
    facts = facts_of("causal", True)
    runtime = hashes()
    _, counts, context = decode(runtime, facts, PROMPTS[0], "schedule=static", max_tokens=16)
    assert runtime.calls == counts.passes
    assert (counts.passes, counts.blocks) == (16, 4)
    assert counts.rows == len(PROMPTS[0]) + 12 + 4 * counts.passes
    assert context.cache.length == len(PROMPTS[0]) + 12


@pytest.mark.parametrize("shift", [False, True])
def test_a_block_of_one_token_is_autoregressive(shift: bool) -> None:
    """Shifted, with causal context: the row of the last token predicts, as in plain decoding."""
    ids = PROMPTS[1]
    found, _, _ = decode(hashes(), facts_of("causal", shift, 1), ids, max_tokens=9)
    runtime = hashes()
    context = Context(list(ids), len(ids), runtime.new_cache(64))
    config = GenerationConfig(max_tokens=9).override({"logit_bias": {MASK: -100.0}})
    plain = list(run_loop(runtime, decode_loop(context, config, Off(), capabilities=runtime.capabilities)))
    assert (list(map(int, found)) == list(map(int, plain))) is shift


@pytest.mark.parametrize(("context", "shift"), KINDS)
def test_a_text_alone_is_the_text_in_a_batch(context: str, shift: bool) -> None:
    facts = facts_of(context, shift)
    for options in ({}, {"temperature": 0.9, "top_k": 8}):
        alone = [decode(hashes(), facts, ids, seed=i, max_tokens=13, **options)[0] for i, ids in enumerate(PROMPTS)]
        runtime = hashes()
        batch, texts = Batch(runtime, tokens=10_000), [list[int]() for _ in PROMPTS]
        for i, ids in enumerate(PROMPTS):
            held = Context(list(ids), len(ids), runtime.new_cache(64), rng=np.random.default_rng(i))
            methods = parse_diffusion("", context).make(DiffusionHost(facts, runtime.capabilities))
            config = GenerationConfig(max_tokens=13).override({"temperature": 0.0, **options})
            loop = diffusion_loop(
                held, config, methods, facts, Stats(), PassCounts(), frozenset(), runtime.capabilities
            )
            batch.add(held, loop, partial(take, texts[i]), 64)
        batch.run()
        assert max(runtime.forwards) > 2
        assert texts == [list(map(int, text)) for text in alone]


def take(text: list[int], token: Token | None) -> None:
    """Add a token that a batch delivers."""
    if token is not None:
        text.append(int(token))


def test_prompts_are_read_in_chunks_that_end_at_block_ends() -> None:
    for context, shift in KINDS:
        facts, ids = facts_of(context, shift), list(range(23))
        small = hashes(largest_call=12, prefill_chunk=6, masks=False)
        found, _, _ = decode(small, facts, ids, max_tokens=9)
        expected, _, _ = decode(hashes(), facts, ids, max_tokens=9)
        assert list(map(int, found)) == list(map(int, expected))
        assert small.calls > 5


@pytest.mark.parametrize("shift", [False, True])
def test_one_token_a_pass_draws_from_the_joint_distribution(shift: bool) -> None:
    joint = random_joint(3, 4, 3, 12, sharp=2.0)
    runtime = JointRuntime(joint, 5, 4, shift=shift)
    facts = facts_of("causal", shift, 4, 4)
    tally: Counter[tuple[int, ...]] = Counter()
    for seed in range(1500):
        found, _, _ = decode(runtime, facts, [0], "schedule=static", seed=seed, max_tokens=4, temperature=1.0)
        tally[tuple(map(int, found))] += 1
    assert set(tally) <= set(joint)
    texts = list(joint)
    if shift:  # the first token comes from before the block, so all orders are possible
        assert len(tally) > 5
    statistic, critical = chi_square([tally[text] for text in texts], [joint[text] for text in texts])
    assert statistic < critical


def test_many_tokens_a_pass_draw_from_the_product() -> None:
    """What one-pass decoding cannot do: two positions that depend on each other (ParallelBench's shuffle)."""
    n = 3
    joint = dict.fromkeys(permutations(range(n)), 1 / 6)
    runtime, facts = JointRuntime(joint, 5, 4), facts_of("causal", False, n, 4)
    valid = 0
    for seed in range(600):
        found, counts, _ = decode(runtime, facts, [0], "steps=1", seed=seed, max_tokens=n, temperature=1.0)
        assert counts.passes == 1
        valid += sorted(map(int, found)) == list(range(n))
    assert abs(valid / 600 - 6 / 27) < 0.06


def test_steps_bound_the_passes_of_a_block() -> None:
    facts = facts_of("causal", True, 8)
    for steps, passes in ((1, 2), (3, 6), (8, 16), (0, 16)):
        found, counts, _ = decode(hashes(), facts, PROMPTS[2], f"schedule=static,steps={steps}", max_tokens=16)
        assert len(found) == 16
        assert counts.passes == passes


def test_an_end_token_ends_the_text_once_all_before_it_is_filled() -> None:
    joint = {(1, 2, EOS, 5): 1.0}
    runtime = JointRuntime(joint, VOCAB, MASK)
    found, counts, context = decode(runtime, facts_of("causal", False), [0], eos=frozenset([EOS]))
    assert list(map(int, found)) == [1, 2]
    assert context.ids == [0, 1, 2]
    assert counts.passes == 1
    kept, _, _ = decode(runtime, facts_of("causal", False), [0], eos=frozenset([EOS]), ignore_eos=True, max_tokens=4)
    assert list(map(int, kept)) == [1, 2, EOS, 5]


def test_the_text_does_not_depend_on_how_many_tokens_are_wanted() -> None:
    facts = facts_of("causal", True)
    long = decode(hashes(), facts, PROMPTS[3], max_tokens=20)[0]
    for n in (1, 3, 4, 11):
        assert list(map(int, decode(hashes(), facts, PROMPTS[3], max_tokens=n)[0])) == list(map(int, long[:n]))


def test_a_cancelled_text_has_nothing_of_the_block_behind_it() -> None:
    facts = facts_of("causal", True, 8)
    runtime = hashes()
    context = Context(list(PROMPTS[4]), len(PROMPTS[4]), runtime.new_cache(64))
    methods = parse_diffusion("steps=2", "causal").make(DiffusionHost(facts, runtime.capabilities))
    config = GenerationConfig(max_tokens=30)
    loop = diffusion_loop(context, config, methods, facts, Stats(), PassCounts(), frozenset(), runtime.capabilities)
    tokens = run_loop(runtime, loop)
    given = [int(next(tokens)) for _ in range(11)]
    tokens.close()
    assert context.ids == [*PROMPTS[4], *given]
    assert context.cache.length <= len(context.ids)
    # What follows is that of a new text with the same beginning.
    more = decode_on(runtime, facts, context)
    fresh, _, _ = decode(hashes(), facts, context.ids[: len(PROMPTS[4]) + 11], "steps=2", max_tokens=6)
    assert more == list(map(int, fresh))


def decode_on(runtime: Any, facts: DiffusionFacts, context: Context) -> list[int]:
    methods = parse_diffusion("steps=2", facts.context).make(DiffusionHost(facts, runtime.capabilities))
    config = GenerationConfig(max_tokens=6)
    loop = diffusion_loop(context, config, methods, facts, Stats(), PassCounts(), frozenset(), runtime.capabilities)
    return list(map(int, run_loop(runtime, loop)))


def test_a_full_context_ends_the_text_or_is_an_error() -> None:
    facts = facts_of("causal", True, 4)
    found, _, context = decode(hashes(), facts, PROMPTS[0], capacity=10)
    assert len(context.ids) == 10
    assert len(found) == 7
    with pytest.raises(ContextFull):
        decode(hashes(), facts, PROMPTS[0], capacity=10, max_tokens=20)


def test_a_full_context_may_slide() -> None:
    facts, runtime = facts_of("causal", True, 4), hashes()
    context = Context([1, 2, 3], 3, runtime.new_cache(16), sinks=2)
    methods = parse_diffusion("", "causal").make(DiffusionHost(facts, runtime.capabilities))
    loop = diffusion_loop(
        context,
        GenerationConfig(max_tokens=40),
        methods,
        facts,
        Stats(),
        PassCounts(),
        frozenset(),
        runtime.capabilities,
    )
    assert len(list(run_loop(runtime, loop))) == 40
    assert len(context.ids) <= 16


@pytest.mark.parametrize(("context", "shift"), KINDS)
def test_a_constraint_is_kept(context: str, shift: bool) -> None:
    """Tokens are filled from the left then, and each is one that may follow those before it."""
    constraint = SetConstraint(lambda last: [(last + 1) % 7, (last + 3) % 7], VOCAB)
    found, counts, _ = decode(
        hashes(), facts_of(context, shift), PROMPTS[5], "schedule=static:count=4", constraint=constraint, max_tokens=15
    )
    text = [-1, *map(int, found)]
    assert all(b in ((a + 1) % 7, (a + 3) % 7) for a, b in pairwise(text))
    assert constraint.accepted == text[1:]
    assert counts.passes < counts.filled


def test_penalties_and_biases_apply() -> None:
    facts = facts_of("causal", True)
    plain = list(map(int, decode(hashes(), facts, PROMPTS[6], max_tokens=12)[0]))
    banned = {plain[0]: -100.0}
    found = decode(hashes(), facts, PROMPTS[6], max_tokens=12, logit_bias=banned)[0]
    assert plain[0] not in map(int, found)


def test_log_probabilities_come_with_the_tokens() -> None:
    found, _, _ = decode(hashes(), facts_of("causal", True), PROMPTS[6], max_tokens=6, logprobs=3)
    assert all(token.logprob is not None and token.logprob <= 0 and len(token.top) == 3 for token in found)


def test_full_context_runs_the_whole_canvas() -> None:
    facts = facts_of("full", False, 4)
    found, counts, context = decode(hashes(), facts, PROMPTS[0], "schedule=static", max_tokens=8)
    assert len(found) == 8
    assert counts.passes == 8
    assert counts.rows == 8 * (len(PROMPTS[0]) + 8)
    assert context.cache.length == 0


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to continue"):
        decode(hashes(), facts_of("causal", True), [])
