"""Text encoders behind the server: embeddings, reranking, Ollama's API; and what is refused."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")

import encoder_checkpoints as checkpoints
from serving import serving

import edgedec
from edgedec.export.exporter import ExportOptions, export
from edgedec.server.pool import ModelSource

TEXTS = ["the cat sat.", "a dog ran", "", "mat"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, edgedec.Model]:
    folder, found = tmp_path_factory.mktemp("served"), {"nano": edgedec.open(threads=1)}
    for name, write in (
        ("encoder", lambda at: checkpoints.sentence_encoder(at, prompts={"query": "query: "})),
        ("reranker", checkpoints.reranker),
    ):
        export(str(write(folder / f"{name}-checkpoint")), folder / name, ExportOptions(runtimes=()))
        found[name] = edgedec.open(folder / name, threads=1)
    return found


@pytest.fixture(scope="module")
def place(models: dict[str, edgedec.Model]) -> Iterator[str]:
    with serving([ModelSource.of(model) for model in models.values()]) as (address, _):
        yield address


def post(place: str, path: str, **body: Any) -> Any:
    request = urllib.request.Request(place + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def test_embeddings_in_numbers_and_in_base64(place: str, models: dict[str, edgedec.Model]) -> None:
    expected = models["encoder"].embed(TEXTS)
    found = post(place, "/v1/embeddings", model="encoder", input=TEXTS)
    vectors = np.array([one["embedding"] for one in found["data"]], np.float32)
    assert vectors.tobytes() == expected.tobytes()
    tokens = sum(len(models["encoder"].tokenizer.encode(text)) for text in TEXTS)
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    packed = post(place, "/v1/embeddings", model="encoder", input=TEXTS, encoding_format="base64")
    assert b"".join(base64.b64decode(one["embedding"]) for one in packed["data"]) == expected.tobytes()
    one = post(place, "/v1/embeddings", model="encoder", input=TEXTS[0])["data"]
    assert [item["index"] for item in one] == [0]


def test_embeddings_of_tokens_in_fewer_dimensions_with_a_prompt(place: str, models: dict[str, edgedec.Model]) -> None:
    model = models["encoder"]
    ids = model.tokenizer.encode(TEXTS[0])
    found = post(place, "/v1/embeddings", model="encoder", input=[ids, ids[:3]])["data"]
    assert np.array(found[0]["embedding"], np.float32).tobytes() == model.embed(TEXTS[0]).tobytes()
    found = post(place, "/v1/embeddings", model="encoder", input="cat", dimensions=7, prompt_name="query")["data"]
    np.testing.assert_array_equal(
        np.array(found[0]["embedding"], np.float32), model.embed("cat", dimensions=7, prompt="query")
    )
    many = post(place, "/v1/embeddings", model="encoder", input=["cat"] * 300)["data"]
    assert len(many) == 300


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input": "cat " * 40}, "text 0: 42 tokens, this model reads 24"),
        ({"input": "cat", "dimensions": 49}, "dimensions 49: must be from 1 to 48"),
        ({"input": "cat", "prompt_name": "q"}, "no prompt 'q'"),
        ({"input": [[200]]}, "not in the vocabulary"),
        ({"input": "cat", "model": "reranker"}, "cannot embed"),
    ],
)
def test_what_cannot_be_embedded_is_a_bad_request(place: str, body: dict[str, Any], says: str) -> None:
    status, error = post(place, "/v1/embeddings", **{"model": "encoder", **body})
    assert status == 400
    assert says in error["message"]


def test_a_decoder_embeds_as_before_and_in_fewer_dimensions(place: str) -> None:
    whole = np.array(post(place, "/v1/embeddings", model="nano", input="Once")["data"][0]["embedding"])
    some = np.array(post(place, "/v1/embeddings", model="nano", input="Once", dimensions=4)["data"][0]["embedding"])
    np.testing.assert_allclose(some, whole[:4] / np.linalg.norm(whole[:4]), atol=1e-6)


def test_documents_are_reranked_as_jina_and_cohere_do_it(place: str, models: dict[str, edgedec.Model]) -> None:
    expected = models["reranker"].rerank("who sat", TEXTS)
    found = post(place, "/v1/rerank", model="reranker", query="who sat", documents=TEXTS, top_n=2)
    assert [(one["index"], one["relevance_score"]) for one in found["results"]] == [
        (one.index, one.score) for one in expected[:2]
    ]
    assert [one["document"]["text"] for one in found["results"]] == [TEXTS[one.index] for one in expected[:2]]
    assert found["usage"]["total_tokens"] > 10
    cohere = post(place, "/v2/rerank", model="reranker", query="who sat", documents=[{"text": text} for text in TEXTS])
    assert cohere["results"] == [{"index": one.index, "relevance_score": one.score} for one in expected]
    bare = post(place, "/v1/rerank", model="reranker", query="a", documents=["b"], return_documents=False)
    assert "document" not in bare["results"][0]
    for model, says in (("nano", "need a text encoder"), ("encoder", "cannot rerank")):
        status, error = post(place, "/v1/rerank", model=model, query="a", documents=["b"])
        assert (status, says in error["message"]) == (400, True)
    assert post(place, "/v1/rerank", model="reranker", query="a", documents=[])[0] == 400


def test_ollama_cuts_unless_it_is_told_not_to(place: str, models: dict[str, edgedec.Model]) -> None:
    long = "cat " * 40
    found = post(place, "/api/embed", model="encoder", input=["cat", long], dimensions=9)
    expected = models["encoder"].embed(["cat", long], truncate=True, dimensions=9)
    assert np.array(found["embeddings"], np.float32).tobytes() == expected.tobytes()
    assert found["prompt_eval_count"] == 3 + 24
    assert post(place, "/api/embed", model="encoder", input=long, truncate=False)[0] == 400
    one = post(place, "/api/embeddings", model="encoder", prompt="cat")["embedding"]
    assert np.array(one, np.float32).tobytes() == models["encoder"].embed("cat").tobytes()
    assert post(place, "/api/show", model="encoder")["capabilities"] == ["embedding"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/api/generate", {"prompt": "a"}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_an_encoder_generates_nothing(place: str, path: str, body: dict[str, Any]) -> None:
    status, error = post(place, path, model="encoder", **body)
    assert status == 400
    assert "a text encoder, it generates no text" in (error if isinstance(error, str) else error["message"])


def test_serve_opens_an_encoder(models: dict[str, edgedec.Model]) -> None:
    from serving import started

    path: Path = models["encoder"].bundle.path
    with started(path) as (address, _):
        found = post(address, "/v1/embeddings", input=["cat"])["data"]
        assert np.array(found[0]["embedding"], np.float32).tobytes() == models["encoder"].embed("cat").tobytes()
