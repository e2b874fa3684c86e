"""Blocks, ends, keeping and verification: what each does, and that what is called exact is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from diffusion.texts import EOS, MASK, VOCAB, decode

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.diffusion.blocks import FAMILY as BLOCKS
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.ends import FAMILY as ENDS
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.seen import SeenBlock
from edgedec.diffusion.words import SEAMS, parse_diffusion
from edgedec.errors import UsageError
from edgedec.runtime import Call, Capabilities, Rows
from edgedec.testing.fake_runtime import FakeRuntime, random_reference, tiny_spec
from edgedec.testing.joint import JointRuntime, random_joint

FULL = DiffusionFacts(MASK, False, "full", 8)
CAN = Capabilities((), ())
PROMPTS = [list(np.random.default_rng(seed).integers(0, EOS, 3 + seed)) for seed in range(6)]


def hashes() -> FakeRuntime:
    return FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=14.0)


def ints(tokens: Any) -> list[int]:
    return list(map(int, tokens))


def seen(p: list[float], tokens: list[int], first: int = 0) -> SeenBlock:
    best, n = np.array(tokens), len(p)
    both = np.stack([best, best + 1], axis=1)
    return SeenBlock(np.arange(first, first + n), both, np.zeros((n, 2)), np.stack([p, np.zeros(n)], axis=1))


def test_a_delimiter_ends_a_block_where_it_is_sure() -> None:
    host = DiffusionHost(FULL, CAN, lambda: frozenset([7]))
    made = BLOCKS.make("delimiter", host)
    canvas = Canvas([MASK] * 40, MASK, budget=40)
    assert made.begin(canvas, 0) == 10  # a quarter of the budget
    canvas.begin(0, 10)
    assert made.cut(seen([0.9, 0.29, 0.1], [1, 7, 2]), canvas) == 8
    assert made.cut(seen([0.9, 0.3, 0.1], [1, 7, 2]), canvas) == 2
    assert made.cut(seen([0.4, 0.3, 0.5], [7, 1, 7]), canvas) == 3
    canvas.step = 1
    assert made.cut(seen([0.9], [7]), canvas) == 10
    causal = DiffusionHost(DiffusionFacts(MASK, True, "causal", 8), CAN, lambda: frozenset([7]))
    assert BLOCKS.make("delimiter", causal).begin(canvas, 0) == 8


def test_blocks_are_coarse_until_a_thought_ends() -> None:
    host = DiffusionHost(FULL, CAN, token=lambda text: 5 if text == "</think>" else None)
    made = BLOCKS.make("coarse_fine", host, {"think": 16})
    assert made.begin(Canvas.of([1, 2, 3], MASK), 3) == 19
    assert made.begin(Canvas.of([1, 5, 3], MASK), 3) == 7
    assert BLOCKS.make("coarse_fine", host, {"answer": 2}).begin(Canvas.of([5], MASK), 1) == 3
    with pytest.raises(UsageError, match="no such token"):
        BLOCKS.make("coarse_fine", host, {"close": "</thought>"})


def test_a_block_grows_while_its_passes_are_unsure() -> None:
    made = BLOCKS.make("deferred", DiffusionHost(FULL, CAN), {"step": 4, "most": 6, "low": 0.6})
    canvas = Canvas([MASK] * 40, MASK, end=8)
    what = seen([0.5], [1])
    assert made.begin(canvas, 0) == 8
    assert made.cut(what, Canvas([MASK] * 40, MASK, end=8, step=1)) == 8  # nothing was filled yet
    canvas.least = 0.1
    assert made.cut(what, canvas) == 8  # the first pass
    canvas.step, canvas.least = 1, 0.6
    assert made.cut(what, canvas) == 8
    canvas.least = 0.59
    assert made.cut(what, canvas) == 12
    canvas.end = 12
    assert made.cut(what, canvas) == 14


def test_a_window_slides_with_what_is_filled() -> None:
    host = DiffusionHost(DiffusionFacts(MASK, False, "causal", 8), CAN)
    made = BLOCKS.make("sliding", host)
    assert made.begin(Canvas.of([1], MASK), 1) == 9
    assert made.cut(seen([0.5], [1], first=4), Canvas([MASK] * 9, MASK, end=9)) == 12
    assert made.cut(seen([0.5], [1], first=1), Canvas([MASK] * 12, MASK, end=12)) == 12
    with pytest.raises(UsageError, match="goes with keep=reorder"):
        parse_diffusion("blocks=sliding", "causal").make(host)


def test_end_tokens_are_rejected_at_first() -> None:
    made = ENDS.make("rejected", DiffusionHost(FULL, CAN))
    canvas = Canvas([1, 2, *[MASK] * 10], MASK, prompt=2, budget=10)
    assert made.factor(canvas) == pytest.approx(0.4)
    canvas.tokens[2:7] = [3] * 5
    assert made.factor(canvas) == pytest.approx(0.7)
    canvas.tokens[7:] = [3] * 5
    assert made.factor(canvas) == 1
    joint = {(1, 2, 3, EOS): 0.45, (1, 2, 4, EOS): 0.4, (1, 2, 4, 5): 0.15}
    runtime = JointRuntime(joint, VOCAB, MASK)
    orders = []
    for words in ("ends=first", "ends=rejected:factor=0.1"):
        _, counts, _ = decode(
            runtime, FULL, [0], f"schedule=threshold:p=0.8,{words}", eos=frozenset([EOS]), max_tokens=4
        )
        orders.append(counts.filled)
        assert counts.filled <= 4
    assert orders[0] >= orders[1]


def test_an_end_token_cuts_the_canvas() -> None:
    joint = {(1, 2, EOS, *[EOS] * 13): 0.6, (1, 3, EOS, *[EOS] * 13): 0.4}
    rows = {}
    for words in ("ends=first", "ends=cut"):
        found, counts, _ = decode(
            JointRuntime(joint, VOCAB, MASK), FULL, [0], f"schedule=static,{words}", eos=frozenset([EOS]), max_tokens=16
        )
        assert ints(found) == [1, 2]
        rows[words] = counts.rows
    assert rows["ends=cut"] < rows["ends=first"]


@pytest.mark.parametrize("shift", [False, True])
def test_delayed_keys_with_a_refresh_at_each_step_are_exact(shift: bool) -> None:
    facts = DiffusionFacts(MASK, shift, "full", 8)
    for ids in PROMPTS:
        expected, all_counts, _ = decode(hashes(), facts, ids, "schedule=threshold:p=0.4", max_tokens=16)
        found, counts, _ = decode(hashes(), facts, ids, "schedule=threshold:p=0.4,keep=delayed:every=1", max_tokens=16)
        assert ints(found) == ints(expected)
        assert counts.rows == all_counts.rows


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("keep", ["delayed:every=4", "window:every=6,wide=10,near=5"])
def test_lossy_keys_run_fewer_rows(keep: str, shift: bool) -> None:
    facts, rows, all_rows = DiffusionFacts(MASK, shift, "full", 8), 0, 0
    for ids in PROMPTS:
        found, counts, context = decode(hashes(), facts, ids, f"schedule=static,keep={keep}", max_tokens=24)
        assert len(found) == 24
        assert MASK not in ints(found)
        assert context.cache.length == 0
        rows += counts.rows
        all_rows += decode(hashes(), facts, ids, "schedule=static", max_tokens=24)[1].rows
    assert rows < 0.7 * all_rows


def test_keys_that_are_kept_a_step_late_are_seen_by_later_rows() -> None:
    """With conditionals of a joint distribution, stale keys of tokens say as much as fresh ones: nothing is lost."""
    joint = random_joint(5, 8, 3, 9)
    for keep in ("delayed", "window:every=3,wide=8,near=8"):
        expected, _, _ = decode(JointRuntime(joint, 5, 4), _joint_facts(), [0], "schedule=static", max_tokens=8)
        found, counts, _ = decode(
            JointRuntime(joint, 5, 4), _joint_facts(), [0], f"schedule=static,keep={keep}", max_tokens=8
        )
        assert ints(found) == ints(expected)
        assert counts.rows < 8 * 9


def _joint_facts() -> DiffusionFacts:
    return DiffusionFacts(4, False, "full", 8)


@pytest.mark.parametrize("states", [2, 4, 8])
@pytest.mark.parametrize(("context", "shift"), [("causal", True), ("causal", False), ("block", True), ("block", False)])
def test_branches_are_statics_text_in_fewer_passes(context: Any, shift: bool, states: int) -> None:
    facts, passes, fewer = DiffusionFacts(MASK, shift, context, 8), 0, 0
    for ids in PROMPTS:
        expected, all_counts, _ = decode(hashes(), facts, ids, "schedule=static", max_tokens=20)
        words = f"schedule=static,verify=branches:states={states}"
        found, counts, _ = decode(hashes(), facts, ids, words, max_tokens=20)
        assert ints(found) == ints(expected)
        assert counts.passes <= all_counts.passes
        drawn = [decode(hashes(), facts, ids, w, max_tokens=20, temperature=0.9)[0] for w in (words, "schedule=static")]
        assert ints(drawn[0]) == ints(drawn[1])
    tokens = tuple(int(t) for t in np.random.default_rng(3).integers(0, 6, 32))
    for words in ("schedule=static", f"schedule=static,verify=branches:states={states}"):
        runtime = JointRuntime({tokens: 1.0}, VOCAB, MASK, start=8, shift=shift)
        found, counts, _ = decode(runtime, facts, list(range(6, 14)), words, max_tokens=32)
        assert ints(found) == list(tokens)
        passes, fewer = (counts.passes, fewer) if "branches" not in words else (passes, counts.passes)
    assert passes == 32
    assert fewer <= 0.7 * passes


def test_branches_stop_at_the_end_of_the_context() -> None:
    facts, ids = DiffusionFacts(MASK, True, "causal", 8), PROMPTS[0]
    for capacity in range(len(ids) + 9, len(ids) + 33, 4):
        options = {"capacity": capacity, "max_tokens": capacity - len(ids)}
        expected, _, _ = decode(hashes(), facts, ids, "schedule=static", **options)  # type: ignore[arg-type]
        found, _, _ = decode(hashes(), facts, ids, "schedule=static,verify=branches:states=4", **options)  # type: ignore[arg-type]
        assert ints(found) == ints(expected)
        assert len(found) == capacity - len(ids)


def test_branches_go_with_static_only() -> None:
    host = DiffusionHost(DiffusionFacts(MASK, True, "causal", 8), CAN)
    with pytest.raises(UsageError, match="goes with schedule=static only"):
        parse_diffusion("verify=branches", "causal").make(host)
    with pytest.raises(UsageError, match="states=64: blocks of 8 make 512 rows"):
        parse_diffusion("schedule=static,verify=branches:states=64", "causal").make(host)


def test_a_reordered_prefix_is_that_of_reading_the_text() -> None:
    facts, filled = DiffusionFacts(MASK, False, "causal", 8), 0
    for ids in PROMPTS:
        runtime = random_reference(tiny_spec(vocab_size=VOCAB))
        words = "schedule=entropy:most=2.5,blocks=sliding,keep=reorder"
        found, counts, context = decode(runtime, facts, ids, words, max_tokens=20)
        assert len(found) == 20
        filled += counts.filled - counts.passes
        cache = runtime.new_cache(64)
        runtime.forward([Call(Rows.chain(context.ids[: context.cache.length], 0), cache)])
        cache.commit(range(context.cache.length))
        assert context.cache.length > len(ids)
        for name, array in cache.save().items():
            np.testing.assert_allclose(array, context.cache.save()[name], rtol=1e-5, atol=3e-5)
    assert filled > 10


def test_every_method_decodes_what_it_is_for() -> None:
    """Each method of each seam, on each model that it declares."""
    ran = 0
    for seam, family in SEAMS.items():
        for name in family.names():
            for context in family.facts(name).contexts:
                for shift in (False, True):
                    facts = DiffusionFacts(MASK, shift, context, 8)
                    needs = family.facts(name).needs
                    words = f"{seam}={name}" + (f",{needs}" if needs else "")
                    try:
                        found, _, _ = decode(hashes(), facts, PROMPTS[2], words, max_tokens=16)
                    except UsageError:
                        lacking = ("coarse_fine", "fixed", "grammar", "learned")  # a tokenizer, a form, …
                        assert (name, shift) in (("reorder", True), ("sliding", True)) or name in lacking
                        continue
                    assert len(found) == 16, words
                    assert MASK not in ints(found)
                    ran += 1
    assert ran > 80


def test_a_method_is_refused_for_other_models() -> None:
    host = DiffusionHost(DiffusionFacts(MASK, True, "causal", 8), CAN)
    with pytest.raises(UsageError, match="keep=delayed: is for models with full context; this one has causal"):
        parse_diffusion("keep=delayed", "causal").make(host)
    with pytest.raises(UsageError, match="is for models without shift"):
        parse_diffusion("keep=reorder", "causal").make(host)
