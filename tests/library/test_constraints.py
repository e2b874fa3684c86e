"""Constraints of libedgedec, in a build with llguidance: the tokens of Python's constraints, drafted or not.

EDGEDEC_LLGUIDANCE names the folder of llguidance.h and libllguidance.a; without it the library says that it has none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from clibrary import builder, c, needs_compiler, opened

import edgedec
from edgedec import constraints

FOLDER = os.environ.get("EDGEDEC_LLGUIDANCE")
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}}, \
"required": ["name", "age"], "additionalProperties": false}'
PATTERN = r"(One|Two) little (bears|dogs|cats) (ran|sat)( and (sang|slept))*\."
LARK = 'start: "The " animal (" and the " animal)* "."\nanimal: "dog" | "cat" | "bird"\n'
with_llguidance = pytest.mark.skipif(FOLDER is None, reason="EDGEDEC_LLGUIDANCE is not set")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    assert FOLDER
    made = builder().build(tmp_path_factory.mktemp("l") / "libedgedec.so", jobs=2, llguidance=Path(FOLDER))
    return c.Library(str(made))


def pythons(model: edgedec.Model, kind: str, text: str) -> constraints.Constraint:
    make = {"json_schema": constraints.json_schema, "regex": constraints.regex, "lark": constraints.grammar}[kind]
    return make(model, text)


@needs_compiler
@with_llguidance
@pytest.mark.parametrize(("kind", "text"), [("json_schema", SCHEMA), ("regex", PATTERN), ("lark", LARK)])
@pytest.mark.parametrize("drafts", [b"off", b"copy+recycling"])
def test_tokens_are_pythons(library: Any, nano: Path, kind: str, text: str, drafts: bytes) -> None:
    pytest.importorskip("llguidance")
    model, python = c.Model(library, str(nano)), edgedec.open(nano, engine="native")
    prompt, drafted, ended = python.tokenizer.encode("Once upon a time, "), 0, set()
    for seed in range(12):
        sampling = {
            "temperature": 0.0 if not seed else 1.0,
            "seed": seed,
            "repetition_penalty": 1.1 if seed % 3 else 1.0,
            "min_tokens": 45 if seed % 2 else 0,
        }
        session, twin = (
            model.session(speculate=drafts, draft=3 if drafts != b"off" else 0),
            python.session(speculate="off"),
        )
        want = [int(t) for t in twin.tokens(prompt, max_tokens=50, constraint=pythons(python, kind, text), **sampling)]
        options = {"constraint": text.encode(), "constraint_kind": kind.encode()}
        assert session.generate(prompt, max_tokens=50, **sampling, **options) == want, seed
        assert session.finish == twin.finish_reason
        drafted += session.result.drafted
        ended.add(session.finish)
    assert "eos" in ended
    assert drafts == b"off" or drafted


@needs_compiler
@with_llguidance
@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [("regex", "(", "constraint"), ("x", "a", "not one of"), ("json_schema", "{", "not JSON"),
     ("lark", "a", "constraint"), ("json_schema", "false", "an object, or true"), ("regex", "a" * 600_000, "at most")],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(library: Any, nano: Path, kind: str, text: str, words: str) -> None:
    session = c.Model(library, str(nano)).session()
    with pytest.raises(c.EdgedecFailure, match=words) as caught:
        session.generate([12], constraint=text.encode(), constraint_kind=kind.encode())
    assert caught.value.status == "usage"
    assert "\n" not in str(caught.value)
    assert session.generate([12], max_tokens=1, ignore_eos=1)


def test_without_llguidance_a_constraint_is_refused(nano: Path) -> None:
    with pytest.raises(c.EdgedecFailure, match="without llguidance") as caught:
        opened(nano).session().generate([12], constraint=b"{}", constraint_kind=b"json_schema")
    assert caught.value.status == "unavailable"
