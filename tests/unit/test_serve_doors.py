"""Responses and Ollama's API: the same texts through other doors, by their own clients where they are installed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgedec

for package in ("starlette", "uvicorn", "httpx", "openai"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
import openai  # noqa: E402
from serving import serving, wait_for  # noqa: E402

GREEDY: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}
OPTIONS: dict[str, Any] = {"temperature": 0.0, "repeat_penalty": 1.0}
TALK = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
FUNCTION = {"name": "find", "description": "Finds.", "parameters": SCHEMA}


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


@pytest.fixture(scope="module")
def served(model: edgedec.Model) -> Iterator[tuple[str, Any]]:
    with serving(model, slots=4) as found:
        yield found


@pytest.fixture
def client(served: tuple[str, Any]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", max_retries=0) as found:
        yield found


def alone(model: edgedec.Model, messages: list[dict[str, str]], n: int) -> str:
    ids = model.chat_ids(messages)
    session = model.session(speculate="off", context=512)
    return "".join(session.generate(ids, max_tokens=n, sampling=edgedec.Sampling()))


def ask(served: tuple[str, Any], path: str, **body: Any) -> Any:
    answer = httpx.post(served[0] + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


# -- Responses


def test_a_response_is_the_chats_text(client: openai.OpenAI, model: edgedec.Model) -> None:
    found = client.responses.create(
        model="nano", input="Once upon a time", instructions="Be kind.", max_output_tokens=12, extra_body=GREEDY
    )
    assert found.output_text == alone(model, [{"role": "system", "content": "Be kind."}, *TALK], 12)
    assert (found.status, found.incomplete_details and found.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert found.usage is not None
    assert found.usage.output_tokens == 12
    assert found.usage.total_tokens == found.usage.input_tokens + 12
    assert found.instructions == "Be kind."
    parts = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Once upon "}, {"type": "input_text", "text": "a time"}],
        }
    ]
    again = client.responses.create(input=parts, max_output_tokens=12, extra_body=GREEDY)  # type: ignore[call-overload]
    assert again.output_text == alone(model, TALK, 12)


def test_a_streamed_response_describes_its_growth(client: openai.OpenAI, model: edgedec.Model) -> None:
    asked: dict[str, Any] = {
        "model": "nano",
        "input": "Once upon a time",
        "max_output_tokens": 12,
        "extra_body": GREEDY,
    }
    events = list(client.responses.create(**asked, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == alone(model, TALK, 12)
    # Their helper waits for a response that was not cut.
    with client.responses.stream(**{**asked, "extra_body": {**GREEDY, "stop": text[-8:]}}) as stream:
        assert stream.get_final_response().output_text == text[:-8]


def test_a_response_continues_an_earlier_one(client: openai.OpenAI, model: edgedec.Model) -> None:
    short: dict[str, Any] = {"model": "nano", "max_output_tokens": 8, "extra_body": GREEDY}
    first = client.responses.create(input="Once upon a time", instructions="Be kind.", **short)
    second = client.responses.create(input="And then?", previous_response_id=first.id, **short)
    turns = [*TALK, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And then?"}]
    assert second.output_text == alone(model, turns, 8)  # instructions are those of one request
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert [item.type for item in client.responses.input_items.list(second.id)] == ["message"] * 3
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not kept"):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError, match="previous_response_id"):
        client.responses.create(input="x", previous_response_id=first.id, **short)
    third = client.responses.create(input="x", previous_response_id=second.id, **short)
    assert third.status == "incomplete"
    gone = client.responses.create(input="x", store=False, **short)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(gone.id)


def test_kept_responses_take_bounded_memory(model: edgedec.Model) -> None:
    with serving(model, kept=10_000) as (place, _):
        made = [ask((place, None), "/v1/responses", input="Hi " * 100, max_output_tokens=1) for _ in range(12)]
        statuses = [httpx.get(f"{place}/v1/responses/{one['id']}").status_code for one in made]
    assert statuses[-1] == 200
    assert statuses == sorted(statuses, reverse=True)
    assert 2 <= statuses.count(200) <= 8


def test_a_store_drops_what_was_used_least_recently() -> None:
    from edgedec.server.errors import APIError
    from edgedec.server.responses.store import KeptResponse, ResponseStore

    store = ResponseStore(3 * 664)
    for name in "abc":
        store.add(KeptResponse({"id": name}, ({"content": "x" * 100},)))
    store.get("a")
    store.add(KeptResponse({"id": "d"}, ()))
    assert [name for name in "abcd" if name in store._kept] == ["a", "c", "d"]
    held = store.held
    store.add(KeptResponse({"id": "huge", "text": "x" * 9000}, ()))
    assert (len(store), store.held) == (3, held), "too large itself, and no reason to drop others"
    assert store.get("c") == KeptResponse({"id": "c"}, ({"content": "x" * 100},))
    for name in "acd":
        store.remove(name)
    assert (len(store), store.held) == (0, 0)
    with pytest.raises(APIError, match="not kept"):
        store.get("d")


def test_what_a_store_counts_is_what_it_takes() -> None:
    from edgedec.server.responses.store import KeptResponse, ResponseStore

    def response(i: int) -> KeptResponse:
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"{i}" * 200}]}
        return KeptResponse(
            {"id": f"resp_{i}", "output": [message], "metadata": {}}, ({"role": "user", "content": "Hi"},)
        )

    store = ResponseStore(1 << 20)
    tracemalloc.start()
    try:
        for i in range(2000):
            store.add(response(i))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 100 < len(store) < 2000
    assert 0.5 * store.held < taken < 1.1 * store.held


def test_a_response_with_functions_and_schemas(client: openai.OpenAI) -> None:
    pytest.importorskip("llguidance")
    jsonschema = pytest.importorskip("jsonschema")
    tool: Any = {"type": "function", "strict": True, **FUNCTION}
    asked: dict[str, Any] = {
        "input": "Go.",
        "tools": [tool],
        "tool_choice": {"type": "function", "name": "find"},
        "max_output_tokens": 60,
        "extra_body": {"seed": 1},
    }
    found = client.responses.create(**asked)
    call: Any = found.output[0]
    assert (call.type, call.name, len(found.output)) == ("function_call", "find", 1)
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    events = list(client.responses.create(**asked, stream=True))
    kinds = [event.type for event in events[2:-1]]
    assert kinds[0] == "response.output_item.added"
    assert kinds[-2:] == ["response.function_call_arguments.done", "response.output_item.done"]
    assert set(kinds[1:-2]) == {"response.function_call_arguments.delta"}
    pieces: Any = events[3:-3]
    assert len(pieces) > 3, "arguments come as they are written"
    assert "".join(piece.delta for piece in pieces) == call.arguments
    assert events[-1].response.output[0].arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "A cat."}
    after = client.responses.create(input=[result], previous_response_id=found.id, max_output_tokens=4)  # type: ignore[list-item]
    assert after.output[0].type == "message"
    form: Any = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
    text = client.responses.create(input="Go.", text=form, max_output_tokens=60, extra_body={"seed": 1}).output_text
    jsonschema.validate(json.loads(text), SCHEMA)


def test_log_probabilities_of_a_response(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "input": "Once upon a time",
        "max_output_tokens": 5,
        "top_logprobs": 2,
        "extra_body": GREEDY,
    }
    found = client.responses.create(**asked, include=["message.output_text.logprobs"])
    part: Any = found.output[0].content[0]  # type: ignore[union-attr]
    assert "".join(odd.token for odd in part.logprobs) == part.text
    assert all(len(odd.top_logprobs) == 2 for odd in part.logprobs)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, None),
        ({"tools": [{"type": "function", **FUNCTION}], "regex": "[0-9]"}, "regex"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    ],
    ids=str,
)
def test_what_a_response_cannot_do_is_named(served: tuple[str, Any], more: Any, param: str | None) -> None:
    answer = httpx.post(f"{served[0]}/v1/responses", json={"input": "Hi", **more})
    assert answer.status_code in (400, 404), answer.text
    assert param is None or answer.json()["error"]["param"] == param


# -- Ollama


@pytest.fixture
def local(served: tuple[str, Any]) -> Any:
    ollama = pytest.importorskip("ollama", reason="Ollama's own client is not installed: pip install ollama")
    return ollama.Client(host=served[0])


def test_ollamas_client_chats(local: Any, model: edgedec.Model) -> None:
    expected = alone(model, TALK, 12)
    asked: dict[str, Any] = {"model": "nano", "messages": TALK, "options": {**OPTIONS, "num_predict": 12}}
    whole = local.chat(**asked)
    parts = list(local.chat(**asked, stream=True))
    assert whole.message.content == "".join(part.message.content for part in parts) == expected
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (whole.done_reason, whole.eval_count) == ("length", 12)
    assert whole.prompt_eval_count == len(model.chat_ids(TALK))
    assert whole.total_duration >= whole.eval_duration > 0
    assert local.chat(**{**asked, "model": "nano:latest"}).message.content == expected


def test_ollamas_client_generates_and_continues(local: Any, model: edgedec.Model) -> None:
    options = {**OPTIONS, "num_predict": 8}
    raw = local.generate(model="nano", prompt="Once upon a time", raw=True, options=options)
    session = model.session(speculate="off", context=512)
    assert raw.response == "".join(session.generate("Once upon a time", max_tokens=8, sampling=edgedec.Sampling()))
    assert raw.context == session.ids
    more = local.generate(model="nano", prompt=" and", raw=True, context=raw.context, options=options)
    ids = [*raw.context, *model.tokenizer.encode(" and", around=False)]
    assert more.response == "".join(session.generate(ids, max_tokens=8, sampling=edgedec.Sampling()))
    told = local.generate(model="nano", prompt="Once upon a time", system="Be kind.", options=options, stream=True)
    expected = alone(model, [{"role": "system", "content": "Be kind."}, *TALK], 8)
    assert "".join(part.response for part in told) == expected


def test_ollamas_client_gets_json_and_calls(local: Any) -> None:
    pytest.importorskip("llguidance")
    jsonschema = pytest.importorskip("jsonschema")
    asked: dict[str, Any] = {"model": "nano", "messages": TALK, "options": {"seed": 1, "num_predict": 80}}
    jsonschema.validate(json.loads(local.chat(**asked, format=SCHEMA).message.content), SCHEMA)
    assert local.chat(**asked, format="json").message.content.startswith("{")
    tool = {"type": "function", "function": FUNCTION}
    said = local.chat(**asked, tools=[tool])
    assert said.message.content or said.message.tool_calls
    turns = [
        *TALK,
        {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": {"age": 3}}}]},
        {"role": "tool", "content": "A cat.", "tool_name": "find"},
    ]
    assert local.chat(**{**asked, "messages": turns}, tools=[tool]).done


def test_a_function_call_as_ollama_shows_it(model: edgedec.Model) -> None:
    """Forced by a bias: nano would not call by itself."""
    pytest.importorskip("llguidance")
    from edgedec.server.ollama import parse

    body = parse.chat(json.dumps({"model": "nano", "messages": TALK, "tools": [{"function": FUNCTION}]}).encode())
    asked = parse.chat_request(body)
    assert asked.tools is not None
    assert (asked.tools.choice, asked.tools.schemas) == ("auto", {"find": SCHEMA})
    from edgedec.decoding.messages import Token
    from edgedec.server.completions import Completion
    from edgedec.server.ollama.answer import OllamaAnswer
    from edgedec.server.requests import EndEvent, TextEvent

    class Target:
        pass

    Target.model = model  # type: ignore[attr-defined]
    started: Any = type("Started", (), {})()
    started.target, started.run = Target, None
    started.completions = [Completion((1,), edgedec.GenerationConfig())]
    answer = OllamaAnswer(started, asked, "nano", 0, 0, chats=True)
    held = answer._line(TextEvent(0, '{"name": "find", "arguments": {"age": 3}}', Token(1)))
    line = json.loads(answer._line(EndEvent(0, "eos")))
    assert held == ""
    assert line["message"]["tool_calls"] == [{"function": {"name": "find", "arguments": {"age": 3}}}]


def test_ollamas_client_embeds_and_looks_around(local: Any, client: openai.OpenAI, model: edgedec.Model) -> None:
    vectors = local.embed(model="nano", input=["A cat sat.", "A dog ran."])
    ours = client.embeddings.create(model="nano", input="A cat sat.", encoding_format="float").data[0].embedding
    assert list(vectors.embeddings[0]) == pytest.approx(ours, abs=1e-6)
    assert list(local.embeddings(model="nano", prompt="A cat sat.").embedding) == pytest.approx(ours, abs=1e-6)
    (listed,) = local.list().models
    assert listed.model == "nano:latest"
    assert listed.size > 1_000_000
    assert listed.details.parameter_size == "3.3M" or listed.details.parameter_size.endswith("M")
    assert [one.model for one in local.ps().models] == ["nano:latest"]
    shown = local.show("nano")
    assert "completion" in shown.capabilities
    assert shown.modelinfo["general.architecture"] == model.spec.architecture
    assert local.generate(model="nano", prompt="").done_reason == "load"


@pytest.mark.parametrize(
    ("path", "more", "status", "says"),
    [
        ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, 400, "messages[0].images"),
        ("generate", {"prompt": "x", "images": ["aGk="]}, 400, "images"),
        ("generate", {"prompt": "x", "template": "{{ .Prompt }}"}, 400, "template"),
        ("generate", {"prompt": "x", "options": {"mirostat": 3}}, 400, "options.mirostat"),
        ("generate", {"prompt": "x", "options": {"num_ctx": 4096}}, 400, "options.num_ctx"),
        ("generate", {"prompt": "x", "options": {"repeat_last_n": -2, "repeat_penalty": 1.1}}, 400, "repeat_last_n"),
        ("generate", {"prompt": "x", "suffix": "y"}, 400, "suffix"),
        ("generate", {"prompt": "x", "context": [1 << 30]}, 400, "outside the vocabulary"),
        ("generate", {"prompt": "x", "model": "llama3"}, 404, "'llama3' is not here"),
        ("pull", {}, 404, "/api/pull"),
    ],
    ids=str,
)
def test_what_ollamas_door_cannot_do_is_named(
    served: tuple[str, Any], path: str, more: Any, status: int, says: str
) -> None:
    answer = httpx.post(
        f"{served[0]}/api/{path}", json={"model": "nano", **({"messages": TALK} if path == "chat" else {}), **more}
    )
    assert answer.status_code == status, answer.text
    assert isinstance(answer.json()["error"], str)
    assert says in answer.json()["error"]


def test_ollamas_clients_need_not_name_json_but_browsers_must(served: tuple[str, Any]) -> None:
    content = json.dumps({"model": "nano", "prompt": ""}).encode()
    form = {"content-type": "application/x-www-form-urlencoded"}  # as `curl -d` sends
    for headers in ({}, form):
        assert httpx.post(f"{served[0]}/api/generate", content=content, headers=headers).status_code == 200
        for mark in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            refused = httpx.post(f"{served[0]}/api/generate", content=content, headers={**headers, **mark})
            assert refused.status_code == 415


def test_ollamas_options_are_ours() -> None:
    from edgedec.server.errors import APIError
    from edgedec.server.ollama import parse

    def options(**given: Any) -> Any:
        body = {"model": "m", "prompt": "x", "options": given}
        return parse.generate_request(parse.generate(json.dumps(body).encode()), templated=True).options

    given = {"temperature": 0.5, "top_k": 4, "repeat_penalty": 1.5, "num_predict": 9, "stop": "x", "num_gpu": 3}
    assert options(**given) == {
        "temperature": 0.5,
        "top_k": 4,
        "repetition_penalty": 1.5,
        "max_tokens": 9,
        "stop": ("x",),
    }
    assert options(num_predict=-1, seed=None) == {}
    same = {"repeat_last_n": 64, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2}
    assert options(**same, repeat_penalty=1.5) == {**same, "repetition_penalty": 1.5}
    with pytest.raises(APIError, match="tfs_z"):
        options(tfs_z=0.5)


def test_a_client_that_leaves_ends_its_text_at_every_door(model: edgedec.Model) -> None:
    with serving(model, slots=2) as (place, server), httpx.Client(base_url=place, timeout=30) as client:
        asked = {
            "/api/generate": {"model": "nano", "prompt": "Once", "raw": True},
            "/v1/responses": {"input": "Once", "stream": True, "ignore_eos": True},
        }
        for path, body in asked.items():
            answer = client.send(client.build_request("POST", path, json=body), stream=True)
            assert next(answer.iter_bytes())
            answer.close()
            wait_for(lambda: server.engine.idle)
        assert server.metrics.finished["cancelled"] >= 1
