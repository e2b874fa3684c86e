"""docs/troubleshooting.md quotes messages that exist, and what really fails gives one line."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import edgedec
from edgedec.errors import EdgedecError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCES = ("edgedec", "export", "runtimes", "kernels", "models")
HEADINGS = {
    "Install",
    "Opening models",
    "Speed",
    "Text quality",
    "Memory and context",
    "Server",
    "Export",
    "Speculation and structured output",
    "Devices",
}

# -- the page


@cache
def texts() -> list[str]:
    """By source file: its string constants, a NUL between two of them (adjacent literals are one; an f-string gives a
    constant between fields)."""
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    trees = [ast.parse(path.read_text("utf-8")) for path in files]
    constants = ([node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)] for tree in trees)
    return ["\0".join(value for value in found if isinstance(value, str)) for found in constants]


def exists(message: str) -> bool:
    """Some source file has every part of the message; `…` separates the parts.

    Worked example, a source with f"no {kind} head": `no … head` exists, `no … tail` does not
    """
    parts = [part.strip() for part in message.split("…") if part.strip()]
    return any(all(part in of_file for part in parts) for of_file in texts())


def entries() -> list[tuple[str, list[str]]]:
    """(heading, cells) of every entry."""
    found = []
    for section in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, rest = section.partition("\n")
        rows = [line.strip("| ").split(" | ") for line in rest.splitlines() if line.startswith("| ")]
        found += [(heading, cells) for cells in rows if cells[0] != "symptom" and set(cells[0]) != {"-"}]
    return found


QUOTED = [(cells[0], message) for _, cells in entries() for message in re.findall(r"`([^`]+)`", cells[0])]


def test_entries_have_a_symptom_a_cause_and_advice() -> None:
    assert len(entries()) >= 40
    assert {heading for heading, _ in entries()} == HEADINGS
    assert all(len(cells) == 3 and all(cells) for _, cells in entries())
    symptoms = [cells[0] for _, cells in entries()]
    assert len(set(symptoms)) == len(symptoms)


@pytest.mark.parametrize(("symptom", "message"), QUOTED)
def test_a_quoted_message_exists(symptom: str, message: str) -> None:
    assert exists(message), f"{symptom}: no source has it"


def test_a_message_that_no_source_has_is_found() -> None:
    assert len(QUOTED) >= 25
    assert exists("the bundle has no … head")
    assert not exists("the bundle has no … tail")
    assert not exists("no such bundle of folders")


# -- what really fails gives one line that names what was wrong

# Arguments, and what the message names.
COMMANDS: dict[str, tuple[list[str], str]] = {
    "no bundle": (["run", "-m", "nowhere", "-p", "x"], "nowhere"),
    "no such option": (["run", "-p", "x", "--nope"], "--nope"),
    "a prompt alone": (["run", "Once"], "Once"),
    "a value out of range": (["run", "-p", "x", "--temp", "-3"], "-3"),
    "a drafter that is none": (["run", "-p", "x", "--spec", "nope"], "nope"),
    "an engine that is none": (["run", "-p", "x", "--engine", "nope"], "nope"),
    "a policy that is none": (["run", "-p", "x", "--cache", "nope"], "nope"),
    "a full context": (["run", "-p", "Once upon a time " * 80, "-c", "64"], "64"),
    "two prompts": (["run", "-p", "x", "-f", "y"], "--file"),
    "no checkpoint": (["export", "nowhere", "-o", "out"], "nowhere"),
    "no graph": (["import", "nowhere", "-o", "out"], "nowhere"),
    "no adapter": (["run", "-p", "x", "--lora", "nowhere"], "nowhere"),
    "a file of jobs that is none": (["batch", "nowhere.jsonl", "-o", "out.jsonl"], "nowhere.jsonl"),
    "a flag of llama.cpp": (["run", "-p", "x", "--rope-scale", "2"], "--rope-scale"),
    "formats that differ": (["run", "-p", "x", "-ctk", "f16", "-ctv", "f32"], "-ctv"),
    "a datastore that is none": (["run", "-p", "x", "--spec", "datastore:path=nowhere"], "nowhere"),
    "a bias that is none": (["run", "-p", "x", "--logit-bias", "a"], "--logit-bias"),
    "a device that is none": (["run", "-p", "x", "--device", "nope"], "nope"),
    "a signature with nothing": (["sign", "nano"], "--key"),
}


def assert_one_line(message: str) -> None:
    """Some words, on one line, and no traceback."""
    assert message.strip() == message
    assert "\n" not in message, message
    assert len(re.findall(r"\w+", message)) >= 3, message
    assert "Traceback" not in message


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_fails_gives_one_line(name: str, nano: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from edgedec.cli import _app

    arguments, culprit = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(_app.app, arguments, input="")
    assert result.exit_code in (1, 2), result.output
    line = result.stderr.removesuffix("\n")
    assert_one_line(line)
    assert re.match(r"edgedec( [a-z-]+)?: ", line)
    assert culprit in line


def bodies() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Path, body, what the message names."""
    ask = {"prompt": "Once", "max_tokens": 2}
    message = {"role": "user", "content": "x"}
    yield "/v1/completions", {**ask, "temperature": "hot"}, "temperature"
    yield "/v1/completions", {**ask, "nope": 1}, "nope"
    yield "/v1/completions", {**ask, "model": "gone"}, "gone"
    yield "/v1/completions", {**ask, "best_of": 1, "n": 2}, "best_of"
    yield "/v1/completions", {**ask, "prompt": "Once upon a time " * 400}, "context of 256"
    yield "/v1/completions", {**ask, "temperature": 1e9, "top_p": 7}, "temperature"
    yield "/v1/chat/completions", {"messages": [message], "tool_choice": "required"}, "tool_choice"
    yield "/v1/chat/completions", {"messages": []}, "messages"
    yield "/v1/responses", {"input": ""}, "input"
    yield "/v1/embeddings", {"input": [[999_999]]}, "999999"
    yield "/api/chat", {"messages": "x"}, "messages"
    yield "/api/generate", {"model": "nano", "prompt": "x", "options": {"repeat_last_n": -5}}, "repeat_last_n"


