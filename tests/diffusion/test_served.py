"""A diffusion model behind the server: streams, stop strings, seeds, several texts, cancellation, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import metrics, serving, wait_for

import edgedec
from edgedec.decoding.config import GenerationConfig

pytest.importorskip("onnx", reason="exporting needs onnx")
pytest.importorskip("uvicorn", reason="the server is an extra")
from diffusion.checkpoint import MASK, exported

PROMPT = "the thing"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> edgedec.Model:
    return edgedec.open(exported(tmp_path_factory.mktemp("served")), threads=1)


@pytest.fixture(scope="module")
def place(model: edgedec.Model) -> Iterator[tuple[str, Any]]:
    with serving(model, context=128) as found:
        yield found


def post(address: str, **fields: Any) -> httpx.Response:
    given = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "temperature": 0.0, "ignore_eos": True} | fields
    return httpx.post(f"{address}/v1/completions", json=given, timeout=60)


def alone(model: edgedec.Model, **options: Any) -> str:
    config = GenerationConfig().override({"max_tokens": 20, "temperature": 0.0, "ignore_eos": True, **options})
    return "".join(piece.text for piece in model.session().stream(PROMPT, config))


def test_a_text_is_that_of_a_session(model: edgedec.Model, place: tuple[str, Any]) -> None:
    choice = post(place[0]).json()["choices"][0]
    assert choice["text"] == alone(model)
    assert choice["finish_reason"] == "length"


def test_streams_have_the_same_text(model: edgedec.Model, place: tuple[str, Any]) -> None:
    found = post(place[0], stream=True).text
    events = [json.loads(line[6:]) for line in found.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events if event["choices"]) == alone(model)
    assert len(events) > 2


def test_a_stop_string_across_blocks_ends_the_text(model: edgedec.Model, place: tuple[str, Any]) -> None:
    letters = dict.fromkeys(model.tokenizer.encode("the in on an", around=False), 100.0)
    whole = alone(model, max_tokens=40, logit_bias=letters)
    stop = whole[9:14]
    assert len(model.tokenizer.encode(stop, around=False)) > 1
    choice = post(place[0], stop=[stop], max_tokens=40, logit_bias=letters).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == whole[: whole.index(stop)]


def test_seeds_and_several_texts(model: edgedec.Model, place: tuple[str, Any]) -> None:
    found = post(place[0], n=3, seed=5, temperature=0.9).json()["choices"]
    texts = [choice["text"] for choice in sorted(found, key=lambda choice: int(choice["index"]))]
    assert texts == [alone(model, temperature=0.9, seed=5 + i) for i in range(3)]
    assert len(set(texts)) == 3


def test_a_text_follows_a_grammar(place: tuple[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = post(place[0], response_format=wanted, max_tokens=60, ignore_eos=False).json()
    assert json.loads(answer["choices"][0]["text"])["a"] in (1, 2)


def test_a_client_that_leaves_frees_its_room(model: edgedec.Model, place: tuple[str, Any]) -> None:
    address = place[0]
    with left_after(address, 3):
        pass
    wait_for(lambda: metrics(address)['vllm:num_requests_running{model_name="tiny"}'] == 0)
    assert sum(n for key, n in metrics(address).items() if 'finished_reason="abort"' in key) == 1
    assert post(address).json()["choices"][0]["text"] == alone(model)


@contextmanager
def left_after(address: str, events: int) -> Iterator[None]:
    """A stream that its client leaves after so many events."""
    fields = {"model": "tiny", "prompt": PROMPT, "max_tokens": 100, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{address}/v1/completions", json=fields, timeout=60) as response:
        lines = response.iter_lines()
        for _ in range(events):
            next(lines)
    yield


def test_what_cannot_be_served_is_a_400(place: tuple[str, Any]) -> None:
    refused = {
        "log-probabilities of a given text": post(place[0], echo=True, logprobs=1),
        f"token {MASK} is the mask": post(place[0], prompt=[5, MASK, 6]),
    }
    for message, answer in refused.items():
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
    assert post(place[0], logprobs=2).json()["choices"][0]["logprobs"]["token_logprobs"]


def test_a_request_says_how_it_is_decoded(model: edgedec.Model, place: tuple[str, Any]) -> None:
    """Each text is that of a session with the same methods, those of texts beside it whatever they are."""
    texts = dict[str, str]()
    for words in ("schedule=static", "steps=1", "off", "verify=ar_mode:route=always"):
        config = GenerationConfig().override({"max_tokens": 20, "temperature": 0.0, "ignore_eos": True})
        expected = "".join(piece.text for piece in model.session(diffusion=words).stream(PROMPT, config))
        texts[words] = post(place[0], diffusion=words).json()["choices"][0]["text"]
        assert texts[words] == expected
        streamed = post(place[0], diffusion=words, stream=True, n=2).text
        events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        for index in (0, 1):
            pieces = [c["text"] for event in events for c in event["choices"] if c["index"] == index]
            assert "".join(pieces) == expected
    assert len(set(texts.values())) >= 3
    assert post(place[0]).json()["choices"][0]["text"] == alone(model)


def test_a_json_schema_with_gaps_over_the_server(place: tuple[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for words in ("fits=grammar,steps=1", "fits=grammar:text='{\"a\"[[3]]'"):
        fields = {"diffusion": words, "n": 2, "temperature": 1.0, "seed": 3, "ignore_eos": False}
        answer = post(place[0], response_format=wanted, max_tokens=40, **fields).json()
        for choice in answer["choices"]:
            assert json.loads(choice["text"])["a"] in (1, 2)
            assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"diffusion": "schedule=nothing"}, "no schedule 'nothing'"),
        ({"diffusion": "keep=delayed"}, "is for models with full context"),
        ({"diffusion": "fits=grammar"}, "needs a constraint"),
        ({"diffusion": "fits=grammar", "regex": "(?i)a"}, "flags are not supported"),
        ({"diffusion": "fits=fixed:text='a [[30]]'"}, "a form of 32 tokens; 20 may be generated"),
        ({"diffusion": 3}, "diffusion"),
        ({"diffusion": "schedule=static", "echo": True, "logprobs": 1}, "log-probabilities of a given text"),
    ],
)
def test_methods_that_cannot_be_are_a_400(place: tuple[str, Any], fields: dict[str, Any], message: str) -> None:
    answer = post(place[0], **fields)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]


def test_an_autoregressive_model_refuses_methods() -> None:
    with serving(edgedec.open("nano"), context=64) as (address, _):
        answer = post(address, model="nano", diffusion="schedule=static", max_tokens=2)
        assert answer.status_code == 400
        assert "nano is no diffusion model" in answer.json()["error"]["message"]


def test_its_methods_are_listed(place: tuple[str, Any]) -> None:
    found = httpx.get(f"{place[0]}/v1/plugins/schedules").json()["data"]
    assert {"static", "threshold"} <= {entry["name"] for entry in found}


def test_a_canvas_beyond_the_engine_is_a_400(tmp_path: Path) -> None:
    full = edgedec.open(exported(tmp_path, context="full", shift=False), threads=1)
    with serving(full, context=128) as (address, _):
        answer = post(address, max_tokens=20)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 20
        assert len(post(address, prompt=list(range(1, 101)), max_tokens=100).json()["choices"]) == 1
