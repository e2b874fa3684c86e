"""Stochastic beam search: the distribution is kept, sequences are drawn without replacement, and more is accepted
than of trees of settled shape with as many nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cut import first_layers
from statistical.test_drafter_model import DRAWS, PROMPT, SPEC, VOCAB, fit, target

import edgedec
from edgedec.cache.rows import Rows
from edgedec.decoding.context import Context
from edgedec.drafters._models import beam as beams
from edgedec.drafters._models.beam import beam_draft, perturbed
from edgedec.drafters._models.reader import DraftReader
from edgedec.drafters.model import ModelDrafter
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import logits_of
from edgedec.sampling import Sampling, probs
from edgedec.testing.fakes import FakeRuntime
from edgedec.testing.stats import chi_square

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


def drafter(beam: int, gamma: int = 3, vocab: int = VOCAB) -> ModelDrafter:
    runtime = FakeRuntime(replace(SPEC, vocab_size=vocab), seed=11, spread=5.0)
    return ModelDrafter(runtime, VOCAB, gamma, verify="recursive", beam=beam)


@pytest.mark.parametrize(("beam", "vocab"), [(1, VOCAB), (2, VOCAB), (3, VOCAB), (2, 5)])
def test_the_distribution_is_kept(beam: int, vocab: int) -> None:
    statistic, critical, accepted = fit(drafter(beam, vocab=vocab))
    assert statistic < critical
    assert accepted > DRAWS / 3


@pytest.mark.parametrize("wrong", ["rising", "choosy"])
def test_lies_are_caught(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """Siblings in the wrong order; a token that is liked better than its law says."""
    honest = beams.perturbed

    def lie(phi: beams.Floats, most: float, rng: np.random.Generator) -> beams.Floats:
        values = honest(phi, most, rng)
        return -values if wrong == "rising" else values + 2.0 * (np.arange(len(values)) == 0)

    monkeypatch.setattr(beams, "perturbed", lie)
    statistic, critical, _ = fit(drafter(2))
    assert statistic > critical


def test_the_first_sequence_is_a_draw_of_the_draft_model() -> None:
    """Of two tokens, by chi-square; and no sequence comes twice."""
    runtime = FakeRuntime(replace(SPEC, vocab_size=VOCAB), seed=11, spread=5.0)
    pairs = list(product(range(VOCAB), repeat=2))
    expected = []
    for first, second in pairs:
        both = [
            probs(logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(16))[-1], Sampling(temperature=1.0), ids, 3)
            for ids in (PROMPT, [*PROMPT, first])
        ]
        expected.append(both[0].of(first) * both[1].of(second))
    counts, rng = Counter[tuple[int, int]](), np.random.default_rng(3)
    for _ in range(900):
        context = Context(list(PROMPT), 3, target().new_cache(16), rng=rng, sampling=Sampling(temperature=1.0))
        found = _finish(runtime, beam_draft(DraftReader(runtime), context, VOCAB, 3, 2))
        leaves = [(found.tokens[p], t) for t, p in zip(found.tokens, found.parents, strict=True) if p >= 0]
        assert len(set(leaves)) == len(leaves) == 3
        counts[leaves[0]] += 1
    statistic, critical = chi_square([counts[pair] for pair in pairs], expected)
    assert statistic < critical


def _finish(runtime: FakeRuntime, generator: object) -> beams.Drawn:
    from drafting import finish

    return finish(runtime, generator)  # type: ignore[arg-type]


def test_perturbed_values_have_the_given_largest() -> None:
    rng = np.random.default_rng(0)
    phi = np.log(np.array([0.5, 0.3, 0.2]))
    first = Counter(int(np.argmax(perturbed(phi, rng.normal(), rng))) for _ in range(4000))
    assert perturbed(phi, 1.25, rng).max() == pytest.approx(1.25)
    np.testing.assert_allclose([first[i] / 4000 for i in range(3)], [0.5, 0.3, 0.2], atol=0.03)


@needs_native
def test_more_is_accepted_than_of_settled_shapes_with_as_many_nodes(nano: Path, tmp_path: Path) -> None:
    small = first_layers(nano, tmp_path / "small", 3)
    model = edgedec.open("nano", engine="native", threads=1)
    prompts = [
        model.tokenizer.encode(text) for text in ("Once upon a time", "Tom and his robot", "The rabbit was", "Ben")
    ]

    def tokens_a_call(options: str) -> float:
        live, calls = model.session(speculate=f"model:path={small},verify=recursive,fixed=12,{options}"), 0
        for seed in range(16):
            sampling = Sampling(temperature=0.7, top_k=40, seed=seed)
            list(live.tokens(prompts[seed % 4], max_tokens=80, ignore_eos=True, sampling=sampling))
            assert live.stats.accepted > 0
            calls += live.stats.calls
        return 16 * 80 / calls

    shapes = [tokens_a_call(o) for o in ("gamma=6,width=2", "gamma=3,width=3")]
    assert tokens_a_call("gamma=4,beam=3") > 1.02 * max(shapes)


def test_beams_need_the_verifier_that_is_right_for_them(nano: Path) -> None:
    with pytest.raises(UsageError, match="beam=2"):
        edgedec.open("nano").session(speculate="model:path=nano,verify=block,beam=2")
