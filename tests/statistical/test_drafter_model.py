"""What the drafter `model` draws keeps the target's distribution under every verifier that knows how it was drawn.

`LIES` are drafters that do not say the truth about their draws: each must fail the very same test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from drafting import settled
from loops import decode

from edgedec.cache.rows import Rows
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, Stats
from edgedec.decoding.verify import FAMILY as VERIFIERS
from edgedec.drafters import Draft
from edgedec.drafters.model import ModelDrafter
from edgedec.runtime import logits_of
from edgedec.sampling import Probs, Sampling, probs
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.testing.stats import chi_square

VERIFICATIONS = ("match", *VERIFIERS.shipped)

VOCAB = 3
TOKENS = 3
DRAWS = 600
PROMPT = [2, 0, 1]
SAMPLING = Sampling(temperature=1.2, presence_penalty=1.0)
SPEC = tiny_spec(vocab_size=VOCAB, n_layers=1)
TEXTS = list(product(range(VOCAB), repeat=TOKENS))


def target() -> FakeRuntime:
    return FakeRuntime(SPEC, spread=7.0)


def drafter(verify: str, kind: type[ModelDrafter] = ModelDrafter, vocab: int = VOCAB) -> ModelDrafter:
    """Of another opinion than the target, and with tokens of its own if `vocab` is larger."""
    runtime = FakeRuntime(replace(SPEC, vocab_size=vocab), seed=11, spread=5.0)
    return kind(runtime, VOCAB, gamma=3, width=2, verify=verify)


def expected() -> list[float]:
    """The probability of every text of three tokens."""
    runtime, found = target(), []
    for text in TEXTS:
        p = 1.0
        for i, token in enumerate(text):
            ids = [*PROMPT, *text[:i]]
            logits = logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(16))[-1]
            p *= probs(logits, SAMPLING, ids, len(PROMPT)).of(token)
        found.append(p)
    return found


def fit(model: ModelDrafter) -> tuple[float, float, int]:
    """(statistic, critical value, accepted) of many texts, one stream of random numbers for all."""
    runtime, rng, counts, accepted = target(), np.random.default_rng(5), Counter[tuple[int, ...]](), 0
    for _ in range(DRAWS):
        stats = Stats()
        context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(16), rng=rng)
        model.reset()
        tokens = decode(runtime, context, GenerationConfig(SAMPLING, max_tokens=TOKENS), model, stats=stats)
        counts[tuple(map(int, tokens))] += 1
        accepted += stats.accepted
    return *chi_square([counts[text] for text in TEXTS], expected()), accepted


@pytest.mark.parametrize(("verify", "vocab"), [*((name, VOCAB) for name in VERIFICATIONS), ("recursive", 5)])
def test_the_distribution_is_kept(verify: str, vocab: int) -> None:
    statistic, critical, accepted = fit(drafter(verify, vocab=vocab))
    assert statistic < critical
    assert accepted > DRAWS / 3


class Even(ModelDrafter):
    """Says that all tokens were equally likely."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        draft = yield from settled(super().propose(context, nodes, min_path_prob))
        if draft.sampled is None:
            return draft
        even = Probs(np.arange(VOCAB), np.full(VOCAB, 1 / VOCAB))
        return replace(draft, sampled=replace(draft.sampled, probs=[even] * len(draft.tokens)))


class Choosy(ModelDrafter):
    """Draws until it likes what it sees."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        while True:
            draft = yield from settled(super().propose(context, nodes, min_path_prob))
            if 0 not in draft.tokens or context.rng.random() < 0.2:
                return draft


@pytest.mark.parametrize(
    ("verify", "lie"),
    [*((name, Even) for name in VERIFICATIONS if name != "match"), ("block", Choosy), ("recursive", Choosy)],
)
def test_lies_are_caught(verify: str, lie: type[ModelDrafter]) -> None:
    statistic, critical, _ = fit(drafter(verify, lie))
    assert statistic > critical
