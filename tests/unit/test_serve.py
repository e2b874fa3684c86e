"""`edgedec serve` as a client sees it: the real openai package against a real server."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from python_steps import python_steps

import edgedec
from edgedec.sampling import Sampling

for package in ("starlette", "uvicorn", "httpx", "openai"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
import openai  # noqa: E402
from serving import metrics, serving, started, wait_for  # noqa: E402

GREEDY: dict[str, Any] = {"temperature": 0.0, "extra_body": {"repetition_penalty": 1.0}}
PROMPTS = ["Once upon a time", "Tom and Lily", "One day, a fox", "the the the the", "Sue had a big", "It was late"]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds a thing.",
        "parameters": {
            "type": "object",
            "properties": {
                "thing": {"$ref": "#/$defs/Thing"},
                "count": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["thing", "count"],
            "additionalProperties": False,
            "$defs": {"Thing": {"enum": ["cat", "dog"]}},
        },
    },
}


@pytest.fixture(scope="module")
def model(nano: Any) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


@pytest.fixture(scope="module")
def served(model: edgedec.Model) -> Iterator[tuple[str, Any]]:
    with serving(model, slots=4, body=100_000) as found:
        yield found


@pytest.fixture
def client(served: tuple[str, Any]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", max_retries=0) as found:
        yield found


def alone(model: edgedec.Model, prompt: str | list[int], n: int, **options: Any) -> str:
    """The text that a session of its own writes."""
    options = {"sampling": Sampling(), **options}
    return "".join(model.session(speculate="off", context=512).generate(prompt, max_tokens=n, **options))


def chat_ids(model: edgedec.Model, text: str) -> list[int]:
    return model.chat_ids([{"role": "user", "content": text}])


def hi(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Once upon a time"}], "model": "nano", "max_tokens": 20, **more}


# -- texts


def test_models(client: openai.OpenAI) -> None:
    assert [card.id for card in client.models.list()] == ["nano"]
    assert client.models.retrieve("nano").owned_by == "edgedec"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_a_completion_is_the_sessions_text(client: openai.OpenAI, model: edgedec.Model) -> None:
    found = client.completions.create(model="nano", prompt=PROMPTS[0], max_tokens=30, **GREEDY)
    assert found.choices[0].text == alone(model, PROMPTS[0], 30)
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert found.usage.completion_tokens == 30
    assert found.usage.prompt_tokens == len(model.tokenizer.encode(PROMPTS[0]))
    details = found.usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens is not None
    assert details.model_extra is not None
    assert details.accepted_prediction_tokens + details.model_extra["calls"] >= 30
    assert details.rejected_prediction_tokens is not None
    assert details.rejected_prediction_tokens >= 0


def test_completions_take_texts_and_tokens_and_echo(client: openai.OpenAI, model: edgedec.Model) -> None:
    ids = [model.tokenizer.encode(prompt) for prompt in PROMPTS[:2]]
    expected = [alone(model, prompt, 8) for prompt in PROMPTS[:2]]
    for prompt in (PROMPTS[:2], ids):
        found = client.completions.create(model="nano", prompt=prompt, max_tokens=8, echo=True, **GREEDY)
        assert [choice.text for choice in found.choices] == [p + t for p, t in zip(PROMPTS, expected)]
    one = client.completions.create(model="nano", prompt=ids[1], max_tokens=8, **GREEDY)
    assert one.choices[0].text == expected[1]


def test_a_chat_streamed_and_whole_says_the_same(client: openai.OpenAI, model: edgedec.Model) -> None:
    asked = hi(seed=5, temperature=0.8)
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    sampling = Sampling(**{**vars(model.sampling), "temperature": 0.8, "seed": 5})
    assert whole.choices[0].message.content == text
    assert text == alone(model, chat_ids(model, "Once upon a time"), 20, sampling=sampling)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["edgedec"]["tokens_per_call"] >= 1
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_default_sampling_is_drawn_by_the_engine(nano: Any) -> None:
    """Of a client, and of the page, that name no setting: the model's own, each token that was not drafted drawn in its
    call."""
    model = edgedec.open(nano, engine="native", threads=1)
    python_steps(model.runtime)
    run, drawn = model.runtime.forward, list[int | None]()

    def watched(calls: Any) -> Any:
        results = run(calls)
        drawn.extend(result.drawn for call, result in zip(calls, results, strict=True) if call.outputs.head)
        return results

    model.runtime.forward = watched  # type: ignore[method-assign]
    assert model.sampling.temperature > 0
    with serving(model, speculate="off") as (place, _):
        client = openai.OpenAI(base_url=f"{place}/v1", api_key="none")
        asked = {"model": "nano", "messages": [{"role": "user", "content": "Once upon a time"}], "stream": True}
        for body in (
            {**asked, "max_tokens": 30},
            {**asked, "stream_options": {"include_usage": True}},
        ):  # a client, the page
            before = len(drawn)
            assert list(client.chat.completions.create(**body))  # type: ignore[call-overload]
            assert len(drawn) - before >= 10
        found = client.completions.create(model="nano", prompt="One day", max_tokens=12, n=3)
    assert len(found.choices) == 3
    assert None not in drawn


def test_a_chunk_says_who_had_guessed_it(model: edgedec.Model) -> None:
    text = "The fox ran to the barn and the dog slept. "
    with serving(model, speculate="copy:fixed=4") as (place, _):
        client = openai.OpenAI(base_url=f"{place}/v1", api_key="none")
        chunks = client.completions.create(model="nano", prompt=text * 6, max_tokens=60, stream=True, **GREEDY)
        names = [(chunk.choices[0].model_extra or {}).get("edgedec", {}).get("by") for chunk in chunks]
    assert "copy" in names


def test_stop_ends_the_text_before_it(client: openai.OpenAI, model: edgedec.Model) -> None:
    whole = alone(model, PROMPTS[0], 40)
    stop = whole[30:36]
    for stream in (False, True):
        found: Any = client.completions.create(
            model="nano", prompt=PROMPTS[0], max_tokens=40, stop=[stop, "never said"], stream=stream, **GREEDY
        )
        choices = [chunk.choices[0] for chunk in found] if stream else [found.choices[0]]
        assert "".join(choice.text for choice in choices) == whole[: whole.index(stop)]
        assert choices[-1].finish_reason == "stop"


def test_n_choices_have_seeds_of_their_own(client: openai.OpenAI, model: edgedec.Model) -> None:
    found = client.completions.create(model="nano", prompt="One day", max_tokens=12, n=3, seed=7, temperature=1.0)
    sampling = [Sampling(**{**vars(model.sampling), "temperature": 1.0, "seed": 7 + i}) for i in range(3)]
    assert [choice.text for choice in found.choices] == [alone(model, "One day", 12, sampling=s) for s in sampling]
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(model.tokenizer.encode("One day"))


def test_logprobs(client: openai.OpenAI, model: edgedec.Model) -> None:
    ids = chat_ids(model, "Once upon a time")
    tokens = list(model.session(context=512).tokens(ids, max_tokens=6, logprobs=3))
    whole = client.chat.completions.create(**hi(max_tokens=6, logprobs=True, top_logprobs=3, **GREEDY))
    chunks = client.chat.completions.create(**hi(max_tokens=6, logprobs=True, top_logprobs=3, stream=True, **GREEDY))
    streamed = [odd for c in chunks if c.choices[0].logprobs for odd in c.choices[0].logprobs.content or ()]
    assert whole.choices[0].logprobs is not None
    for told in (whole.choices[0].logprobs.content, streamed):
        assert told is not None
        assert [odd.logprob for odd in told] == [token.logprob for token in tokens]
        assert [[top.logprob for top in odd.top_logprobs] for odd in told] == [[p for _, p in t.top] for t in tokens]
    assert [bytes(odd.bytes or ()).decode() for odd in streamed] == [odd.token for odd in streamed]
    text = client.completions.create(model="nano", prompt="Once", max_tokens=5, logprobs=2, **GREEDY).choices[0]
    assert text.logprobs is not None
    assert text.logprobs.tokens is not None
    assert "".join(text.logprobs.tokens) == text.text
    assert text.logprobs.text_offset == [
        text.text.index(t, at) for t, at in zip(text.logprobs.tokens, text.logprobs.text_offset or ())
    ]
    assert all(len(top) == 2 for top in text.logprobs.top_logprobs or ())


def test_offsets_of_an_echoed_prompt_are_places_in_its_text(client: openai.OpenAI) -> None:
    found = client.completions.create(model="nano", prompt="Once upon", max_tokens=3, logprobs=1, echo=True, **GREEDY)
    (choice,) = found.choices
    assert choice.logprobs is not None
    tokens, places = choice.logprobs.tokens or [], choice.logprobs.text_offset or []
    assert tokens[0].startswith("<|"), "a special token is listed, and not in the text"
    shown = list(zip(tokens[1:], places[1:], strict=True))
    assert len(shown) >= 4
    assert [choice.text[at : at + len(token)] for token, at in shown] == [token for token, _ in shown]


def test_bias_and_penalties_reach_the_model(client: openai.OpenAI, model: edgedec.Model) -> None:
    token = model.tokenizer.encode("cat", special=False)[0]
    found = client.completions.create(model="nano", prompt="One", max_tokens=3, logit_bias={str(token): 100}, **GREEDY)
    assert found.choices[0].text == model.tokenizer.decode([token] * 3)
    asked: dict[str, Any] = {"presence_penalty": 1.5, "frequency_penalty": 1.0}
    found = client.completions.create(model="nano", prompt="One", max_tokens=30, **asked, **GREEDY)
    assert found.choices[0].text == alone(model, "One", 30, sampling=Sampling(**asked))


def test_min_tokens_keep_a_text_from_its_end(client: openai.OpenAI, model: edgedec.Model) -> None:
    bias = {str(token): 100 for token in model.eos}
    for wanted in (0, 7):
        body: dict[str, Any] = {**GREEDY, "extra_body": {"min_tokens": wanted}, "logit_bias": bias, "max_tokens": 20}
        found = client.completions.create(model="nano", prompt="Once", **body)
        assert found.usage is not None
        assert found.usage.completion_tokens == wanted
        assert found.choices[0].finish_reason == "stop"


# -- structured output


def test_json_schema_output_validates(client: openai.OpenAI) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("llguidance")
    kind: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        found = client.chat.completions.create(**hi(max_tokens=100, seed=seed, response_format=kind))
        assert found.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(found.choices[0].message.content or ""), SCHEMA)
    kind = {"type": "json_object"}
    text = client.chat.completions.create(**hi(max_tokens=30, response_format=kind)).choices[0].message.content or ""
    assert text.startswith("{")
    kind = {"type": "json_schema", "json_schema": {"name": "no", "schema": {"not": {}}}}
    with pytest.raises(openai.BadRequestError, match=r"response_format.*not"):
        client.chat.completions.create(**hi(response_format=kind))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}])
def test_a_tool_that_must_be_called_is(client: openai.OpenAI, choice: Any) -> None:
    pytest.importorskip("llguidance")
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "maxProperties": 0}}}
    asked = hi(max_tokens=80, seed=1, tools=[TOOL, other] if choice != "required" else [TOOL], tool_choice=choice)
    asked["parallel_tool_calls"] = False
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    assert whole.message.tool_calls is not None
    call: Any = whole.message.tool_calls[0]
    assert call.function.name == "find"
    arguments = json.loads(call.function.arguments)
    assert arguments["thing"] in ("cat", "dog")
    assert 1 <= arguments["count"] <= 9
    deltas = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    streamed: Any = [call for choice in deltas for call in choice.delta.tool_calls or ()]
    assert [call.function.name for call in streamed] == ["find", *[None] * (len(streamed) - 1)]
    assert len(streamed) > 3, "arguments come as they are written"
    assert json.loads("".join(call.function.arguments for call in streamed)) == arguments
    assert not any(choice.delta.content for choice in deltas)
    assert deltas[-1].finish_reason == "tool_calls"
    turns = [*asked["messages"], whole.message, {"role": "tool", "tool_call_id": call.id, "content": "a cat"}]
    assert client.chat.completions.create(**{**asked, "messages": turns, "tool_choice": "none"}).choices


def test_a_tool_that_may_be_called_need_not_be(client: openai.OpenAI, model: edgedec.Model) -> None:
    pytest.importorskip("llguidance")
    asked = hi(tools=[TOOL], **GREEDY)
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "length"
    chunks = client.chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content != ""
    # A text that begins like a call is one.
    brace = {str(model.tokenizer.encode("{", special=False)[-1]): 100}
    call = client.chat.completions.create(**{**asked, "max_tokens": 80}, logit_bias=brace).choices[0]
    assert call.finish_reason == "tool_calls"


# -- what is refused


def refused(served: tuple[str, Any], path: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    answer = httpx.post(served[0] + path, json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"voice": 2}, "voice", "unsupported_parameter"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 100}, "n", "invalid_value"),
        ({"stop": [""]}, "stop[0]", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None, "invalid_value"),
        ({"messages": [{"role": "user", "content": "word " * 600}]}, "prompt", "context_length_exceeded"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, None, "invalid_value"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_named(served: tuple[str, Any], more: Any, param: str | None, code: str) -> None:
    content = json.dumps({**hi(), **more}).encode()
    answer = httpx.post(
        f"{served[0]}/v1/chat/completions", content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert param is None or error["param"] == param


def test_null_is_nothing(client: openai.OpenAI) -> None:
    client.chat.completions.create(**hi(), stop=None, n=None, tools=None, response_format=None, logit_bias=None)  # type: ignore[call-overload]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_00, b'{"messages": NaN}'])
def test_bad_json_is_a_400(served: tuple[str, Any], content: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
        answer = httpx.post(served[0] + path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_other_refusals(served: tuple[str, Any]) -> None:
    place = served[0]
    assert httpx.post(f"{place}/v1/completions", content=b"{}").status_code == 415
    assert httpx.post(f"{place}/v1/completions", json={"prompt": "x" * 200_000}).status_code == 413
    parts = iter([b"x" * 60_000] * 3)
    head = {"content-type": "application/json"}
    assert httpx.post(f"{place}/v1/completions", content=parts, headers=head).status_code == 413
    assert httpx.post(f"{place}/v1/completions", json={"prompt": "x", "model": "gpt-4"}).status_code == 404
    assert httpx.get(f"{place}/v1/completions").status_code == 405
    assert httpx.get(f"{place}/nowhere").json()["error"]["type"] == "not_found_error"
    assert httpx.get(f"{place}/health", headers={"host": "evil.example"}).status_code == 403
    assert httpx.get(f"{place}/health", headers={"host": "localhost:1"}).status_code == 200
    assert "access-control-allow-origin" not in httpx.get(f"{place}/health", headers={"origin": "http://a"}).headers
    refused(served, "/v1/completions", prompt=[1 << 30])


def test_a_key_and_an_origin(model: edgedec.Model) -> None:
    from edgedec.server.access import AccessPolicy

    policy = AccessPolicy(key="sécret", origin="https://a.example")
    with serving(model, access=policy) as (place, _):
        ask = httpx.Client(base_url=place)
        assert ask.get("/v1/models").status_code == 401
        wrong = ask.get("/v1/models", headers={"authorization": "Bearer other"})
        assert wrong.status_code == 401
        assert wrong.json()["error"]["code"] == "invalid_api_key"
        right = [(b"authorization", "Bearer sécret".encode())]
        assert ask.get("/v1/models", headers=right).status_code == 200
        assert ask.get("/health").status_code == 200
        preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
        assert (
            ask.options("/v1/models", headers=preflight).headers["access-control-allow-origin"] == "https://a.example"
        )


def test_a_limit_on_tokens(model: edgedec.Model) -> None:
    with serving(model, most=5) as (place, _):
        ended = httpx.post(f"{place}/v1/chat/completions", json={"messages": hi()["messages"], "ignore_eos": True})
        assert ended.json()["usage"]["completion_tokens"] == 5
        many = httpx.post(f"{place}/v1/chat/completions", json=hi())
        assert many.status_code == 400
        assert many.json()["error"]["param"] == "max_tokens"


def test_a_text_ends_where_its_context_does(client: openai.OpenAI, model: edgedec.Model) -> None:
    asked: dict[str, Any] = {
        "model": "nano",
        "prompt": "word " * 400,
        "max_tokens": 4096,
        "extra_body": {"ignore_eos": True},
    }
    found = client.completions.create(**asked)
    assert found.usage is not None
    assert found.usage.total_tokens == 512
    assert found.choices[0].finish_reason == "length"


# -- load


def test_a_full_queue_is_a_429_and_those_who_leave_make_room(model: edgedec.Model) -> None:
    with serving(model, slots=1, queue=1) as (place, server):
        engine, body = server.engine, {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=place, timeout=30) as ask:
            first = ask.send(ask.build_request("POST", "/v1/completions", json=body), stream=True)
            wait_for(lambda: engine.running == 1)
            hold = threading.Event()
            slow_down(server, hold)
            second = ask.send(ask.build_request("POST", "/v1/completions", json={**body, "max_tokens": 3}), stream=True)
            wait_for(lambda: engine.waiting == 1)
            full = ask.post("/v1/completions", json=body)
            assert full.status_code == 429
            assert 1 <= int(full.headers["retry-after"]) <= 600
            assert full.json()["error"]["code"] == "queue_full"
            first.close()
            hold.set()
            assert second.read().endswith(b"data: [DONE]\n\n")
            second.close()
            wait_for(lambda: engine.running == 0)
        assert server.metrics.finished["cancelled"] == 1


def slow_down(server: Any, until: threading.Event) -> None:
    """Its steps take 5 ms until then: what is to be seen in between can be."""
    batch = server.engine._batch
    step = batch.step

    def slow() -> bool:
        until.wait(0.005)
        return bool(step())

    batch.step = slow


def test_one_who_waits_may_leave(model: edgedec.Model) -> None:
    with serving(model, slots=1, queue=5) as (place, server):
        slow_down(server, threading.Event())
        body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}
        with httpx.Client(base_url=place, timeout=30) as ask:
            first = ask.send(ask.build_request("POST", "/v1/completions", json={**body, "stream": True}), stream=True)
            wait_for(lambda: server.engine.running == 1)
            with pytest.raises(httpx.ReadTimeout):
                ask.post("/v1/completions", json=body, timeout=0.2)
            wait_for(lambda: server.engine.waiting == 0)
            assert server.engine.running == 1
            first.close()
            wait_for(lambda: server.engine.running == 0)


def test_a_request_that_takes_too_long_is_ended(model: edgedec.Model) -> None:
    with serving(model, slots=1, seconds=0.15) as (place, server):
        slow_down(server, threading.Event())
        body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}
        assert httpx.post(f"{place}/v1/completions", json=body).status_code == 504
        streamed = httpx.post(f"{place}/v1/completions", json={**body, "stream": True})
        assert '"code":"timeout"' in streamed.text
        assert server.engine.running == 0


# -- room in the caches


@contextmanager
def crowd(model: edgedec.Model) -> Iterator[tuple[httpx.Client, Any, Any, list[Any]]]:
    """Room for two texts of four slots, all of which are asked for; until the event is set, slowly."""
    hold = threading.Event()
    with serving(model, slots=4, tokens=512) as (place, server), httpx.Client(base_url=place) as ask:
        slow_down(server, hold)
        asked = [{"prompt": p, "max_tokens": 200, "temperature": 0, "repetition_penalty": 1.0} for p in PROMPTS[:4]]
        streams = []
        for body in asked:
            request = ask.build_request("POST", "/v1/completions", json={**body, "ignore_eos": True, "stream": True})
            streams.append(ask.send(request, stream=True))
        # Two run; the third and the fourth wait in the batch.
        engine = server.engine
        wait_for(lambda: (engine.running, engine.waiting, engine._batch.running) == (2, 2, 2))
        yield ask, server, hold, streams
        hold.set()


def said(stream: httpx.Response) -> str:
    chunks = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def test_texts_beyond_the_room_in_the_caches_wait(model: edgedec.Model) -> None:
    with crowd(model) as (ask, server, hold, streams):
        health = ask.get("/health").json()
        assert (health["running"], health["waiting"]) == (2, 2)
        counts = ask.get("/metrics").text.splitlines()
        assert {"edgedec_running 2", "edgedec_waiting 2", "edgedec_kv_tokens_limit 512"} <= set(counts)
        assert server.metrics.waited.counts[-1] == 0
        hold.set()
        for prompt, stream in zip(PROMPTS, streams):
            assert said(stream) == alone(model, prompt, 200, ignore_eos=True)
        wait_for(lambda: server.engine.running == server.engine.waiting == 0)


def test_one_who_waits_for_room_may_leave(model: edgedec.Model) -> None:
    with crowd(model) as (_, server, hold, streams):
        wait_for(lambda: all(request.job for request in server.engine._requests))
        job = next(request.job for request in server.engine._requests if not request.started)
        streams[2].close()
        wait_for(lambda: server.engine.waiting == 1)
        assert server.engine.running == 2
        assert job.done
        assert server.metrics.finished["cancelled"] == 1
        assert server.metrics.tokens["prompt"] == 0  # nothing of it was read
        hold.set()
        for i in (0, 1, 3):
            assert said(streams[i]) == alone(model, PROMPTS[i], 200, ignore_eos=True)


def test_one_who_waits_for_room_too_long_is_ended(model: edgedec.Model) -> None:
    with crowd(model) as (_, server, _, streams):
        for request in server.engine._requests.copy():
            request.deadline = 0.0
        assert all('"code":"timeout"' in stream.read().decode() for stream in streams)
        wait_for(lambda: server.metrics.finished["timeout"] == 4)
        assert server.engine.running == server.engine.waiting == 0
        assert all(wait >= 0 for wait in (server.metrics.waited.total, server.metrics.first.total))


def test_who_waits_for_room_is_refused_when_the_server_goes(model: edgedec.Model) -> None:
    with crowd(model) as (_, server, hold, streams):
        server.engine.drain()
        for stream in streams[2:]:
            assert '"code":"shutting_down"' in stream.read().decode()
        hold.set()
        assert [said(stream) for stream in streams[:2]] == [alone(model, p, 200, ignore_eos=True) for p in PROMPTS[:2]]


@pytest.fixture
def caches(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """Every cache that is made, forks too, while Python does not look for rings of objects."""
    made: list[weakref.ref[Any]] = []
    kind: Any = type(model.runtime.new_cache(1))
    init = kind.__init__

    def noted(self: Any, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        made.append(weakref.ref(self))

    monkeypatch.setattr(kind, "__init__", noted)
    gc.disable()
    yield made
    gc.enable()


def test_caches_of_texts_that_ended_make_room(model: edgedec.Model, caches: list[weakref.ref[Any]]) -> None:
    """The least recently used go first, and at once; the last one is found again."""

    def alive() -> int:
        """Two are the server's own session's: one for the text, one for its draft head."""
        return sum(cache() is not None for cache in caches)

    with serving(model, slots=4, tokens=512) as (place, server), httpx.Client(base_url=place, timeout=30) as ask:
        for prompt in PROMPTS:
            body = {"prompt": prompt, "max_tokens": 200, "ignore_eos": True, "temperature": 0.0}
            text = ask.post("/v1/completions", json=body).json()["choices"][0]["text"]
            wait_for(lambda: server.engine.running == 0)
            assert server.engine.held <= 512
            wait_for(lambda: alive() - 2 <= len(server.engine._batch.prefixes) <= 3)
        assert len(caches) > len(PROMPTS)
        used = ask.post("/v1/completions", json={"prompt": prompt + text, "max_tokens": 2}).json()["usage"]
        assert used["prompt_tokens_details"]["cached_tokens"] > 20
        texts = ask.post("/v1/embeddings", json={"input": ["one two three " * 30] * 8})
        assert len(texts.json()["data"]) == 8
        wait_for(lambda: server.engine.running == 0)
        assert server.engine.held <= 512
        wait_for(lambda: alive() - 2 <= len(server.engine._batch.prefixes) <= 4)


@pytest.fixture
def roomy(model: edgedec.Model, tmp_path: Path) -> edgedec.Model:
    """A small model of random weights with a context of 4,096 tokens, and nano's tokenizer."""
    from bundles import random_weights, write_bundle

    from edgedec.runtime import open_runtime
    from edgedec.spec import Attention, Mlp, ModelSpec, Rope

    layer = (Attention(2, 1, 16, 0.25), Mlp(64))
    ropes = (Rope(tuple(1e4 ** (-i / 8) for i in range(8))),)
    spec = ModelSpec("random", 300, 32, 4096, (layer, layer), 1e-5, True, ropes)
    bundle = write_bundle(tmp_path / "roomy", spec, random_weights(spec))
    found = edgedec.Model(bundle, open_runtime(model.runtime.name, bundle))
    found.__dict__["tokenizer"] = model.tokenizer
    return found


