"""A drawn draft merged with other drafters' guesses keeps the target's distribution, under every verifier.

The joint law of three tokens is compared by chi-square, as in `test_drafter_model`; `WRONG` merges that break the
rules must fail the very same test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from loops import decode
from statistical.test_drafter_model import DRAWS, PROMPT, SAMPLING, TEXTS, TOKENS, VOCAB, drafter, expected, target

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import Stats
from edgedec.decoding.verify import FAMILY as VERIFIERS
from edgedec.drafters import Draft
from edgedec.speculation import decide
from edgedec.speculation.costs import Costs
from edgedec.speculation.decide import beyond, with_guesses
from edgedec.speculation.governor import Governor
from edgedec.testing.fakes import RandomDrafter
from edgedec.testing.stats import chi_square
from edgedec.trees.merge import TreeMerger

VERIFICATIONS = ("match", *VERIFIERS.shipped)

pytestmark = pytest.mark.usefixtures("ticking")

DRAWN = [name for name in VERIFICATIONS if name != "match"]


def fit(verify: str) -> tuple[float, float, Counter[str]]:
    """(statistic, critical value, what was accepted by drafter) of many texts."""
    runtime, rng, counts, by = target(), np.random.default_rng(5), Counter[tuple[int, ...]](), Counter[str]()
    members = [("model", drafter(verify)), ("random", RandomDrafter(3, VOCAB))]
    governor = Governor(members, lambda: Costs({1: 1.0, 32: 1.1}), fixed=12)
    for _ in range(DRAWS):
        context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(16), rng=rng)
        governor.reset()
        trace: list[StepTrace] = []
        tokens = decode(runtime, context, GenerationConfig(SAMPLING), governor, Stats(), trace)
        counts[tuple(map(int, islice(tokens, TOKENS)))] += 1
        tokens.close()
        by.update(step.draft.by[row - 1] for step in trace for row in step.step.path[1:] if step.draft.tokens)
    return *chi_square([counts[text] for text in TEXTS], expected()), by


@pytest.mark.parametrize("verify", DRAWN)
def test_the_distribution_is_kept(verify: str) -> None:
    statistic, critical, by = fit(verify)
    assert by["model"] > DRAWS / 6
    assert by["random"] > DRAWS / 20, "guesses beside the drawn ones were accepted"
    assert statistic < critical


def leave_out(drawn: Draft, merger: TreeMerger, nodes: Sequence[int], by: Sequence[str], name: str) -> Draft:
    """Drawn tokens that a constraint or a cut would not have liked are dropped for what they are."""
    assert drawn.sampled is not None
    n = next((i for i, token in enumerate(drawn.tokens) if token == 0), len(drawn.tokens))
    probs = drawn.sampled.probs[:n]
    kept = Draft(drawn.tokens[:n], drawn.parents[:n], by=[name] * n)
    return replace(kept, sampled=replace(drawn.sampled, probs=probs))


def as_drawn(drawn: Draft, merger: TreeMerger, nodes: Sequence[int], by: Sequence[str], name: str) -> Draft:
    """Guesses claim to have been drawn as well."""
    whole = with_guesses(drawn, merger, nodes, by, name)
    assert whole.sampled is not None
    more = [whole.sampled.probs[0]] * (len(whole.tokens) - len(whole.sampled.probs))
    return replace(whole, sampled=replace(whole.sampled, probs=[*whole.sampled.probs, *more]))


@pytest.mark.parametrize(
    ("wrong", "verify"), [(leave_out, "token"), (leave_out, "block"), (as_drawn, "spectr"), (as_drawn, "multipath")]
)
def test_wrong_merges_are_caught(wrong: object, verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "with_guesses", wrong)
    statistic, critical, _ = fit(verify)
    assert statistic > critical


def test_what_is_merged() -> None:
    """drawn 5 -> 6 and 5 again; guesses 5 -> 7, 6 and 8 -> 9: rows that are drawn already are not run twice."""
    from edgedec.drafters import Sampled
    from edgedec.sampling import Probs

    law = Probs(np.arange(10), np.full(10, 0.1))
    drawn = Draft((5, 6, 5), (-1, 0, -1), (0.5, 0.5, 0.5), sampled=Sampled("spectr", [law] * 3))
    merger = TreeMerger()
    estimates = [(k + 0.5) / 24 for k in range(24)]
    merger.add(1, Draft((5, 7, 6, 8, 9), (-1, 0, -1, -1, 3), (0.9, 0.8, 0.3, 0.2, 0.9)), estimates)
    order = beyond(drawn, merger, merger.best_first())
    assert [merger.tokens[node] for node in sorted(order)] == [7, 6, 8, 9]
    merged = with_guesses(drawn, merger, order, ["model", "copy"], "model")
    assert list(merged.tokens) == [5, 6, 5, 7, 6, 8, 9]
    assert list(merged.parents) == [-1, 0, -1, 0, -1, -1, 5]
    assert merged.sampled is not None
    assert len(merged.sampled.probs) == 3
    assert list(merged.by) == ["model"] * 3 + ["copy"] * 4
