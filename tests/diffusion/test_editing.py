"""Filled tokens that are replaced (LLaDA2.1): the rule written out without a cache, and rules that are nearly it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from diffusion.texts import EOS, MASK, VOCAB, decode

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.decoding.runner import run_loop
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.fits import FAMILY
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.loop import PassCounts, diffusion_loop
from edgedec.diffusion.seen import SeenBlock
from edgedec.diffusion.tracing import FillTrace
from edgedec.diffusion.words import parse_diffusion
from edgedec.errors import UsageError
from edgedec.runtime import Capabilities, Rows, logits_of
from edgedec.testing.fake_runtime import FakeRuntime, tiny_spec
from edgedec.testing.fakes import SetConstraint
from edgedec.testing.joint import JointRuntime

PROMPTS = [list(map(int, np.random.default_rng(seed).integers(0, EOS, 3 + seed))) for seed in range(8)]
BLOCK = DiffusionFacts(MASK, False, "block", 6)
N = 14


def hashes() -> FakeRuntime:
    """Logits of hashes: any row that sees anything else gives other tokens, so edits go on and on."""
    return FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=14.0)


def ints(tokens: Any) -> list[int]:
    return list(map(int, tokens))


@dataclass(frozen=True)
class Rule:
    """LLaDA2.1's two thresholds and the passes over a filled block; what a rule that is nearly it does besides."""

    fill: float = 0.4
    edit: float = 0.3
    most: int = 3
    prompts: bool = False  # also edits the prompt's tokens in the block
    late: bool = False  # edits only once all is filled
    over: bool = False  # counts passes from the first one on


def written_out(ids: list[int], rule: Rule, context: str = "block") -> list[int]:
    """The text of a model without shift, every pass of which reads everything anew."""
    runtime, size, tokens = hashes(), BLOCK.block, list(ids)
    tokens += [MASK] * N if context == "full" else []
    while len(known := [token for token in tokens if token != MASK]) < len(ids) + N:
        given = len(known)
        start = given // size * size if context == "block" else given
        end = min(start + size, len(tokens)) if context == "full" else start + size
        tokens += [MASK] * (end - len(tokens))
        passes, own = 0, start if rule.prompts else given
        while True:
            masked = [i for i in range(start, end) if tokens[i] == MASK]
            passes += rule.over or not masked
            if passes > rule.most and not masked:
                break
            best, p = guesses(runtime, tokens, start, context)
            filled = [i for i in masked if p[i] > rule.fill] or sorted(masked, key=lambda i: -p[i])[:1]
            edited = [i for i in range(own, end) if i not in masked and best[i] != tokens[i] and p[i] > rule.edit]
            for i in [*filled, *(edited if not (rule.late and masked) else [])]:
                tokens[i] = best[i]
            if not masked and not edited:
                break
    return tokens[len(ids) : len(ids) + N]


