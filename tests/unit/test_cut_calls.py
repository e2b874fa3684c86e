"""Calls and JSON answers that a limit cuts come back as what they are, from every endpoint, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.decoding.messages import Token

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
from serving import serving  # noqa: E402

from edgedec.constraints.given import GivenConstraint  # noqa: E402
from edgedec.server.api import TextRequest, Tools  # noqa: E402
from edgedec.server.choice import Choice, TextDelta  # noqa: E402
from edgedec.server.closing import closed  # noqa: E402
from edgedec.server.completions import Completion  # noqa: E402
from edgedec.server.requests import EndEvent, TextEvent  # noqa: E402

ASK: dict[str, Any] = {"role": "user", "content": "Go."}
ONE = '{"name": "find", "arguments": {"animal": "c\\"a}t", "n": [1, 2]}}'
TWO = f'{ONE}\n{{"name": "go", "arguments": {{}}}}'
SCHEMAS: dict[str, Any] = {"find": {}, "go": {}}
ANSWER = GivenConstraint("json_object", "", "response_format")


def ended(text: str, choice: str, finish: str, answer: GivenConstraint | None = None, step: int = 3) -> Any:
    """(the choice, what a stream showed of it: content, calls) of a text that came in pieces."""
    tools = Tools((), SCHEMAS, choice, True)
    asked = TextRequest({}, messages=(ASK,), tools=tools, constraint=answer)
    found = Choice(Completion((1,), edgedec.GenerationConfig()), asked)
    parts = [text[i : i + step] for i in range(0, len(text), step)]
    deltas = [found.add(TextEvent(0, part, Token(i))) for i, part in enumerate(parts)]
    deltas.append(found.add(EndEvent(0, finish)))
    return found, "".join(delta.text for delta in deltas), streamed(deltas)


def streamed(deltas: list[TextDelta]) -> list[list[str]]:
    calls: list[list[str]] = []
    for delta in deltas:
        for piece in delta.pieces:
            if piece.name:
                calls.append([piece.name, ""])
            calls[piece.call][1] += piece.arguments
        calls += [[call.name, call.arguments] for call in delta.whole]
    return calls


@pytest.mark.parametrize("around", ["{}", "<tool_call>\n{}\n</tool_call>"], ids=["bare", "block"])
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("finish", ["length", "context", "stop"])
def test_a_call_cut_anywhere_is_a_call(around: str, choice: str, finish: str) -> None:
    text = around.replace("{}", ONE)
    named = text.index('"find') + 2  # from here on only one function fits
    begins, ends = text.index('{"animal'), text.index("}}") + 1
    for cut in range(text.index("{") + 1, len(text)):
        found, shown, calls = ended(text[:cut], choice, finish)
        whole = [[call.name, call.arguments] for call in found.calls]
        assert (found.text, shown) == ("", ""), text[:cut]
        if cut < named:
            assert whole == calls == []
        elif cut <= ends:
            assert whole == calls
            assert [[name, given.rstrip()] for name, given in calls] == [["find", text[begins:cut].rstrip()]]
        else:
            assert [[name, json.loads(given)] for name, given in whole] == [["find", json.loads(ONE)["arguments"]]]
        if cut <= ends:
            assert found.reason == ("stop" if finish == "stop" else "length")


def test_the_second_call_is_cut() -> None:
    for cut in range(len(ONE) + 2, len(TWO)):
        found, shown, calls = ended(TWO[:cut], "required", "length")
        assert (found.text, shown, found.reason) == ("", "", "length")
        assert calls[0][0] == found.calls[0].name == "find"
        assert json.loads(calls[0][1]) == json.loads(found.calls[0].arguments) == json.loads(ONE)["arguments"]
        assert calls[1:] == [[call.name, call.arguments] for call in found.calls[1:]]
        assert bool(calls[1:]) == ('"g' in TWO[:cut])


@pytest.mark.parametrize("text", ["Once upon {", "{1}", "<tool_call>Hm", "<", "<tool_c", '{"a": 1', "[1, 2"])
def test_a_cut_text_that_is_no_call_is_text(text: str) -> None:
    found, shown, calls = ended(text, "auto", "length")
    assert (found.text, shown, calls, found.reason) == (text, text, [], "length")


def test_an_ended_text_that_only_looks_like_a_call_is_text() -> None:
    found, shown, calls = ended(ONE[:20], "auto", "eos")
    assert (found.text, shown, calls, found.reason) == (ONE[:20], ONE[:20], [], "stop")


def test_an_answer_in_json_beside_tools_is_streamed_and_cut_as_text() -> None:
    text = '{"name": "Tom", "arguments": "none", "more": [1, 2, 3]}'
    for cut in range(1, len(text)):
        found, shown, calls = ended(text[:cut], "auto", "length", ANSWER)
        assert (found.text, shown, calls, found.reason) == (text[:cut], text[:cut], [], "length")
    tools = Tools((), SCHEMAS, "auto", True)
    streaming = Choice(
        Completion((1,), edgedec.GenerationConfig()),
        TextRequest({}, messages=(ASK,), tools=tools, constraint=ANSWER),
    )
    deltas = [streaming.add(TextEvent(0, sign, Token(1))) for sign in text]
    assert sum(bool(delta.text) for delta in deltas) > 30, "it waits no longer than it may be a call"
    found, _, calls = ended(ONE[:-4], "auto", "length", ANSWER)
    assert (found.text, [call[0] for call in calls]) == ("", ["find"])


def test_cut_arguments_are_closed_to_an_object() -> None:
    value = {"a": [1, {"b": 'x,]}\\"'}, None], "c": {"d": True, "e": -1.5}}
    for text in (json.dumps(value), json.dumps(value, indent=1)):
        for cut in range(len(text) + 1):
            found = closed(text[:cut])
            assert set(found) <= set(value)
            if "c" in found:
                assert found["a"] == value["a"]
        assert closed(text) == value
    assert closed('{"a": [1, {"b": "x') == {"a": [1, {"b": "x"}]}
    assert closed('{"a": "x\\') == {}
    assert closed("nonsense") == closed("]") == {}


# -- the server, cut after every number of tokens

TOOL: dict[str, Any] = {
    "name": "find",
    "parameters": {
        "type": "object",
        "properties": {"animal": {"enum": ["elephant and cat"]}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["animal", "n"],
        "additionalProperties": False,
    },
}
WHOLE = 60


@pytest.fixture(scope="module")
def served(nano: Path) -> Iterator[str]:
    pytest.importorskip("llguidance")
    with serving(edgedec.open(nano, threads=1), slots=4, context=1024) as (place, _):
        yield place


def post(served: str, path: str, **body: Any) -> str:
    answer = httpx.post(served + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


def events(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def chat_of(served: str, most: int) -> tuple[str, list[str], str]:
    """(content, the call's arguments, the reason), the same whole and streamed."""
    body = {"messages": [ASK], "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
    asked = {**body, "parallel_tool_calls": False, "temperature": 0, "max_tokens": most}
    (whole,) = json.loads(post(served, "/v1/chat/completions", **asked))["choices"]
    calls = [call["function"] for call in whole["message"].get("tool_calls", ())]
    parts = [
        one for chunk in events(post(served, "/v1/chat/completions", **asked, stream=True)) for one in chunk["choices"]
    ]
    pieces = [piece["function"] for part in parts for piece in part["delta"].get("tool_calls", ())]
    found = ["".join(piece["arguments"] for piece in pieces)] if pieces else []
    assert [piece["name"] for piece in pieces if "name" in piece] == [call["name"] for call in calls]
    content = "".join(part["delta"].get("content") or "" for part in parts)
    assert content == (whole["message"]["content"] or "")
    assert parts[-1]["finish_reason"] == whole["finish_reason"]
    if whole["finish_reason"] == "length":
        assert found == [call["arguments"] for call in calls]
    return content, found, whole["finish_reason"]


def test_chats(served: str) -> None:
    seen = set()
    for most in range(1, WHOLE):
        content, calls, reason = chat_of(served, most)
        assert content == ""
        assert len(calls) == 1, "there is but one function"
        seen.add(calls[0])
        if reason == "tool_calls":
            break
        assert reason == "length"
    assert reason == "tool_calls"
    assert json.loads(calls[0])["animal"] == "elephant and cat"
    assert len(seen) > 3
    assert any(given and given != calls[0] and calls[0].startswith(given) for given in seen)


def test_responses(served: str) -> None:
    tool = {"type": "function", **TOOL}
    asked = {"input": "Go.", "tools": [tool], "tool_choice": "required", "temperature": 0, "parallel_tool_calls": False}
    seen = set()
    for most in range(1, WHOLE, 2):
        body = {**asked, "max_output_tokens": most}
        whole = json.loads(post(served, "/v1/responses", **body))
        (item,) = whole["output"]
        assert (item["type"], item["name"], item["status"]) == ("function_call", "find", whole["status"])
        last = events(post(served, "/v1/responses", **body, stream=True))[-1]
        assert last["type"] == f"response.{whole['status']}"
        assert last["response"]["output"][0]["arguments"] == item["arguments"]
        seen.add(item["arguments"])
        if whole["status"] == "completed":
            break
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        # It may be continued, as clients do that raise the limit.
        again = {"input": [ASK, item, {"role": "user", "content": "On."}], "max_output_tokens": 2}
        assert json.loads(post(served, "/v1/responses", **again))["output"]
    assert whole["status"] == "completed"
    assert len(seen) > 3


def test_ollama(served: str) -> None:
    tokens = edgedec.open("nano").tokenizer
    asked = {"model": "nano", "messages": [ASK], "tools": [{"type": "function", "function": TOOL}]}
    forced = {tokens.encode("{", special=False)[-1]: 100}
    seen = []
    from edgedec.server.ollama import parse

    real = parse._options
    with pytest.MonkeyPatch.context() as patch:
        # Ollama has no way to require a call.
        patch.setattr(parse, "_options", lambda given: {**real(given), "logit_bias": forced} if given else real(given))
        for most in range(1, WHOLE, 2):
            body = {**asked, "options": {"num_predict": most, "temperature": 0}}
            whole = json.loads(post(served, "/api/chat", **body, stream=False))
            lines = [json.loads(line) for line in post(served, "/api/chat", **body).splitlines()]
            calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
            assert whole["message"]["content"] == "".join(line["message"]["content"] for line in lines) == ""
            assert whole["message"].get("tool_calls", []) == calls
            assert whole["done_reason"] == lines[-1]["done_reason"]
            seen += [call["function"]["arguments"] for call in calls]
            if whole["done_reason"] == "stop":
                break
            assert whole["done_reason"] == "length"
    assert whole["done_reason"] == "stop"
    assert {} in seen
    assert {"animal": "elephant and cat"} in seen or any(0 < len(one.get("animal", "")) < 16 for one in seen)


def test_a_json_answer_that_is_cut(served: str) -> None:
    schema = {"enum": [["elephant", "and", "cat"]]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    asked: dict[str, Any] = {"messages": [ASK], "response_format": form, "temperature": 0, "max_tokens": 4}
    (found,) = json.loads(post(served, "/v1/chat/completions", **asked))["choices"]
    assert found["finish_reason"] == "length"
    assert '["elephant","and","cat"]'.startswith(found["message"]["content"].replace(" ", ""))
    text = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    response = json.loads(post(served, "/v1/responses", input="Go.", text=text, temperature=0, max_output_tokens=4))
    (item,) = response["output"]
    assert (item["type"], item["status"], response["status"]) == ("message", "incomplete", "incomplete")
    last = events(
        post(served, "/v1/responses", input="Go.", text=text, temperature=0, max_output_tokens=4, stream=True)
    )
    assert last[-1]["response"]["output"][0]["status"] == "incomplete"
