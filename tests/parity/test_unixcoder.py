"""UniXcoder's three modes against transformers' RoBERTa under the masks of the authors' code, written here by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unixcoder_checkpoints import BEGIN, BOTH, DECODER, ENCODER, END, ids_of, write

import edgedec
from edgedec.export.exporter import ExportOptions, export

torch = pytest.importorskip("torch", reason="the oracle is torch")
transformers = pytest.importorskip("transformers", reason="the oracle is transformers")
pytest.importorskip("onnx", reason="exporting for ONNX Runtime needs onnx")
from unixcoder import sees, states  # noqa: E402

ENGINES = ["reference", "native", "ort"]
TEXTS = ["deff(a,b):returna+b", "maxofalist", "x=1", "for(i=0;i<n;i++){s+=a[i];}"]
STEPS = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("unixcoder")
    checkpoint = write(place / "checkpoint")
    for weights in ("f32", "int8"):
        export(str(checkpoint), place / weights, ExportOptions(weights=weights))
    return place


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    """The published model, as the authors' code reads it."""
    config = transformers.RobertaConfig.from_pretrained(folder / "checkpoint")
    config.is_decoder, config._attn_implementation = True, "eager"
    return transformers.RobertaModel.from_pretrained(folder / "checkpoint", config=config).eval()


def opened(folder: Path, engine: str, weights: str = "f32") -> edgedec.Model:
    return edgedec.open(folder / weights, engine=engine, threads=1)


def encoded(model: Any, ids: list[int]) -> np.ndarray:
    """The states of rows that all see each other."""
    with torch.no_grad():
        found: np.ndarray = states(model, torch.tensor([ids]), sees(len(ids), len(ids)))[0].numpy()
    return found


def written(model: Any, ids: list[int], together: int) -> tuple[list[int], float]:
    """The likeliest tokens after `ids`, one after another, and the least lead of one over the second best."""
    found, least = list(ids), np.inf
    with torch.no_grad():
        for _ in range(STEPS):
            last = states(model, torch.tensor([found]), sees(len(found), together))[0, -1]
            best = (model.embeddings.word_embeddings.weight @ last).topk(2)
            found.append(int(best.indices[0]))
            least = min(least, float(best.values[0] - best.values[1]))
    return found[len(ids) :], least


@pytest.mark.parametrize("engine", ENGINES)
def test_vectors_are_the_means_of_rows_that_see_each_other(folder: Path, theirs: Any, engine: str) -> None:
    model = opened(folder, engine)
    for text in TEXTS:
        ids = [BEGIN, ENCODER, END, *ids_of(text), END]
        expected = encoded(theirs, ids)
        (read,) = model.encoder.read([text])
        assert list(read.ids) == ids
        found = next(model.encoder._runner.hidden([read]))
        np.testing.assert_allclose(found, expected, atol=1e-4)
        mean = expected.mean(0)
        np.testing.assert_allclose(model.embed(text), mean / np.linalg.norm(mean), atol=1e-5)
    causal = np.asarray(states(theirs, torch.tensor([ids]), sees(len(ids)))[0].detach())
    assert np.abs(causal - expected).max() > 0.1  # the mask matters


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_eight_bits_stay_near(folder: Path, theirs: Any, engine: str) -> None:
    model = opened(folder, engine, "int8")
    for text, found in zip(TEXTS, model.embed(TEXTS), strict=True):
        expected = encoded(theirs, [BEGIN, ENCODER, END, *ids_of(text), END]).mean(0)
        assert 0.995 < float(found @ expected / np.linalg.norm(expected)) < 1 - 1e-9


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["decoder", "both"])
def test_64_greedy_tokens_are_those_of_transformers(folder: Path, theirs: Any, engine: str, mode: str) -> None:
    model, text = opened(folder, engine), TEXTS[1]
    ids = {"decoder": [BEGIN, DECODER, END, *ids_of(text)], "both": [BEGIN, BOTH, END, *ids_of(text), END]}[mode]
    given = model.tokenizer.encode(text) if mode == "decoder" else model.chat_ids([{"role": "user", "content": text}])
    assert given == ids
    expected, lead = written(theirs, ids, len(ids) if mode == "both" else 0)
    assert lead > 1e-4  # more than engines may differ by
    assert len(set(expected)) > 2
    session = model.session(speculate="off")
    assert list(session.tokens(ids, max_tokens=STEPS, ignore_eos=True)) == expected
    session = model.session(speculate="auto")
    assert list(session.tokens(ids, max_tokens=STEPS, ignore_eos=True)) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_target_sees_its_source_as_the_source_sees_itself(folder: Path, theirs: Any, engine: str) -> None:
    """The log-probabilities of a given target, and the first of them after each source of several."""
    model, session = opened(folder, engine), None
    for text, target in itertools.pairwise(TEXTS):
        ids, more = [BEGIN, BOTH, END, *ids_of(text), END], ids_of(target)
        with torch.no_grad():
            rows = states(theirs, torch.tensor([[*ids, *more]]), sees(len(ids) + len(more), len(ids)))[0]
            logits = rows @ theirs.embeddings.word_embeddings.weight.T
            every = logits.log_softmax(-1)[len(ids) - 1 : -1].numpy()
        session = model.session() if session is None else session
        session.rewrite(ids)
        np.testing.assert_allclose(session.score(more), every[np.arange(len(more)), more], atol=2e-4)
        np.testing.assert_allclose(np.log(session.next_probs()), every[0], atol=2e-4)