def test_a_request_that_fails_gives_one_line(nano: Path) -> None:
    for package in ("httpx", "starlette", "uvicorn"):
        pytest.importorskip(package, reason="an extra")
    import httpx
    from serving import serving

    with (
        serving(edgedec.open(nano, threads=1), slots=2, context=256) as (place, _),
        httpx.Client(base_url=place) as ask,
    ):
        for path, body, culprit in bodies():
            answer = ask.post(path, json=body)
            error = answer.json()["error"]
            assert answer.status_code in (400, 404), (body, error)
            line = error if isinstance(error, str) else error["message"]
            assert_one_line(line)
            assert culprit in line
        assert_one_line(ask.post("/v1/completions", content="{").json()["error"]["message"])


def test_a_constraint_that_exceeds_its_limits_gives_one_line(nano: Path) -> None:
    pytest.importorskip("llguidance", reason="an extra")
    from hostile.inputs import CONSTRAINTS

    from edgedec import constraints

    model = edgedec.open(nano, threads=1)
    for name in ("repeated", "brackets", "long"):
        kind, text = CONSTRAINTS[name]
        with pytest.raises(EdgedecError) as caught:
            getattr(constraints, kind)(model, text)
        assert_one_line(str(caught.value))


@pytest.mark.parametrize("damage", ["{", "{}", '{"format": "edgedec-bundle", "version": 99}'])
def test_a_damaged_bundle_gives_one_line(damage: str, nano: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(nano, tmp_path / "damaged"))
    (folder / "edgedec.json").write_text(damage)
    with pytest.raises(EdgedecError) as caught:
        edgedec.open(folder)
    assert_one_line(str(caught.value))
    assert "damaged" in str(caught.value), "the folder"
