"""Samplers beside those of Hugging Face's generate, and of llama.cpp (`tests/golden/samplers.json`, which
`python -m tests.record_samplers` makes again)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.placed import Places
from edgedec.sampling import Probs, Sampling, adjust
from edgedec.sampling.ordered import candidates, ordered_distribution
from edgedec.sampling.places import sequence_biased
from edgedec.sampling.repeats import repeated
from edgedec.sampling.steering import after, shape, start

GOLDEN = Path(__file__).parents[1] / "golden" / "samplers.json"
SIZES = (40, 3000)


def rows(size: int, n: int = 6) -> list[Any]:
    rng = np.random.default_rng(size)
    return [rng.normal(0, scale, size).astype(np.float32) for scale in np.linspace(0.5, 5, n)]


def dense(probs: Probs, size: int) -> Any:
    found = np.zeros(size)
    found[probs.ids] = probs.p
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("setting", "warper", "values"),
    [
        ("epsilon_cutoff", "EpsilonLogitsWarper", (1e-4, 3e-3, 0.2)),
        ("eta_cutoff", "EtaLogitsWarper", (1e-4, 3e-3, 0.2)),
        ("top_h", "TopHLogitsWarper", (0.2, 0.5, 0.9)),
        ("min_p", "MinPLogitsWarper", (0.01, 0.2)),
        ("typical_p", "TypicalLogitsWarper", (0.3, 0.9)),
        ("top_p", "TopPLogitsWarper", (0.3, 0.9)),
        ("top_k", "TopKLogitsWarper", (1, 7, 30)),
    ],
)
def test_a_cut_of_hugging_face(setting: str, warper: str, values: tuple[float, ...], size: int) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.generation.logits_process")
    for value in values:
        cut = getattr(theirs, warper)(value)
        for row in rows(size):
            expected = torch.softmax(cut(None, torch.from_numpy(row)[None]), -1)[0].double().numpy()
            sampling = Sampling(temperature=1.0, samplers=(setting,), **{setting: value})  # type: ignore[arg-type]
            assert np.abs(dense(ordered_distribution(row, sampling, float), size) - expected).max() < 1e-6


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_n_grams_of_hugging_face(size: int) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(size)
    for length in (1, 2, 3, 10, 60):
        ids, row = rng.integers(0, 5, length), rng.normal(0, 2, 8).astype(np.float32)
        found = theirs.NoRepeatNGramLogitsProcessor(size)(torch.from_numpy(ids)[None], torch.from_numpy(row)[None])
        ours = repeated(row, Sampling(no_repeat_ngram_size=size), ids, ())
        assert np.array_equal(ours, found[0].numpy())


SEQUENCES: list[Any] = [
    [[1, 2, 3], -2.0],
    [[4], 1.5],
    [[2, 4], 3.0],
    [[1, 2, 4], -0.5],
    [[0, 0, 1, 2, 5], 9.0],
    [[2, 5], -1.0],
]


@pytest.mark.parametrize("ids", [[1, 2], [2], [0, 0, 1, 2], [5, 5]])
def test_the_sequence_bias_of_hugging_face(ids: list[int]) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.generation.logits_process")
    row = np.random.default_rng(0).normal(0, 2, 8).astype(np.float32)
    found = theirs.SequenceBiasLogitsProcessor(SEQUENCES)(torch.tensor([ids]), torch.from_numpy(row)[None])[0]
    ours = sequence_biased(row, ids, [(tuple(tokens), bias) for tokens, bias in SEQUENCES])
    assert np.abs(ours - found.numpy()).max() < 1e-6
    words = [tokens for tokens, _ in SEQUENCES]
    banned = theirs.NoBadWordsLogitsProcessor(words)(torch.tensor([ids]), torch.from_numpy(row)[None])[0]
    assert np.array_equal(sequence_biased(row, ids, [(tuple(w), -np.inf) for w in words]), banned.numpy())


@pytest.mark.parametrize("n", range(9))
def test_the_places_of_hugging_face(n: int) -> None:
    """A text of one prompt token and n new ones, of 8."""
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.generation.logits_process")
    row, ids = np.random.default_rng(n).normal(0, 2, 9).astype(np.float32), torch.tensor([[1] * (n + 1)])
    scores = torch.from_numpy(row)[None]

    def ours(**options: Any) -> Any:
        return Places(GenerationConfig(max_tokens=8, **options), frozenset({3, 7})).process(row, [1] * n, {})

    decay = theirs.ExponentialDecayLengthPenalty((3, 1.7), [3, 7], 1)(ids, scores)
    pairs = [
        (theirs.ForcedBOSTokenLogitsProcessor(4)(ids, scores), ours(forced_tokens=[4])),
        (theirs.ForcedEOSTokenLogitsProcessor(9, 5)(ids, scores), ours(forced_eos_token_id=5)),
        (theirs.SuppressTokensAtBeginLogitsProcessor([2, 6], 1)(ids, scores), ours(begin_suppress_tokens=[2, 6])),
        (decay, ours(exponential_decay_length_penalty=(3, 1.7))),
    ]
    for found, own in pairs:
        assert np.array_equal(np.isinf(found[0].numpy()), np.isinf(own))
        known = np.isfinite(own)
        assert np.abs(found[0].numpy()[known] - own[known]).max() < 1e-6 * max(1, np.abs(own[known]).max())


def golden() -> list[dict[str, Any]]:
    return list(json.loads(GOLDEN.read_text("utf-8"))) if GOLDEN.is_file() else []


@pytest.mark.parametrize(
    "case", [c for c in golden() if not c["name"].startswith("state")], ids=lambda case: case["name"]
)
def test_a_sampler_of_llama_cpp(case: dict[str, Any]) -> None:
    """Probabilities after a chain of its samplers, on the same logits and text."""
    sampling = Sampling(**{"temperature": 1.0, **case["settings"]})
    for row, ids, expected in zip(case["rows"], case["texts"], case["probs"], strict=True):
        scores = np.array(row, np.float32)
        scores = adjust(scores, sampling, ids, 0)
        if sampling.repeats:
            scores = repeated(scores, sampling, np.array(ids, np.int64), case.get("breakers", []))
        if case.get("logits"):  # of a sampler that only changes logits
            found = scores.astype(np.float64)
            assert np.abs(found - np.array(expected)).max() < 1e-4
            continue
        found = dense(ordered_distribution(scores, sampling, lambda: case.get("chance", 0.0)), len(row))
        assert np.abs(found - np.array(expected)).max() < 2e-6


@pytest.mark.parametrize("case", [c for c in golden() if c["name"].startswith("state")], ids=lambda case: case["name"])
def test_a_sampler_with_a_state_of_llama_cpp(case: dict[str, Any]) -> None:
    """Its own choices, one after another: the state follows them."""
    sampling, state = Sampling(**{"temperature": 1.0, **case["settings"]}), None
    for row, token, expected in zip(case["rows"], case["picked"], case["probs"], strict=True):
        state = start(sampling) if state is None else state
        shaped = shape(candidates(np.array(row, np.float32)), state, sampling, len(row))
        assert np.abs(dense(shaped.probs, len(row)) - np.array(expected)).max() < 2e-5
        state = after(state, shaped, token, sampling)
