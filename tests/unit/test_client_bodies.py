"""Bodies as packages send them, without the packages: recorded ones, and messages as packages dump them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from record_clients import recorded

import edgedec

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import serving  # noqa: E402

PACKAGES = ["ai_sdk", "guidellm", "instructor", "langchain", "litellm", "lm_eval", "ollama", "openai", "openai-js"]
ASK: dict[str, Any] = {"role": "user", "content": "Tell me a story."}
AGAIN: dict[str, Any] = {"role": "user", "content": "And then?"}
GREEDY: dict[str, Any] = {"temperature": 0, "repetition_penalty": 1.0, "max_tokens": 6}
FUNCTION: dict[str, Any] = {
    "name": "find",
    "parameters": {
        "type": "object",
        "properties": {"animal": {"enum": ["cat", "dog"]}},
        "required": ["animal"],
        "additionalProperties": False,
    },
}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
CALL: dict[str, Any] = {"type": "function", "id": "c", "function": {"name": "find", "arguments": '{"animal": "cat"}'}}


@pytest.fixture(scope="module")
def served(nano: Path) -> Iterator[tuple[str, Any]]:
    with serving(edgedec.open(nano, threads=1), slots=4, context=1024) as found:
        yield found


def ask(served: tuple[str, Any], path: str, status: int = 200, **body: Any) -> Any:
    answer = httpx.post(served[0] + path, json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def chat(served: tuple[str, Any], *messages: Any, **more: Any) -> Any:
    return ask(served, "/v1/chat/completions", messages=list(messages), **{**GREEDY, **more})


# -- recorded


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_sent_is_accepted(served: tuple[str, Any], package: str) -> None:
    pytest.importorskip("llguidance")
    bodies = [(path, body) for name, path, body in recorded() if name == package]
    assert bodies
    first = ask(served, "/v1/responses", input="Hi", max_output_tokens=4)
    for path, body in bodies:
        if "previous_response_id" in body:
            body["previous_response_id"] = first["id"]
        for item in body.get("input", ()) if path == "/v1/responses" else ():
            if isinstance(item, dict) and item.get("type") == "item_reference":
                item["id"] = first["output"][0]["id"]
        answer = httpx.post(served[0] + path, json=body, timeout=60)
        assert answer.status_code == 200, (path, answer.text)
        assert '"error":{' not in answer.text


def test_all_that_was_recorded_is_sent() -> None:
    assert sorted({name for name, _, _ in recorded()}) == sorted(PACKAGES)


# -- messages as packages dump them: (members of the message, of its call, of the call's function)

DUMPS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "litellm": (
        {"function_call": None, "provider_specific_fields": {"refusal": None}, "thinking_blocks": None, "images": None},
        {"index": 0, "provider_specific_fields": None},
        {},
    ),
    "openai": (
        {"parsed": {"animal": "cat"}, "refusal": None, "annotations": [{"type": "x"}], "audio": None},
        {"index": 1},
        {"parsed_arguments": {"animal": "cat"}},
    ),
    "others": ({"reasoning": "Hm.", "cache_control": {"type": "ephemeral"}, "id": "m"}, {"extra": [1]}, {"strict": 1}),
}


@pytest.mark.parametrize("package", DUMPS)
@pytest.mark.parametrize("content", ["Once.", None, [{"type": "text", "text": "Once.", "citations": [], "index": 0}]])
def test_what_a_package_adds_to_a_message_changes_nothing(served: tuple[str, Any], package: str, content: Any) -> None:
    added, to_call, to_function = DUMPS[package]
    plain = {"role": "assistant", "content": content and "Once.", "tool_calls": [CALL]}
    call = {**CALL, **to_call, "function": {**CALL["function"], **to_function}}
    result = {"role": "tool", "tool_call_id": "c", "content": "Tom"}
    dumped = chat(served, ASK, {**added, "role": "assistant", "content": content, "tool_calls": [call]}, result, AGAIN)
    expected = chat(served, ASK, plain, result, AGAIN)
    assert dumped["choices"] == expected["choices"]
    assert dumped["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]


def test_templates_get_the_members_that_they_know() -> None:
    from edgedec.server.api import read_message

    call = {**CALL, "index": 0, "function": {**CALL["function"], "parsed_arguments": {}}}
    added, _, _ = DUMPS["litellm"]
    given = {**added, "role": "developer", "content": [{"type": "refusal", "refusal": "No."}], "tool_calls": [call]}
    function = {"name": "find", "arguments": {"animal": "cat"}}
    calls = [{"type": "function", "id": "c", "function": function}]
    assert read_message(given) == {"role": "system", "content": "No.", "tool_calls": calls}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"audio": {"id": "a"}}, "messages[1].audio"),
        ({"images": ["aGk="]}, "messages[1].images"),
        ({"function_call": {"name": "f", "arguments": "{}"}}, "messages[1].function_call"),
        ({"prefix": True}, "messages[1].prefix"),
        ({"partial": True}, "messages[1].partial"),
        ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[1].content[0].type"),
        ({"tool_calls": [{"type": "custom", "custom": {}}]}, "messages[1].tool_calls[0].type"),
    ],
    ids=str,
)
def test_what_would_change_the_answer_is_refused_by_name(served: tuple[str, Any], more: Any, param: str) -> None:
    message = {"role": "assistant", "content": "Once.", **more}
    error = ask(served, "/v1/chat/completions", 400, messages=[ASK, message])["error"]
    assert error["param"] == param


def test_a_cut_calls_arguments_may_be_sent_back(served: tuple[str, Any]) -> None:
    for arguments in ('{"animal": "c', "", None, {"animal": "cat"}):
        cut = {"id": "c", "type": "function", "function": {"name": "find", "arguments": arguments}}
        assert chat(served, ASK, {"role": "assistant", "content": None, "tool_calls": [cut]}, AGAIN)["choices"]


# -- Responses


def test_dumped_items_are_read_as_plain_ones(served: tuple[str, Any]) -> None:
    part = {"type": "output_text", "text": "Once.", "annotations": None, "logprobs": None, "parsed": {"a": 1}}
    items: list[Any] = [
        {"type": "reasoning", "id": "r", "summary": [], "content": None, "encrypted_content": None, "status": None},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "phase": None, "content": [part]},
        {"type": "function_call", "call_id": "c", "name": "find", "arguments": "{}", "parsed_arguments": {}, "x": 1},
        {"type": "function_call_output", "call_id": "c", "output": "Tom", "created_by": None},
    ]
    plain: list[Any] = [
        {"role": "assistant", "content": "Once."},
        {"type": "function_call", "call_id": "c", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "Tom"},
    ]
    found, expected = (ask(served, "/v1/responses", input=[ASK, *given], **greedy()) for given in (items, plain))
    assert found["usage"]["input_tokens"] == expected["usage"]["input_tokens"]
    assert found["output"][0]["content"] == expected["output"][0]["content"]


def greedy() -> dict[str, Any]:
    return {"temperature": 0, "repetition_penalty": 1.0, "max_output_tokens": 6}


def test_a_reference_to_an_item_is_that_item(served: tuple[str, Any]) -> None:
    first = ask(served, "/v1/responses", input=[ASK], **greedy())
    (item,) = first["output"]
    reference = {"type": "item_reference", "id": item["id"]}
    found, expected = (ask(served, "/v1/responses", input=[ASK, one, AGAIN], **greedy()) for one in (reference, item))
    assert found["usage"]["input_tokens"] == expected["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert found["output"][0]["content"] == expected["output"][0]["content"]
    for name in ("msg_1", item["id"][:-1] + "7", "x"):
        error = ask(served, "/v1/responses", 404, input=[ASK, {"type": "item_reference", "id": name}])["error"]
        assert error["param"] == "input[1].id"
    kept = ask(served, "/v1/responses", input=[ASK], store=False, **greedy())["output"][0]["id"]
    assert ask(served, "/v1/responses", 404, input=[ASK, {"type": "item_reference", "id": kept}])["error"]


def test_a_reference_names_the_replica_that_must_answer() -> None:
    from edgedec.server.responses.parse import holder
    from edgedec.server.responses.store import item_id, response_id

    one, two = response_id(), response_id()
    item, later = ({"type": "item_reference", "id": item_id("msg", name, 3)} for name in (one, two))
    assert holder({"input": [ASK, item, AGAIN, later, AGAIN]}) == two
    assert holder({"input": [item], "previous_response_id": two}) == two
    assert holder({"input": [ASK, {"type": "message", "id": item["id"]}, {"type": "item_reference"}]}) is None
    assert holder({"input": "Hi"}) is holder({}) is None


def test_an_items_kind_that_is_not_supported_is_named_with_those_that_are(served: tuple[str, Any]) -> None:
    error = ask(served, "/v1/responses", 400, input=[ASK, {"type": "web_search_call", "id": "w"}])["error"]
    assert error["param"] == "input[1].type"
    assert "function_call, function_call_output, reasoning, item_reference" in error["message"]


# -- Ollama

NULLS = ["f16_kv", "vocab_only", "embedding_only", "penalize_newline", "mirostat", "tfs_z", "something_new", "seed"]


def test_ollamas_options_as_its_package_dumps_them(served: tuple[str, Any]) -> None:
    known = {"num_predict": 6, "temperature": 0, "repeat_penalty": 1.0}
    asked: dict[str, Any] = {"model": "nano", "messages": [ASK], "stream": False}
    expected = ask(served, "/api/chat", **asked, options=known)["message"]
    off = {"mirostat": 0, "mirostat_tau": 5.0, "tfs_z": 1.0, "f16_kv": True}
    for more in (dict.fromkeys(NULLS), off):
        assert ask(served, "/api/chat", **asked, options={**more, **known})["message"] == expected
    for name, value in {"mirostat": 3, "tfs_z": 0.5, "penalize_newline": True, "something_new": 1}.items():
        error = ask(served, "/api/chat", 400, **asked, options={name: value})["error"]
        assert error.startswith(f"options.{name}: ")


def test_ollamas_message_as_its_package_dumps_it(served: tuple[str, Any]) -> None:
    asked: dict[str, Any] = {"model": "nano", "stream": False, "options": {"num_predict": 6, "temperature": 0}}
    call = {"function": {"name": "find", "arguments": {"animal": "cat"}}}
    plain = {"role": "assistant", "content": "Once.", "tool_calls": [call]}
    dumped = {**plain, "thinking": None, "images": None, "tool_name": None, "done": True, "parsed": 1}
    dumped["tool_calls"] = [{"id": None, "type": None, "function": {**call["function"], "index": None, "x": 1}}]
    found, expected = (ask(served, "/api/chat", messages=[ASK, one, AGAIN], **asked) for one in (dumped, plain))
    assert found["message"] == expected["message"]
    assert found["prompt_eval_count"] == expected["prompt_eval_count"]


# -- counts in every chunk


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("logprobs", [False, True])
def test_each_chunk_counts_the_tokens_so_far(served: tuple[str, Any], path: str, logprobs: bool) -> None:
    what: dict[str, Any] = {"messages": [ASK], "logprobs": logprobs} if "chat" in path else {"prompt": "Once"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**what, **GREEDY, "ignore_eos": True, "stream": True, "n": 2, "stream_options": options}
    lines = httpx.post(served[0] + path, json=body, timeout=60).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0 or "chat" not in path
    assert len(set(counts)) > 4
    assert counts[-1] == 12
    prompts = {chunk["usage"]["prompt_tokens"] for chunk in chunks}
    assert prompts == {chunks[-1]["usage"]["prompt_tokens"]}
    body["stream_options"] = {"include_usage": False, "continuous_usage_stats": True}
    assert '"usage"' not in httpx.post(served[0] + path, json=body, timeout=60).text


# -- a format beside tools


def test_a_format_has_no_effect_on_a_call_that_must_be(served: tuple[str, Any]) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [7]}}}
    seven = {str(token): 100 for token in served[1].engine.model.tokenizer.encode("7", special=False)}
    for several in (False, True):
        asked = {"tools": [TOOL], "max_tokens": 60, "parallel_tool_calls": several, "logit_bias": seven}
        found = chat(served, ASK, response_format=form, tool_choice="required", **asked)["choices"][0]
        assert found["message"]["tool_calls"][0]["function"]["name"] == "find"
    error = ask(served, "/v1/chat/completions", 400, messages=[ASK], regex="a", tools=[TOOL])["error"]
    assert error["param"] == "regex"


@pytest.mark.parametrize("stream", [False, True])
def test_a_format_is_that_of_texts_that_call_nothing(served: tuple[str, Any], stream: bool) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"seen": {"enum": ["a cat"]}}, "required": ["seen"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {**schema, "additionalProperties": False}}}
    body = {"messages": [ASK], "tools": [TOOL], "response_format": form, **GREEDY, "max_tokens": 60}
    # Tokens that would begin the call, or the answer.
    tokens = served[1].engine.model.tokenizer
    for word, call in (("name", False), ("seen", True)):
        parts = (word[: i + 1] for i in range(len(word)))
        bias = {str(token): -100 for part in parts if (token := tokens.id(part)) is not None}
        texts = texts_of(served, {**body, "logit_bias": bias, "stream": stream})
        if call:
            assert texts == ["", "find"]
        else:
            assert json.loads(texts[0]) == {"seen": "a cat"}
            assert texts[1:] == []


def texts_of(served: tuple[str, Any], body: dict[str, Any]) -> list[str]:
    """The content, and the names of the calls."""
    answer = httpx.post(f"{served[0]}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if not body["stream"]:
        message = answer.json()["choices"][0]["message"]
        calls = message.get("tool_calls") or ()
        return [message["content"] or "", *(call["function"]["name"] for call in calls)]
    chunks = [json.loads(line[6:])["choices"] for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [one["delta"] for (one,) in chunks]
    pieces = [piece["function"] for delta in deltas for piece in delta.get("tool_calls") or ()]
    return ["".join(delta.get("content") or "" for delta in deltas), *(p["name"] for p in pieces if "name" in p)]
