"""A hostile chat template costs its own turn, row or request on every path that renders one."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from hostile import inputs as hostile
from serving import serving

import edgedec
from edgedec.bundle.manifest import MANIFEST
from edgedec.cli import main
from edgedec.errors import TextError

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux")
pytestmark = linux
TOO_MUCH = "chat template: takes more"
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module", params=["join bomb", "empty loops"])
def trapped(request: pytest.FixtureRequest, nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nano with a template that fills memory or never ends."""
    folder = tmp_path_factory.mktemp("trapped") / "nano"
    shutil.copytree(nano, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["text"]["chat_template"] = hostile.TEMPLATES[request.param]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> None:
    """The command ends with one line that says why."""
    assert main([*command, "-t", "1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"edgedec: {TOO_MUCH}")
    assert error.count("\n") == 1


def test_chat(trapped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "chat", "-m", str(trapped), "-p", "x", "--single-turn", "-n", "4")


def test_chat_with_a_template_of_the_command(nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = hostile.TEMPLATES["string + loop"]
    (tmp_path / "t.jinja").write_text(template)
    refused(capsys, "chat", "-m", str(nano), "-p", "x", "--single-turn", "--chat-template", template)
    refused(capsys, "chat", "-m", str(nano), "-p", "x", "--chat-template-file", str(tmp_path / "t.jinja"))


def test_run_as_a_conversation(trapped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "run", "-cnv", "-m", str(trapped), "-p", "x", "-n", "4")


def test_run_renders_nothing(trapped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-m", str(trapped), "-p", "Once", "-n", "4", "--temp", "0", "-t", "1"]) == 0
    assert capsys.readouterr().out.startswith("Once")


def test_batch(trapped: Path, tmp_path: Path) -> None:
    """The row with messages has an error in its place, the one without is answered."""
    rows, answers = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    openai = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": MESSAGES}}
    lines = [{"messages": MESSAGES}, {"prompt": "Once upon a time"}, openai]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code = main(["batch", str(rows), "-o", str(answers), "-m", str(trapped), "-n", "4", "-t", "1"])
    first, second, third = sorted(answers.read_text().splitlines(), key=lambda line: ("custom_id" in line, line))
    assert code in (0, 1)
    assert json.loads(first)["error"].startswith(TOO_MUCH)
    assert json.loads(second)["generated_tokens"] == 4
    assert TOO_MUCH in json.dumps(json.loads(third))


def test_python_and_the_evaluation_harness(trapped: Path) -> None:
    model = edgedec.open(trapped, threads=1)
    with pytest.raises(TextError, match=TOO_MUCH):
        list(model.session().chat(MESSAGES))
    harness = pytest.importorskip("edgedec.harness.model", reason="the harness is lm_eval", exc_type=ImportError)
    judged = object.__new__(harness.BundleLM)
    judged.model = model
    with pytest.raises(TextError, match=TOO_MUCH):
        judged.apply_chat_template(MESSAGES)


@pytest.mark.parametrize(
    ("door", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/responses", {"input": "x"}),
        ("/api/chat", {"model": "nano", "messages": MESSAGES}),
        ("/api/generate", {"model": "nano", "prompt": "x"}),
        ("/tokenize", {"messages": MESSAGES}),
    ],
)
def test_every_door_of_the_server(nano: Path, door: str, body: dict[str, object]) -> None:
    httpx = pytest.importorskip("httpx", reason="needs httpx")
    for package in ("starlette", "uvicorn"):
        pytest.importorskip(package, reason="serving needs it")
    model = edgedec.open(nano, threads=1)
    model.chat_template = hostile.TEMPLATES["join bomb"]
    with serving(model, slots=1) as (place, _):
        answer = httpx.post(place + door, json=body, timeout=300)
        assert 400 <= answer.status_code < 500, answer.text
        assert TOO_MUCH in answer.text
        plain = httpx.post(f"{place}/v1/completions", json={"prompt": "Once", "max_tokens": 2}, timeout=300)
        assert plain.status_code == 200
