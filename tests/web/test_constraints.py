"""Structured output in JavaScript: the tokens of Python's constraints, drafted or not; and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from weblibrary import Driver, Failed, constraints_module, for_js, library_folder, needs_web

import edgedec
from edgedec import constraints

pytestmark = needs_web
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PATTERN = r"(One|Two) little (bears|dogs|cats) (ran|sat)( and (sang|slept))*\."
LARK = 'start: "The " animal (" and the " animal)* "."\nanimal: "dog" | "cat" | "bird"\n'
MAKE = {"schema": constraints.json_schema, "regex": constraints.regex, "grammar": constraints.grammar}


@pytest.fixture(scope="module")
def js(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    pytest.importorskip("llguidance")
    folder = tmp_path_factory.mktemp("constrained")
    for path in [*library_folder().iterdir(), constraints_module()]:
        shutil.copy(path, folder)
    driver = Driver(folder)
    yield driver
    driver.close()


@pytest.mark.parametrize(("kind", "text"), [("schema", SCHEMA), ("regex", PATTERN), ("grammar", LARK)])
@pytest.mark.parametrize("spec", ["off", "copy+recycling"])
def test_tokens_are_pythons(js: Driver, nano: Path, kind: str, text: Any, spec: str) -> None:
    python = edgedec.open(nano, engine="native")
    prompt, drafted, ended = python.tokenizer.encode("Once upon a time, "), 0, set()
    for seed in range(8):
        options = {"temperature": float(seed > 0), "repetition_penalty": 1.1 if seed % 3 else 1.0, "seed": seed}
        twin = python.session(speculate="off")
        want = [int(t) for t in twin.tokens(prompt, max_tokens=50, constraint=MAKE[kind](python, text), **options)]
        asked = {"speculate": spec, "draft": 0 if spec == "off" else 3}
        given = for_js(options | {"max_tokens": 50}) | {kind: text}
        got = js("generate", model={"bundle": str(nano)}, session=asked, prompt=prompt, options=given)
        assert (got["ids"], got["finish"]) == (want, twin.finish_reason), seed
        drafted += got["result"]["drafted"]
        ended.add(got["finish"])
        if kind == "schema" and got["finish"] == "eos":
            assert set(json.loads(got["text"])) == {"name", "age"}
    assert "eos" in ended
    assert spec == "off" or drafted


@pytest.mark.parametrize(
    ("given", "words"),
    [({"regex": "("}, "constraint"), ({"schema": "{"}, "not JSON"), ({"grammar": "a"}, "constraint"),
     ({"schema": "false"}, "an object, or true"), ({"regex": "a" * 600_000}, "at most"),
     ({"regex": "a", "schema": True}, "one of them"), ({"regex": 5}, "must be a string")],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(js: Driver, nano: Path, given: dict[str, Any], words: str) -> None:
    request = {"model": {"bundle": str(nano)}, "session": {}, "prompt": [12]}
    with pytest.raises(Failed, match=words) as caught:
        js("generate", **request, options=given)
    assert caught.value.code == "usage"
    assert "\n" not in str(caught.value)
    assert js("generate", **request, options={"maxTokens": 1, "ignoreEos": True})["ids"]


def test_forks_and_others_go_on_beside(js: Driver, nano: Path) -> None:
    """Several constrained generations in shared forward calls: each has the tokens that it has alone."""
    requests = [
        {"prompt": "The", "options": {"maxTokens": 24, "regex": PATTERN}},
        {"prompt": "The", "options": {"maxTokens": 24, "grammar": LARK}},
        {"prompt": "The", "options": {"maxTokens": 24}},
    ]
    model = {"bundle": str(nano)}
    alone = [js("generate", model=model, session={"speculate": "off"}, **request) for request in requests]
    found = js("together", model=model, session={"speculate": "off"}, requests=requests)
    assert [each["ids"] for each in found] == [each["ids"] for each in alone]
    assert len({each["text"] for each in alone}) == 3


def test_without_its_module_it_is_refused(nano: Path, tmp_path: Path) -> None:
    driver = Driver()
    try:
        request = {"model": {"bundle": str(nano)}, "session": {}, "prompt": [12]}
        with pytest.raises(Failed, match=r"edgedec-constraints\.wasm") as caught:
            driver("generate", **request, options={"schema": {}})
        assert caught.value.code == "unavailable"
        assert driver("generate", **request, options={"maxTokens": 2, "ignoreEos": True})["ids"]
    finally:
        driver.close()
