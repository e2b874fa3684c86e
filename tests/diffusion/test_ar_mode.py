"""Self-speculation (D31): the law of blocks of one token, whatever was drafted, in fewer calls; and its routes."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
from diffusion.texts import EOS, MASK, VOCAB, decode

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.seen import SeenBlock
from edgedec.diffusion.verify.ar_mode import _first_run, _plan, expected, make
from edgedec.diffusion.words import parse_diffusion
from edgedec.errors import UsageError
from edgedec.runtime import Capabilities
from edgedec.testing.fake_runtime import FakeRuntime, tiny_spec
from edgedec.testing.joint import JointRuntime, random_joint
from edgedec.testing.stats import chi_square

ALWAYS = "verify=ar_mode:route=always"
COUNT = 200 if os.environ.get("EDGEDEC_SLOW_TESTS") else 20
PROMPTS = [list(np.random.default_rng(seed).integers(0, EOS, 3 + seed % 9)) for seed in range(COUNT)]


def hashes(spread: float = 14.0) -> FakeRuntime:
    return FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=spread)


def ints(tokens: Any) -> list[int]:
    return list(map(int, tokens))


@pytest.mark.parametrize("shift", [False, True])
def test_always_on_and_greedy_it_is_the_text_of_blocks_of_one_token(shift: bool) -> None:
    facts, verified, other = DiffusionFacts(MASK, shift, "causal", 8), 0, 0
    for ids in PROMPTS:
        found, counts, context = decode(hashes(), facts, ids, ALWAYS, max_tokens=21)
        expected_text, _, _ = decode(hashes(), facts, ids, "blocks=fixed:size=1", max_tokens=21)
        assert ints(found) == ints(expected_text)
        assert context.cache.length <= len(context.ids)
        verified += counts.passes - counts.blocks
        other += ints(found) != ints(decode(hashes(), facts, ids, "schedule=static", max_tokens=21)[0])
    assert verified > 10 * COUNT
    assert other > COUNT / 2  # it is not the text of one token a pass


@pytest.mark.parametrize("shift", [False, True])
def test_drafts_that_are_right_take_two_calls_a_block(shift: bool) -> None:
    tokens = tuple(int(t) for t in np.random.default_rng(3).integers(0, 6, 32))
    facts = DiffusionFacts(MASK, shift, "causal", 8)
    runtime = JointRuntime({tokens: 1.0}, VOCAB, MASK, start=8, shift=shift)
    found, counts, _ = decode(runtime, facts, list(range(6, 14)), ALWAYS, max_tokens=32)
    assert ints(found) == list(tokens)
    assert counts.passes == 8
    # A chain of seven drafts; without shift eight masks after them, and with it the last token before the block again.
    blocks = 8 + 3 * 8 + 4 * 8
    assert counts.rows == blocks + 4 * (7 if shift else 15)


@pytest.mark.parametrize("shift", [False, True])
def test_what_is_drawn_has_the_law_of_one_token_after_another(shift: bool) -> None:
    """Three that depend on each other: drafts of one pass are drawn from the product, and corrected."""
    joint = random_joint(3, 3, 3, 12, sharp=2.0)
    facts = DiffusionFacts(4, shift, "causal", 3)
    tally: Counter[tuple[int, ...]] = Counter()
    passes = 0
    for seed in range(500):
        runtime = JointRuntime(joint, 5, 4, shift=shift)
        found, counts, _ = decode(runtime, facts, [0], ALWAYS, seed=seed, max_tokens=3, temperature=1.0)
        tally[tuple(ints(found))] += 1
        passes += counts.passes
    assert set(tally) <= set(joint)
    texts = list(joint)
    statistic, critical = chi_square([tally[text] for text in texts], [joint[text] for text in texts])
    assert statistic < critical
    assert passes < 6 * 500  # some drafts were accepted
    assert passes > 2 * 500  # and some were not


def seen(entropy: list[float], positions: list[int] | None = None) -> SeenBlock:
    n = len(entropy)
    at = np.array(positions if positions is not None else range(n))
    pair = np.ones((n, 2))
    return SeenBlock(at, pair.astype(int), pair, pair / 2, np.array(entropy))


def test_what_is_expected_to_be_accepted() -> None:
    half = float(np.log(100)) / 2
    assert expected(seen([0.0, half, 0.0]), 3, 100) == pytest.approx(1 + 2 * np.exp(-0.5))
    assert expected(seen([0.0, half, 0.0]), 1, 100) == 1
    assert _first_run([3, 4, 5, 7, 8]) == [3, 4, 5]
    assert _first_run([3]) == [3]


def worth(what: SeenBlock, size: int, **options: Any) -> bool:
    host = DiffusionHost(DiffusionFacts(MASK, True, "causal", 32), Capabilities((), ()))
    return make(host, **options)._worth(what, size, 100)


def test_routes() -> None:
    sure = seen([0.0] * 9)
    assert [worth(sure, n, route="span") for n in (7, 8)] == [False, True]
    assert [worth(sure, n, route="score", cost=3) for n in (2, 3)] == [False, True]
    assert [worth(sure, n, route="score", cost=3, least=0.5) for n in (3, 4)] == [False, True]
    assert worth(sure, 1, route="always")
    host = DiffusionHost(DiffusionFacts(MASK, True, "causal", 32), Capabilities((), ()))
    turns = make(host, route="hysteresis", cost=7)
    assert [turns._worth(sure, n, 100) for n in (7, 8, 7, 2, 1, 7, 8)] == [False, True, True, True, False, False, True]


def test_a_route_that_is_never_taken_is_the_schedule() -> None:
    facts = DiffusionFacts(MASK, True, "causal", 8)
    for ids in PROMPTS[:6]:
        found, counts, _ = decode(hashes(), facts, ids, "verify=ar_mode:route=span,span=9", max_tokens=20)
        plain, plain_counts, _ = decode(hashes(), facts, ids, "", max_tokens=20)
        assert (ints(found), counts.passes) == (ints(plain), plain_counts.passes)


def test_rows_of_a_verifying_call() -> None:
    canvas = Canvas([5, 6, 7, MASK, MASK, MASK], MASK, start=2, end=6)
    plan = _plan(canvas, 1, [8, 9], 3)
    assert plan.rows.tokens.tolist() == [7, 8, 9, MASK, MASK, MASK]
    assert plan.rows.positions.tolist() == [2, 3, 4, 3, 4, 5]
    assert plan.rows.parents.tolist() == [-1, 0, 1, 0, 1, 2]
    assert (plan.logits_from, plan.commit) == (3, ())
    shifted = _plan(canvas, 1, [8, 9], 0)
    assert (shifted.rows.tokens.tolist(), shifted.logits_from) == ([7, 8, 9], 0)
    assert _plan(canvas, 0, [7, 8], 0).logits_from == 0


def test_processors_fill_from_the_front_as_without_it() -> None:
    facts = DiffusionFacts(MASK, True, "causal", 8)
    options = {"repetition_penalty": 1.3, "max_tokens": 12}
    found, _, _ = decode(hashes(), facts, PROMPTS[0], ALWAYS, **options)
    assert ints(found) == ints(decode(hashes(), facts, PROMPTS[0], "", **options)[0])


def test_logprobs_are_those_of_the_verifying_row() -> None:
    facts = DiffusionFacts(MASK, True, "causal", 4)
    found, _, _ = decode(hashes(), facts, PROMPTS[1], ALWAYS, max_tokens=8, logprobs=1)
    alone, _, _ = decode(hashes(), facts, PROMPTS[1], "blocks=fixed:size=1", max_tokens=8, logprobs=1)
    assert [(int(t), t.logprob) for t in found] == [(int(t), t.logprob) for t in alone]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("verify=ar_mode:on=-6", "on=-6: must be at least off=-5"),
        ("verify=ar_mode,keep=none", "goes with keep=block only"),
        ("verify=branches,schedule=static,keep=subblock", "goes with exact keys"),
    ],
)
def test_what_does_not_go_together_is_refused(words: str, message: str) -> None:
    host = DiffusionHost(DiffusionFacts(MASK, True, "causal", 8), Capabilities((), ()))
    with pytest.raises(UsageError, match=message):
        parse_diffusion(words, "causal").make(host)
    with pytest.raises(UsageError, match="blocks of 8 make 16 rows, and a call takes 15"):
        make(DiffusionHost(DiffusionFacts(MASK, True, "causal", 8), Capabilities((), (), largest_call=15)))
