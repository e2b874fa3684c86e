"""The scripts in examples/clients against a real server: packages that people have, each in a process of its own.

Those in examples/clients/turns send back what the server answered. What they send is recorded, so that `make test`
sends it without the packages (`test_client_bodies.py`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import edgedec

for package in ("starlette", "uvicorn"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
from serving import metrics, serving  # noqa: E402

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
# Pythons with other packages: LiteLLM pins an older huggingface_hub than the rest.
APART = (os.environ.get("EDGEDEC_CLIENTS_PYTHON") or str(CLIENTS / ".venv" / "bin" / "python")).split(os.pathsep)
# script, what it imports, what its lines begin with, paths that it asks for.
SCRIPTS: dict[str, tuple[str, list[str], list[str]]] = {
    "openai_chat": ("openai", ["chat:", "response:", "json: {"], ["/v1/chat/completions", "/v1/responses"]),
    "ollama_chat": (
        "ollama",
        ["models: ['nano:latest']", "chat:", "json: {", "embedding: 128"],
        ["/api/chat", "/api/embed", "/api/tags"],
    ),
    "langchain_chat": ("langchain_openai", ["chain:", "stream:", "object: Animal("], ["/v1/chat/completions"]),
    "instructor_person": (
        "instructor",
        ["json_schema_mode: Person(", "tool_call: Person("],
        ["/v1/chat/completions"],
    ),
    "llm_prompt": ("llm", ["prompt:"], ["/v1/chat/completions"]),
    "litellm_chat": ("litellm", ["openai:", "stream:", "ollama:"], ["/v1/chat/completions", "/api/chat"]),
}
# Two turns of each package: what it imports, and how many cases there are.
TURNS: dict[str, tuple[str, int]] = {
    "openai_turns": ("openai", 11),
    "ollama_turns": ("ollama", 6),
    "langchain_turns": ("langchain_ollama", 12),
    "instructor_turns": ("instructor", 4),
    "litellm_turns": ("litellm", 5),
    "lm_eval_turns": ("lm_eval", 3),
    "guidellm_turns": ("guidellm", 3),
}
MODULE_TURNS = {"openai_turns": ("openai", 9), "ai_sdk_turns": ("@ai-sdk/openai", 15)}
MODULES: dict[str, tuple[str, list[str], list[str]]] = {
    "openai": ("openai", ["chat:", "response:"], ["/v1/chat/completions", "/v1/responses"]),
    "ai_sdk": ("ai", ["text:", 'object: {"animal"'], ["/v1/chat/completions"]),
}


@pytest.fixture(scope="module")
def served(nano: Path) -> Iterator[str]:
    with serving(edgedec.open(nano, threads=1), slots=4, context=1024) as (place, _):
        yield place


def check(place: str, command: list[Any], begins: list[str], paths: list[str]) -> None:
    """The script ran, printed what it prints, and asked this server."""
    before = metrics(place)
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "EDGEDEC_URL": place, "EDGEDEC_MODEL": "nano"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for line in begins:
        assert any(printed.startswith(line) for printed in done.stdout.splitlines()), (line, done.stdout)
    after = metrics(place)
    for path in paths:
        name = f'edgedec_requests_total{{path="{path}",status="200"}}'
        assert after.get(name, 0) > before.get(name, 0), path


def python_with(module: str) -> str | None:
    """This Python, or one apart; None: none has the module."""
    if find_spec(module) is not None:
        return sys.executable
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
    known = (python for python in APART if shutil.which(python) is not None)
    return next((python for python in known if subprocess.run([python, "-c", look]).returncode == 0), None)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_client_of_python(served: str, script: str) -> None:
    module, begins, paths = SCRIPTS[script]
    python = python_with(module)
    if python is None:
        pytest.skip(f"{module} is not installed: pip install '.[clients]'; litellm: see examples/clients/README.md")
    check(served, [python, CLIENTS / f"{script}.py"], begins, paths)


@pytest.mark.parametrize("script", MODULES)
def test_a_client_of_javascript(served: str, script: str) -> None:
    module, begins, paths = MODULES[script]
    node = shutil.which("node")
    if node is None or not (CLIENTS / "node_modules" / module).is_dir():
        pytest.skip("node or the packages are not there: npm install in examples/clients")
    check(served, [node, CLIENTS / f"{script}.mjs"], begins, paths)


def turns(served: str, command: list[Any], cases: int) -> None:
    """All cases of a script passed."""
    # The scripts import the one beside them.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=600,
        env={**kept, "EDGEDEC_URL": served, "EDGEDEC_MODEL": "nano", "HF_HUB_OFFLINE": "1"},
    )
    passed = [line for line in done.stdout.splitlines() if line.endswith(": ok")]
    assert (done.returncode, len(passed)) == (0, cases), done.stdout[-2000:] + done.stderr[-3000:]


@pytest.mark.parametrize("script", TURNS)
def test_two_turns_of_python(served: str, script: str) -> None:
    module, cases = TURNS[script]
    python = python_with(module)
    if python is None:
        pytest.skip(f"{module} is not installed: see examples/clients/README.md")
    turns(served, [python, CLIENTS / "turns" / f"{script}.py"], cases)


@pytest.mark.parametrize("script", MODULE_TURNS)
def test_two_turns_of_javascript(served: str, script: str) -> None:
    module, cases = MODULE_TURNS[script]
    node = shutil.which("node")
    if node is None or not (CLIENTS / "node_modules" / module).is_dir():
        pytest.skip("node or the packages are not there: npm install in examples/clients")
    turns(served, [node, CLIENTS / "turns" / f"{script}.mjs"], cases)


def test_every_example_is_tested_and_described() -> None:
    described = (CLIENTS / "README.md").read_text("utf-8")
    scripts = {path.name for path in CLIENTS.iterdir() if path.suffix in (".py", ".mjs")}
    assert scripts == {f"{name}.py" for name in SCRIPTS} | {f"{name}.mjs" for name in MODULES}
    found = {path.name for path in (CLIENTS / "turns").iterdir() if path.stem.endswith("_turns")}
    assert found == {f"{name}.py" for name in TURNS} | {f"{name}.mjs" for name in MODULE_TURNS}
    assert all(f"`{name}`" in described for name in (*scripts, "turns/"))
