"""Parts of the loop by themselves: what a row shows, which positions may be filled, caches that begin anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from diffusion.texts import MASK, VOCAB, decode

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.decoding.runner import run_loop
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.fits.front import Front
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.loop import PassCounts, diffusion_loop
from edgedec.diffusion.picking import Picker
from edgedec.diffusion.seams import Bridge
from edgedec.diffusion.seen import Line, SeenBlock, see
from edgedec.diffusion.tracing import FillTrace
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


def filled_with(
    runtime: FakeRuntime, facts: DiffusionFacts, words: str, **parts: Any
) -> tuple[list[int], PassCounts, Any]:
    """The tokens after 1 2 3, what its passes did and their record, with these parts instead of those of the words."""
    context, counts, passes = Context([1, 2, 3], 3, runtime.new_cache(64)), PassCounts(), list[FillTrace]()
    methods = replace(parse_diffusion(words, facts.context).make(DiffusionHost(facts, runtime.capabilities)), **parts)
    config = GenerationConfig(max_tokens=12).override({"temperature": 0.0})
    loop = diffusion_loop(context, config, methods, facts, Stats(), counts, frozenset(), runtime.capabilities, passes)
    return list(map(int, run_loop(runtime, loop))), counts, passes


class EarlyEnd:
    """Blocks of four that end as early as they may, from a pass on."""

    def __init__(self, step: int) -> None:
        self._step = step

    def begin(self, canvas: Canvas, start: int) -> int:
        return start + 4

    def cut(self, seen: SeenBlock, canvas: Canvas) -> int:
        return canvas.start if canvas.step >= self._step else canvas.end


def test_a_block_ends_behind_its_first_masked_position_and_what_is_filled() -> None:
    facts = DiffusionFacts(MASK, False, "causal", 4)
    found, counts, _ = filled_with(hashes(), facts, "schedule=static,keep=block", blocks=EarlyEnd(0))
    assert (len(found), counts.blocks, counts.passes, counts.filled) == (12, 12, 12, 12)
    found, counts, passes = filled_with(hashes(), facts, "schedule=static,keep=block", blocks=EarlyEnd(1))
    ends = dict[int, int]()
    for each in passes:
        position = each.fills[0][0]
        if each.step == 0:
            first = each.start + (position == each.start)  # masked after the first pass
            ends[each.start] = min(max(first, position) + 1, each.start + 4)
        elif each.step > 1:
            assert each.end == ends[each.start]
        assert position < ends[each.start]
    assert len(found) == 12
    assert any(end < start + 4 for start, end in ends.items())
    assert sorted(ends)[1:] == [ends[start] for start in sorted(ends)][:-1]


class Ranked(FakeRuntime):
    """Token 0 is the best one everywhere, then 1, 2, …"""

    def head(self, hidden: Any) -> Any:
        return np.tile(-0.01 * np.arange(self.spec.vocab_size, dtype=np.float32), (len(hidden), 1))


class One(Front):
    """Only one token fits."""

    strict = True

    def __init__(self, token: int) -> None:
        self._token = token

    def fits(self, canvas: Canvas, front: int, position: int, token: int) -> bool:
        return token == self._token


class Second:
    """Chooses the second masked position."""

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        return seen.positions[:2][-1:].tolist()


@pytest.mark.parametrize(("token", "second"), [(0, True), (31, True), (32, False), (57, False)])
def test_so_many_tokens_are_tested_where_earlier_ones_are_masked(token: int, second: bool) -> None:
    """The best 32; if none of them fits, the first masked position is filled, of which all are tested."""
    runtime, facts = Ranked(tiny_spec(vocab_size=60)), DiffusionFacts(59, False, "causal", 4)
    found, counts, passes = filled_with(runtime, facts, "keep=block", fits=One(token), schedule=Second())
    assert found == [token] * 12
    assert counts.passes == 12
    first = [each.fills[0][0] - each.start for each in passes if each.step == 0]
    assert first == [int(second)] * 3


class Bridged(One):
    """No token fits anywhere; a gap is filled with one that was not predicted."""

    def bridge(self, canvas: Canvas, front: int) -> Bridge:
        return Bridge(front, front + 1, (7,))


def test_a_gap_that_no_token_fills_is_on_record_where_it_was_bridged() -> None:
    facts = DiffusionFacts(MASK, False, "causal", 4)
    found, counts, passes = filled_with(hashes(), facts, "schedule=static,keep=block", fits=Bridged(-1))
    assert found == [7] * 12
    assert (counts.passes, counts.filled) == (12, 12)
    assert [each.moves for each in passes] == [[Bridge(at, at + 1, (7,))] for at in range(3, 15)]
    assert not any(each.fills for each in passes)
