"""The parts of the server that need neither a socket nor a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.server import api, fields
from edgedec.server.errors import APIError
from edgedec.server.schema import check
from edgedec.server.tools import call_schema, may_be_call, prompt, read_calls
from edgedec.text.template import render_chat

SCHEMAS: dict[str, Any] = {"f": {"type": "object"}, "g": {}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_a_call_is_read_from_its_text() -> None:
    assert read_calls('{"name": "f", "arguments": {"a": 1}}', SCHEMAS) == [("f", '{"a": 1}')]
    assert read_calls('\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', SCHEMAS) == [("g", "{}")]
    assert read_calls('{"name": "f", "parameters": {}}', SCHEMAS) == [("f", "{}")]
    for text in (
        "",
        "Hello",
        '{"name": "h", "arguments": {}}',
        '{"name": "f"}',
        "[1]",
        '{"name": "f", "argum',
        "[" * 9999,
    ):
        assert read_calls(text, SCHEMAS) == []


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("", True),
        ("  ", True),
        ("{", True),
        (" <tool", True),
        ("<tool_call>{", True),
        ("<b>", False),
        ("Once {", False),
    ],
)
def test_what_may_be_a_call_waits(text: str, may: bool) -> None:
    assert may_be_call(text) is may


def test_references_of_a_schema_move_with_it() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/A"}, "$ref": {"type": "string"}}, "$defs": {"A": {"$ref": "#"}}}
    moved = call_schema({"x": {}, "y/z": schema})
    assert moved["$defs"]["f1"]["properties"]["a"] == {"$ref": "#/$defs/f1/$defs/A"}
    assert moved["$defs"]["f1"]["properties"]["$ref"] == {"type": "string"}
    assert moved["$defs"]["f1"]["$defs"]["A"] == {"$ref": "#/$defs/f1"}
    assert [call["properties"]["name"]["const"] for call in moved["anyOf"]] == ["x", "y/z"]
    assert schema["properties"]["a"] == {"$ref": "#/$defs/A"}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=st.dictionaries(st.sampled_from(sorted(fields.CHAT["properties"])), JSON, max_size=4))
def test_the_check_agrees_with_jsonschema(body: dict[str, Any]) -> None:
    """What the published schema allows is let through, and nothing else is."""
    jsonschema = pytest.importorskip("jsonschema")
    body = {"messages": [{"role": "user", "content": "x"}], **body}
    if "NaN" in (text := json.dumps(body)) or "Infinity" in text:
        with pytest.raises(APIError):  # no JSON; a number is what may be out of range of any
            check({"temperature": float("nan")}, {"properties": {"temperature": {"type": "number"}}}, "")
        return
    valid = jsonschema.Draft202012Validator(fields.CHAT).is_valid(body)
    assert (status(lambda: check(body, fields.CHAT, "")) is None) is valid


@given(body=st.dictionaries(st.sampled_from(sorted(fields.CHAT["properties"])), JSON, max_size=4) | JSON)
def test_parsing_fails_in_no_other_way(body: Any) -> None:
    for parse in (api.chat, api.completion, api.embedding):
        assert status(lambda parse=parse: parse(json.dumps(body).encode())) in (None, 400)  # type: ignore[misc]


def status(act: Callable[[], object]) -> int | None:
    try:
        act()
    except APIError as problem:
        return problem.status
    return None


def test_a_problem_names_the_place() -> None:
    with pytest.raises(APIError, match="must be string") as caught:
        api.chat(
            b'{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": 1, "text": ""}]}]}'
        )
    assert str(caught.value.param).startswith("messages[1].content[0]")


def test_content_in_parts_is_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = api.chat(json.dumps({"messages": [{"role": "developer", "content": parts}]}).encode())
    assert asked.messages == ({"role": "system", "content": "ab"},)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:8080", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]:80", "::1"),
        ("Evil.Example:1", "evil.example"),
    ],
)
def test_the_name_in_a_host_header(host: str, name: str) -> None:
    pytest.importorskip("starlette")
    from edgedec.server.access import host_of, is_local

    assert host_of(host) == name
    assert is_local(name) is (name != "evil.example")
    assert not is_local("0.0.0.0")


class Template:
    """A model that is its chat template only."""

    def __init__(self, text: str) -> None:
        self.text = text

    def chat_prompt(self, messages: Any, tools: Any = None, **more: Any) -> str:
        return render_chat(self.text, messages, tools=tools)


TURNS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize("first", [[], [{"role": "system", "content": "Be kind."}]])
def test_tools_are_told_by_the_template_or_by_a_system_message(first: list[Any]) -> None:
    pytest.importorskip("jinja2")
    messages: Any = [*first, {"role": "user", "content": "Go."}]
    tool = {"type": "function", "function": {"name": "find_it"}}
    tools = api.Tools((tool,), {"find_it": {}}, "auto")
    told: Any = Template("{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}" + TURNS)
    assert prompt(told, messages, tools).startswith("<find_it>")
    assert "find_it" not in prompt(told, messages, None)
    plain = prompt(Template(TURNS), messages, tools)  # type: ignore[arg-type]
    assert plain.count("[system]") == 1
    assert "find_it" in plain
    assert plain.endswith("[user] Go.\n")
    assert ("Be kind." in plain) is bool(first)