def guesses(runtime: FakeRuntime, tokens: list[int], start: int, context: str) -> tuple[list[int], list[float]]:
    """Of each position the best token but the mask, and its probability."""
    at = np.arange(len(tokens))
    groups = {"block": at // BLOCK.block, "full": at * 0, "causal": np.where(at < start, -1, 0)}[context]
    rows = Rows(np.array(tokens), at, at - 1, groups=groups)
    logits = logits_of(runtime, rows, runtime.new_cache(64)).astype(np.float64)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    p[:, MASK] = 0
    return ints(p.argmax(axis=1)), p.max(axis=1).tolist()


def words_of(rule: Rule, more: str = "") -> str:
    return f"schedule=threshold:p={rule.fill},fits=edit:p={rule.edit},most={rule.most}{more}"


RULES = [Rule(), Rule(0.3, 0.0, 2), Rule(0.2, 0.4, 16), Rule(0.6, 0.2, 0), Rule(0.3, 0.3, 1)]


@pytest.mark.parametrize("context", ["block", "causal", "full"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_text_is_that_of_the_rule_written_out(rule: Rule, context: Any) -> None:
    edited, facts = 0, replace(BLOCK, context=context)
    for ids in PROMPTS:
        found, counts, held = decode(hashes(), facts, ids, words_of(rule), max_tokens=N)
        assert ints(found) == written_out(ids, rule, context)
        assert MASK not in ints(found)
        assert held.ids == [*ids, *ints(found)]
        edited += counts.edited
    assert edited > 5


@pytest.mark.parametrize(
    "wrong",
    [
        Rule(fill=0.45),
        Rule(edit=0.35),
        Rule(edit=1.0),
        Rule(most=2),
        Rule(most=4),
        Rule(prompts=True),
        Rule(late=True),
        Rule(over=True),
    ],
    ids=str,
)
def test_rules_that_are_nearly_it_give_other_texts(wrong: Rule) -> None:
    texts = [ints(decode(hashes(), BLOCK, ids, words_of(Rule()), max_tokens=N)[0]) for ids in PROMPTS]
    assert texts == [written_out(ids, Rule()) for ids in PROMPTS]
    assert texts != [written_out(ids, wrong) for ids in PROMPTS]


def test_a_pass_that_changes_nothing_is_the_last() -> None:
    joint = {(1, 2, 3, 4, 5, 6): 1.0}
    runtime = JointRuntime(joint, VOCAB, MASK, start=0)
    words = "schedule=threshold:p=0.5,fits=edit:most={}"
    for most, passes in ((0, 1), (1, 2), (16, 2)):
        found, counts, _ = decode(runtime, BLOCK, [1], words.format(most), max_tokens=5)
        assert (ints(found), counts.passes, counts.edited, counts.filled) == ([2, 3, 4, 5, 6], passes, 0, 5)


def test_what_one_pass_cannot_know_is_put_right() -> None:
    """Each position alone is most probably 1 and 6, which no text has; beside a 1 only 5 may stand."""
    joint = {(1, 5): 0.4, (2, 6): 0.3, (3, 6): 0.3}
    facts = DiffusionFacts(MASK, False, "causal", 2)
    words = "schedule=threshold:p=0.3,blocks=fixed,keep=block"
    texts = {
        fits: decode(JointRuntime(joint, VOCAB, MASK), facts, [0], f"{words},fits={fits}", max_tokens=2)[:2]
        for fits in ("front", "edit", "edit:p=0.6", "edit:p=1")
    }
    assert [ints(found) for found, _ in texts.values()] == [[1, 6], [1, 5], [1, 5], [1, 6]]
    assert [counts.edited for _, counts in texts.values()] == [0, 1, 1, 0]
    assert [counts.passes for _, counts in texts.values()] == [1, 3, 3, 2]


def test_only_what_another_token_is_surer_of_is_replaced() -> None:
    made = FAMILY.make("edit", DiffusionHost(BLOCK, Capabilities((), ())))
    best, p = np.array([[4, 0], [7, 0], [8, 0], [9, 0]]), np.array([[0.9, 0], [0.51, 0], [0.5, 0], [0.8, 0]])
    seen = SeenBlock(np.array([1, 2, 3, 5]), best, np.zeros((4, 2)), p)
    assert made.replaced(Canvas([0, 4, 5, 6, MASK, 9], MASK), seen) == [2]
    assert made.replaced(Canvas([0, 4, 7, 6, MASK, 3], MASK), seen) == [5]
    assert made.edits == 16
    assert FAMILY.make("front", DiffusionHost(BLOCK, Capabilities((), ()))).edits == -1


CASES = list(product(("causal", "block"), (False, True)))


@pytest.mark.parametrize(("context", "shift"), CASES)
def test_the_block_cache_is_exact(context: Any, shift: bool) -> None:
    """A finished block alone is kept; with shift a block's first token, which a row before it predicts, stays."""
    facts, words, edited, rows = DiffusionFacts(MASK, shift, context, 6), words_of(Rule()), 0, 0
    for i, ids in enumerate(PROMPTS):
        for options in ({}, {"temperature": 0.8}):
            expected, oracle, _ = decode(hashes(), facts, ids, words + ",keep=none", seed=i, max_tokens=N, **options)
            found, counts, _ = decode(hashes(), facts, ids, words, seed=i, max_tokens=N, **options)
            assert ints(found) == ints(expected)
            assert len(found) == N
            assert (counts.passes, counts.edited) == (oracle.passes, oracle.edited)
            edited, rows = edited + counts.edited, rows + oracle.rows - counts.rows
    assert edited > 20
    assert rows > 100


def test_the_text_does_not_depend_on_how_many_tokens_are_wanted() -> None:
    long = ints(decode(hashes(), BLOCK, PROMPTS[3], words_of(Rule()), max_tokens=20)[0])
    for n in (1, 3, 8, 13):
        assert ints(decode(hashes(), BLOCK, PROMPTS[3], words_of(Rule()), max_tokens=n)[0]) == long[:n]


def loop_of(context: Context, runtime: FakeRuntime, trace: list[FillTrace] | None = None) -> Any:
    methods = parse_diffusion(words_of(Rule()), "block").make(DiffusionHost(BLOCK, runtime.capabilities))
    config = GenerationConfig(max_tokens=N).override({"temperature": 0.0})
    return diffusion_loop(
        context, config, methods, BLOCK, Stats(), PassCounts(), frozenset(), runtime.capabilities, trace
    )


def test_the_record_of_passes_has_every_replacement() -> None:
    runtime, passes = hashes(), list[FillTrace]()
    context = Context(list(PROMPTS[1]), len(PROMPTS[1]), runtime.new_cache(64))
    found, cells, replaced = ints(run_loop(runtime, loop_of(context, runtime, passes))), dict[int, int](), 0
    for position, token, sure in (fill for each in passes for fill in each.fills):
        assert sure is not None
        replaced += position in cells
        cells[position] = token
    assert [cells[len(PROMPTS[1]) + i] for i in range(N)] == found
    assert replaced > 0


def test_a_cancelled_text_has_nothing_that_might_change() -> None:
    runtime = hashes()
    context = Context(list(PROMPTS[2]), len(PROMPTS[2]), runtime.new_cache(64))
    loop = loop_of(context, runtime)
    tokens = run_loop(runtime, loop)
    given = [int(next(tokens)) for _ in range(8)]
    tokens.close()
    assert context.ids == [*PROMPTS[2], *given]
    assert context.cache.length <= len(context.ids)
    assert given == written_out(PROMPTS[2], Rule())[:8]


def test_an_end_token_may_be_replaced_before_it_ends_the_text() -> None:
    joint = {(EOS, 5): 0.4, (2, 6): 0.3, (2, 7): 0.3}
    facts = DiffusionFacts(MASK, False, "causal", 2)
    texts = {
        fits: ints(
            decode(
                JointRuntime(joint, VOCAB, MASK),
                facts,
                [0],
                f"schedule=static:count=2,keep=block,blocks=fixed,fits={fits},steps=1",
                eos=frozenset([EOS]),
                max_tokens=2,
            )[0]
        )
        for fits in ("front", "edit:p=0.5")
    }
    assert texts == {"front": [2, 5], "edit:p=0.5": []}


@pytest.mark.parametrize(
    ("words", "context", "shift", "message"),
    [
        ("keep=subblock", "causal", True, "keep=subblock: needs filled tokens to stay, and fits=edit replaces them"),
        ("keep=delayed", "full", False, "keep=delayed: needs filled tokens"),
        ("keep=window", "full", False, "keep=window: needs filled tokens"),
        ("keep=reorder", "causal", False, "keep=reorder: needs filled tokens"),
        ("ends=cut", "block", False, "ends=cut: needs filled tokens"),
        ("schedule=static,verify=branches", "block", False, "verify=branches: needs filled tokens"),
        ("verify=ar_mode", "block", False, "verify=ar_mode: needs filled tokens"),
    ],
)
def test_what_needs_tokens_to_stay_is_refused(words: str, context: Any, shift: bool, message: str) -> None:
    facts = DiffusionFacts(MASK, shift, context, 4)
    with pytest.raises(UsageError, match=message) as found:
        decode(hashes(), facts, PROMPTS[0], f"{words},fits=edit", max_tokens=8)
    assert "\n" not in str(found.value)
    decode(hashes(), facts, PROMPTS[0], words, max_tokens=8)


@pytest.mark.parametrize(
    "options", [{"repetition_penalty": 1.2}, {"logit_bias": {3: 1.0}}, {"constraint": None}, {"min_tokens": 2}]
)
def test_settings_that_depend_on_the_tokens_before_are_refused(options: dict[str, Any]) -> None:
    if "constraint" in options:
        options = {"constraint": SetConstraint(lambda last: [(last + 1) % 7], VOCAB)}
    eos = frozenset([EOS])
    with pytest.raises(UsageError, match="fits=edit: replaces tokens that others were chosen after") as found:
        decode(hashes(), BLOCK, PROMPTS[0], "fits=edit", max_tokens=8, eos=eos, **options)
    assert "\n" not in str(found.value)
    decode(hashes(), BLOCK, PROMPTS[0], "", max_tokens=8, eos=eos, **options)
