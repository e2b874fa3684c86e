"""Parts of a block in turn (D02's sub-block cache), beside the same without any cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from diffusion.texts import EOS, MASK, VOCAB, decode

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.cache import Cache
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.keeping import subblock
from edgedec.diffusion.keeping.none import WithoutCache
from edgedec.diffusion.seams import PassPlan
from edgedec.runtimes.reference import Reference
from edgedec.testing.fake_runtime import FakeRuntime, random_reference, tiny_spec
from edgedec.testing.joint import JointRuntime, random_joint

PROMPTS = [list(np.random.default_rng(seed).integers(0, EOS, 3 + seed)) for seed in range(6)]
KINDS = [("causal", False), ("causal", True), ("block", False), ("block", True)]


def hashes() -> FakeRuntime:
    return FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=14.0)


def one_layer() -> Reference:
    return random_reference(tiny_spec(n_layers=1, vocab_size=VOCAB))


class PartsWithoutCache(WithoutCache):
    """The oracle: all rows in every pass, of which only the part's positions are shown."""

    def __init__(self, host: DiffusionHost, size: int) -> None:
        super().__init__(host)
        self._size = size

    def plan(self, canvas: Canvas, cache: Cache) -> PassPlan:
        plan = super().plan(canvas, cache)
        first = canvas.masked()[0]
        end = first - (first - canvas.start) % self._size + self._size
        return PassPlan(plan.rows, plan.commit, plan.logits_from, tuple(i if i < end else -1 for i in plan.shown))


@pytest.mark.parametrize(("context", "shift"), KINDS)
@pytest.mark.parametrize("schedule", ["static", "threshold:p=0.05"])
def test_rows_of_one_layer_are_those_without_a_cache(
    context: Any, shift: bool, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row's key depends on its own token there, so nothing of another part is out of date."""
    facts, fewer, parallel = DiffusionFacts(MASK, shift, context, 12), 0, 0
    words = f"schedule={schedule},keep=subblock:size=4"
    found = [decode(one_layer(), facts, ids, words, max_tokens=30) for ids in PROMPTS]
    monkeypatch.setattr(subblock, "SubBlocks", PartsWithoutCache)
    for ids, (text, counts, context_after) in zip(PROMPTS, found, strict=True):
        oracle, all_counts, _ = decode(one_layer(), facts, ids, words, max_tokens=30)
        assert list(map(int, text)) == list(map(int, oracle))
        assert counts.passes == all_counts.passes
        assert context_after.cache.length <= len(context_after.ids)
        fewer += all_counts.rows - counts.rows
        parallel += counts.filled - counts.passes
    assert fewer > (1000 if schedule == "static" else 300)
    assert (parallel > 0) is (schedule != "static")


def test_only_the_rows_of_a_part_are_run() -> None:
    facts = DiffusionFacts(MASK, False, "causal", 8)
    _, counts, context = decode(hashes(), facts, PROMPTS[0], "schedule=static,keep=subblock:size=4", max_tokens=8)
    _, whole, _ = decode(hashes(), facts, PROMPTS[0], "schedule=static", max_tokens=8)
    assert (counts.passes, whole.passes) == (8, 8)
    assert counts.rows < whole.rows == len(PROMPTS[0]) + 8 * 8
    assert context.cache.length <= len(PROMPTS[0])


def test_a_part_as_long_as_the_block_is_the_block_cache() -> None:
    for context, shift in KINDS:
        facts = DiffusionFacts(MASK, shift, context, 8)  # type: ignore[arg-type]
        for ids in PROMPTS:
            found, _, _ = decode(hashes(), facts, ids, "keep=subblock", max_tokens=20)
            assert list(map(int, found)) == list(map(int, decode(hashes(), facts, ids, "", max_tokens=20)[0]))


def test_parts_are_filled_one_after_another() -> None:
    joint = random_joint(5, 8, 3, 9)
    facts = DiffusionFacts(4, False, "causal", 8)
    words = "schedule=static,keep=subblock:size=4"
    found, _, _ = decode(JointRuntime(joint, 5, 4), facts, [0], words, max_tokens=8)
    small, _, _ = decode(JointRuntime(joint, 5, 4), facts, [0], "schedule=static,blocks=fixed:size=4", max_tokens=8)
    assert list(map(int, found)) == list(map(int, small))


def test_it_is_lossy_through_several_layers_and_leaves_nothing_out_of_date() -> None:
    facts, differs = DiffusionFacts(MASK, True, "causal", 12), 0
    for ids in PROMPTS:
        runtime = random_reference(tiny_spec(vocab_size=VOCAB))
        words = "schedule=static,keep=subblock:size=4"
        text, _, context = decode(runtime, facts, ids, words, max_tokens=18)
        again = random_reference(tiny_spec(vocab_size=VOCAB))
        whole, _, _ = decode(again, facts, ids, "schedule=static", max_tokens=18)
        differs += list(map(int, text)) != list(map(int, whole))
        kept = context.cache.length
        fresh = random_reference(tiny_spec(vocab_size=VOCAB))
        _, _, other = decode(fresh, facts, context.ids[:kept] or ids, "schedule=static", max_tokens=1)
        n = min(kept, other.cache.length)
        assert n > 0
        ours = context.cache.save()
        for name, array in other.cache.save().items():
            if name.startswith("kv."):
                np.testing.assert_allclose(array[:, :, :n], ours[name][:, :, :n], atol=1e-5)
    assert differs
