"""The family of constraints: each kind by flag, by field of a request, by column of a batch and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import serving
from typer.testing import CliRunner

import edgedec
from edgedec.cli._app import app
from edgedec.cli._flags.constraints import ConstraintFlags
from edgedec.constraints import FAMILY, given
from edgedec.constraints.given import GivenConstraint
from edgedec.decoding.config import GenerationConfig
from edgedec.errors import UsageError
from edgedec.offline import BatchJob, Defaults
from edgedec.plugins.about import all_about

pytest.importorskip("llguidance", reason="constraints need llguidance")

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
GRAMMAR = 'start: "cat" | "dog"'
CLASSES = {"passage": "c", "classes": [{"name": "A", "fields": {"b": "str"}}]}
# Of each kind, the value of its field and the texts that it allows, or their beginnings.
VALUES: dict[str, tuple[Any, set[str]]] = {
    "regex": ("(cat|dog)", {"cat", "dog"}),
    "grammar": (GRAMMAR, {"cat", "dog"}),
    "choices": (["yes", "no"], {"yes", "no"}),
    "span": ("bee", {"b", "e", "be", "ee", "bee"}),
    "graph": ("a\tb\tc", {"SELECT(COUNT(?x)AS"}),
    "classes": (CLASSES, {'[A(b="c"),A(b="c"),'}),
    "json_schema": (SCHEMA, {'{"a":1}', '{"a":2}'}),
}
OPENAI: list[dict[str, Any]] = [
    {"guided_choice": ["yes", "no"]},
    {"structured_outputs": {"regex": "cat|dog"}},
    {"response_format": {"type": "json_object"}},
]
BODY: dict[str, Any] = {"prompt": "Once", "max_tokens": 20, "temperature": 0}


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


@pytest.fixture(scope="module")
def place(model: edgedec.Model) -> Iterator[str]:
    with serving(model) as (place, _):
        yield place


def post(place: str, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return httpx.post(f"{place}{path}", json=BODY | body, timeout=60)


def _format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def text(place: str, **body: Any) -> str:
    answer = post(place, **body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"]).replace(" ", "")  # JSON's own is free


# --- the family ---


def test_every_kind_with_a_text_is_tried_here() -> None:
    assert set(given.text_options()) == set(VALUES)
    assert set(FAMILY.names()) == {*VALUES, "json_object", "monitor", "product"}


def test_what_is_known_of_them_is_json() -> None:
    found = {item["name"]: item for item in json.loads(json.dumps(all_about(FAMILY)))}
    assert found["regex"]["options"][0]["name"] == "pattern"
    assert found["json_schema"]["options"][1]["enum"] == ["none", "space", "any"]
    assert not found["json_schema"]["options"][1].get("required")
    assert found["choices"]["options"][0]["type"] == "array"


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("regex:pattern='cat|dog'", {"cat", "dog"}),
        ('choices:texts=["a, b", "c"]', {"a, b", "c"}),
        ("json_object:whitespace=none", None),
        ('regex:pattern=\'cat|dog\'+choices:texts=["dog", "cow"]', {"dog"}),
    ],
)
def test_words_name_a_constraint(model: edgedec.Model, words: str, allowed: set[str] | None) -> None:
    found = "".join(model.session().generate("Once", max_tokens=12, constraint=words))
    assert found.startswith("{") if allowed is None else found in allowed


def test_words_that_lead_nowhere(model: edgedec.Model) -> None:
    with pytest.raises(UsageError, match="regex and choices: a dead end"):
        list(model.session().generate("Once", constraint='regex:pattern=a+choices:texts=["b"]'))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("regx:pattern=a", "did you mean regex"),
        ("regex", "needs pattern=…"),
        ("json_object:whitespace=no", "must be one of none, space, any"),
        ("product:of=[]", "at least one"),
        ("choices:texts=[]", "at least one text"),
    ],
)
def test_words_that_name_none(model: edgedec.Model, words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model.session().generate("Once", constraint=words)


# --- flags ---


def test_every_kind_with_a_text_has_a_flag() -> None:
    assert {field.name for field in fields(ConstraintFlags)} == {*VALUES, "monitor"}


def test_a_flag_is_text_or_a_file(tmp_path: Path) -> None:
    flags: Any = ConstraintFlags
    file = tmp_path / "rules"
    file.write_text("root ::= 'a'", "utf-8")
    assert flags(choices=str(file)).text() == ("choices", str(file))
    assert flags(grammar=str(file)).text() == ("grammar", "root ::= 'a'")
    assert flags(grammar="start: X\nX: /a/").text() == ("grammar", "start: X\nX: /a/")
    kind, both = flags(choices="[]", regex="a").text()
    assert (kind, [json.loads(words)["name"] for words in json.loads(both)]) == ("product", ["choices", "regex"])
    assert flags().text() is None


def test_choices_by_flag(nano: Path) -> None:
    common = ["run", "-m", str(nano), "-p", "Once", "--no-echo", "-t", "1", "--choices"]
    assert CliRunner().invoke(app, [*common, '["yes", "no"]']).stdout.strip() in ("yes", "no")
    failed = CliRunner().invoke(app, [*common, "yes"])
    assert failed.exit_code == 1
    assert "must be a list" in failed.stderr


# --- requests ---


@pytest.mark.parametrize(("field", "kind"), [*given.fields().items()])
def test_each_field_of_a_request_holds_the_text(place: str, field: str, kind: str) -> None:
    if kind == "json_object":
        assert text(place, **{field: True}).startswith("{")
        assert not text(place, **{field: False}).startswith("{")
        return
    value, allowed = VALUES[kind]
    assert text(place, **{field: value}) in allowed


@pytest.mark.parametrize(("name", "kind"), [*given.guided_kinds().items()])
def test_structured_outputs_hold_the_text(place: str, name: str, kind: str) -> None:
    value, allowed = VALUES.get(kind, (True, set()))
    found = text(place, structured_outputs={name: value})
    assert found in allowed if allowed else found.startswith("{")


def test_the_fields_are_vllms_and_llama_cpps() -> None:
    assert {"grammar", "json_schema", "regex", "choices"} <= set(given.fields())
    assert {"guided_regex", "guided_grammar", "guided_choice", "guided_json"} <= set(given.fields())
    assert set(given.structured_schema()["properties"]) >= {"regex", "grammar", "choice", "json"}


def test_a_schema_may_be_text(place: str) -> None:
    for field in ("json_schema", "guided_json"):
        assert text(place, **{field: json.dumps(SCHEMA)}) in VALUES["json_schema"][1]


def test_every_text_of_a_request_is_held_and_other_endpoints_too(place: str) -> None:
    many = post(place, n=3, choices=["yes", "no"], temperature=1.5).json()["choices"]
    assert len(many) == 3
    assert {choice["text"] for choice in many} <= {"yes", "no"}
    chat = httpx.post(
        f"{place}/v1/responses", json={"input": "Hello", "regex": "[A-Z]{3}", "max_output_tokens": 20}, timeout=60
    ).json()
    assert len(chat["output"][0]["content"][0]["text"]) == 3


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"regex": "a", "choices": ["b"]}, None, "choices and regex: a dead end"),
        ({"regex": "a", "structured_outputs": {"json": SCHEMA}}, None, "regex and json_schema: a dead end"),
        ({"regex": "a{3}b|cd", "choices": ["aaac"]}, None, "a dead end: nothing is allowed by all of them after"),
        ({"regex": "(a", "choices": ["b"]}, "choices and regex", "unclosed group"),
        ({"regex": "(a"}, "regex", "unclosed group"),
        ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed group"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "not supported"),
        ({"regex": 5}, "regex", "string"),
        ({"guided_choice": "yes"}, "guided_choice", "array"),
        ({"choices": []}, "choices", "at least one"),
        ({"json_schema": "{"}, "json_schema", "not JSON"),
    ],
)
def test_what_is_wrong_is_an_error_that_names_the_field(
    place: str, body: dict[str, Any], param: str | None, words: str
) -> None:
    answer = post(place, **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_a_constraint_cannot_be_combined_with_tools(place: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "regex": "a"}
    answer = httpx.post(f"{place}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "regex"


def test_the_description_has_the_fields(place: str) -> None:
    paths = httpx.get(f"{place}/openapi.json", timeout=20).json()["paths"]
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        known = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert {*given.fields(), "structured_outputs", "processors"} <= set(known)


# --- rows of a batch ---


def test_columns_of_a_batch(model: edgedec.Model, tmp_path: Path) -> None:
    rows = [{"prompt": "Once", kind: value} for kind, (value, _) in VALUES.items()]
    rows += [{"prompt": "Once", "choices": '["one", "two"]'}, {"prompt": "Once", "choices": 5}]
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    bodies = [*OPENAI, {"structured_outputs": {"regexp": "a"}}]
    rows += [{**line, "body": {"prompt": "Once", "max_tokens": 9, **body}} for body in bodies]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    job = BatchJob(source, out, Defaults(GenerationConfig(max_tokens=20)), about={}, seed=1, slots=4)
    job.run(model, lambda: model.session(context=128))
    found = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    for row, (kind, (_, allowed)) in zip(found, VALUES.items(), strict=False):
        assert row["text"].replace(" ", "") in allowed
        assert kind not in row  # an option, and no column that comes back
    assert found[len(VALUES)]["text"] in ("one", "two")
    assert found[len(VALUES) + 1]["error"] == "choices: must be text, not int"
    answers = [row["response"] for row in found[len(VALUES) + 2 :]]
    assert [answer["status_code"] for answer in answers] == [200, 200, 200, 400]
    texts = [answer["body"]["choices"][0]["text"] for answer in answers[:3]]
    assert texts[0] in ("yes", "no")
    assert texts[1] in ("cat", "dog")
    assert texts[2].startswith("{")
    assert "structured_outputs" in answers[3]["body"]["error"]["message"]


def test_several_fields_are_a_product(place: str, model: edgedec.Model) -> None:
    both = given.read({"guided_regex": "d?.*", "structured_outputs": {"grammar": GRAMMAR}})
    assert both is not None
    assert (both.kind, both.field) == ("product", "guided_regex and structured_outputs.grammar")
    three = given.joined([both, GivenConstraint("choices", '["cat", "cow"]', "choices")])
    assert three is not None
    assert len(json.loads(three.text)) == 3
    found = given.compiled(model, three.kind, three.text)
    assert "".join(model.session().generate("Once", max_tokens=9, constraint=found)) == "cat"
    assert text(place, regex=r"\{[^1]*\}", response_format=_format(SCHEMA)) == '{"a":2}'
    assert text(place, regex=r"\{.*", response_format={"type": "json_object"}).startswith("{")


def test_no_constraint_is_none_and_one_is_itself() -> None:
    assert given.read({"structured_outputs": {"json_object": False}, "regex": None}) is None
    found = given.read({"guided_json": SCHEMA})
    assert found == GivenConstraint("json_schema", json.dumps(SCHEMA), "guided_json")