@pytest.fixture
def rows_read(roomy: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every forward."""
    rows: list[int] = []
    python_steps(roomy.runtime)
    forward = roomy.runtime.forward

    def counted(calls: Any) -> Any:
        rows.append(sum(call.rows.count for call in calls))
        return forward(calls)

    monkeypatch.setattr(roomy.runtime, "forward", counted)
    return rows


def test_the_prompt_of_an_ended_request_is_not_read_again_until_it_is_evicted(
    roomy: edgedec.Model, rows_read: list[int]
) -> None:
    with serving(roomy, context=2200, tokens=2500, speculate="off") as (place, server):

        def read(first: int) -> tuple[int, int]:
            """Rows that a request reads for a prompt of 2,000 tokens, and how many of them it found in a cache."""
            rows_read.clear()
            ids = [(first + 7 * i * i) % 300 for i in range(2000)]
            body = {"prompt": ids, "max_tokens": 3, "ignore_eos": True, "temperature": 0}
            used = httpx.post(f"{place}/v1/completions", json=body, timeout=60).json()["usage"]
            wait_for(lambda: server.engine.running == 0)
            assert used["completion_tokens"] == 3
            return sum(rows_read), used["prompt_tokens_details"]["cached_tokens"]

        assert read(0) == (2002, 0)
        rows, cached = read(0)
        assert rows < 100
        assert cached > 1900
        assert server.engine.held <= 2500 + 64
        # There is no room for another prompt beside it: the first is evicted.
        assert read(1) == (2002, 0)
        assert len(server.engine._batch.prefixes) == 1
        assert server.engine.held <= 2500 + 64
        assert read(0) == (2002, 0)


def test_sessions_learn_in_common(nano: Any) -> None:
    with serving(edgedec.open(nano, threads=1), slots=3, speculate="trigram:fixed=2") as (place, server):
        with ThreadPoolExecutor(3) as pool:
            bodies = [{"prompt": prompt, "max_tokens": 40} for prompt in PROMPTS[:3]]
            list(pool.map(lambda body: httpx.post(f"{place}/v1/completions", json=body), bodies))
        wait_for(lambda: server.engine.running == 0)
        sessions = [server.engine._new_session() for _ in range(2)]
        learned = [session.report()["drafters"]["trigram"]["pairs"] for session in sessions]
        assert len(set(learned)) == 1
        assert learned[0] > 0


def test_room_for_less_than_one_text_is_refused() -> None:
    from edgedec.server.limits import ServerLimits

    with pytest.raises(edgedec.UsageError, match="100 tokens for all caches: a text of 512 would never fit"):
        ServerLimits(slots=4, context=512, tokens=100)
    assert ServerLimits(slots=4, context=512).room == 2048
    assert ServerLimits(slots=4, context=512, tokens=512).room == 512


# -- many at once


def test_twenty_streams_say_what_each_says_alone(client: openai.OpenAI, model: edgedec.Model) -> None:
    def streamed(i: int) -> str:
        asked: dict[str, Any] = {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 20 + i, "seed": i, "stream": True}
        return "".join(c.choices[0].text for c in client.completions.create(model="nano", temperature=i % 2, **asked))

    with ThreadPoolExecutor(20) as pool:
        texts = list(pool.map(streamed, range(20)))
    settings = vars(model.sampling)
    for i, text in enumerate(texts):
        sampling = Sampling(**{**settings, "temperature": float(i % 2), "seed": i})
        assert text == alone(model, PROMPTS[i % len(PROMPTS)], 20 + i, sampling=sampling)


def test_a_conversation_finds_its_cache_again(model: edgedec.Model) -> None:
    with serving(model, slots=2) as (place, _):
        for prompt in ("Once upon a time there was a cat.", "Tom had a big red ball and a dog."):
            httpx.post(f"{place}/v1/completions", json={"prompt": prompt, "max_tokens": 4})
        again = {"prompt": "Once upon a time there was a cat. It", "max_tokens": 4}
        used = httpx.post(f"{place}/v1/completions", json=again).json()["usage"]
        assert used["prompt_tokens_details"]["cached_tokens"] >= len(model.tokenizer.encode("Once upon a time")) - 1


def test_a_failure_inside_is_a_500_and_the_next_request_goes_on(model: edgedec.Model) -> None:
    with serving(model, slots=2) as (place, server):
        batch = server.engine._batch

        def broken() -> bool:
            raise RuntimeError("secret path /x")

        batch.step = broken
        answer = httpx.post(f"{place}/v1/completions", json={"prompt": "Once"})
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert httpx.post(f"{place}/v1/completions", json={"prompt": "Once"}).status_code == 200


def test_requests_leave_nothing_behind(model: edgedec.Model) -> None:
    from edgedec.server.requests import EngineRequest, Submission

    with serving(model, slots=2) as (place, _), httpx.Client(base_url=place) as ask:
        for i in range(20):
            ask.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2, "stream": i % 2 == 0})
        gc.collect()
        # Those of the last request may still be in somebody's hands.
        assert sum(isinstance(thing, Submission | EngineRequest) for thing in gc.get_objects()) <= 4


# -- the rest


def test_embeddings(client: openai.OpenAI) -> None:
    import math

    found = client.embeddings.create(model="nano", input=["A cat sat.", "A cat sat down.", "for i in range(9):"])
    vectors = [row.embedding for row in found.data]
    plain = client.embeddings.create(model="nano", input="A cat sat.", encoding_format="float").data[0].embedding
    assert vectors[0] == pytest.approx(plain, abs=1e-6)
    assert math.hypot(*plain) == pytest.approx(1, abs=1e-4)
    near, far = (sum(a * b for a, b in zip(vectors[0], other)) for other in vectors[1:])
    assert near > far


def test_metrics_are_prometheus_text(served: tuple[str, Any], client: openai.OpenAI) -> None:
    before = metrics(served[0])
    client.completions.create(model="nano", prompt="Once", max_tokens=7, extra_body={"ignore_eos": True})
    after = metrics(served[0])
    assert after["edgedec_generated_tokens_total"] - before["edgedec_generated_tokens_total"] == 7
    label = 'edgedec_requests_total{path="/v1/completions",status="200"}'
    assert after[label] - before.get(label, 0) == 1
    assert after["edgedec_first_token_seconds_count"] == after['edgedec_first_token_seconds_bucket{le="+Inf"}']
    assert after["edgedec_running"] == 0
    silent = "edgedec_calls_without_draft_total{"
    without = sum(n - before.get(name, 0) for name, n in after.items() if name.startswith(silent))
    assert 0 < without <= after["edgedec_calls_total"] - before["edgedec_calls_total"]
    states = [name for name in after if name.startswith('edgedec_drafter_texts_total{drafter="copy"')]
    assert sum(after[name] - before.get(name, 0) for name in states) == 1
    parser = pytest.importorskip("prometheus_client.parser")
    assert list(parser.text_string_to_metric_families(httpx.get(f"{served[0]}/metrics").text))


def test_the_page_brings_a_strict_policy(served: tuple[str, Any]) -> None:
    from edgedec.server.page import PAGE

    answer = httpx.get(f"{served[0]}/")
    assert answer.status_code == (200 if PAGE.is_file() else 404)
    if PAGE.is_file():
        assert answer.headers["content-type"].startswith("text/html")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy


def test_the_description_covers_every_route(served: tuple[str, Any]) -> None:
    described = httpx.get(f"{served[0]}/openapi.json").json()
    from edgedec.server.app import build

    routes = {route.path.replace(":path", "") for route in build(served[1]).routes} - {"/", "/openapi.json"}
    assert routes == set(described["paths"])


@pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="minutes of fuzzing; set EDGEDEC_SLOW_TESTS")
def test_fuzz(model: edgedec.Model, tmp_path: Path) -> None:
    """Every endpoint, with texts that end early: a short context."""
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install '.[fuzz]'")
    with serving(model, slots=32, queue=200, context=96) as (place, _):
        command = [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", f"{place}/openapi.json"]
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        done = subprocess.run(
            [*command, "--checks", checks, "--max-examples", "100", "--seed", "1", "--request-timeout", "120"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stdout[-4000:]
    print(done.stdout[-600:])  # pytest -rP: how many requests
    (operations,) = re.findall(r"Tested: (\d+)", done.stdout)
    assert int(operations) >= 21


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_sigterm_lets_what_runs_end(nano: Any) -> None:
    with started(nano, "--slots", "1") as (place, process):
        body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{place}/v1/completions", json=body, timeout=30) as answer:
            parts = answer.iter_text()
            begun = next(parts)
            process.send_signal(signal.SIGTERM)
            rest = "".join(parts)
        assert begun
        assert rest.endswith("data: [DONE]\n\n")
        assert process.wait(30) in (0, -signal.SIGTERM)


def test_a_taken_port_is_one_line(nano: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "edgedec", "serve", "-m", str(nano), "--port", port, "-t", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"edgedec: 127.0.0.1:{port}: ")
    assert done.stderr.count("\n") == 1


def test_requests_are_logged_when_asked_for(nano: Any) -> None:
    """A line for each, without what was asked; nobody can write lines of his own."""
    with started(nano, "--log-requests") as (place, process):
        assert process.stderr is not None
        assert f"chat page {place}/, API {place}/openapi.json" in process.stderr.readline()
        httpx.post(f"{place}/v1/completions", json={"prompt": "secret", "max_tokens": 2}, timeout=30)
        httpx.get(f"{place}/no%0Awhere", timeout=30)
        found = ""
        while "where" not in found:
            line = process.stderr.readline()
            assert line, "the server ended"
            found += line
    assert re.search(r"POST /v1/completions 200 \d+\.\d+ s\n", found)
    assert re.search(r"GET /no\\nwhere 404 \d+\.\d+ s\n", found)
    assert "secret" not in found
