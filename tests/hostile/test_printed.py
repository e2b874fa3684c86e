"""What a file, a server or a model says does not steer the terminal that it is printed on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import write_llama
from hub_server import serving_hub

from edgedec.cli._visible import VisibleStream, visible, visible_json
from hostile.bundles import change_manifest

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp\x7f\r"


def test_controls_are_spelled() -> None:
    assert visible("a\x1b\n\t\u202e\x9b\x7f\u00e9\U0001f642") == "a\\x1b\\x0a\\x09\\u202e\\x9b\\x7f\u00e9\U0001f642"
    value = {EVIL: [EVIL, 1]}
    shown = visible_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(shown) == value
    assert clean(shown)


def clean(text: str) -> bool:
    return not any(c in text for c in EVIL if not (c.isascii() and c.isprintable()))


def test_a_stream_keeps_lines_and_tabs(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        stream = VisibleStream(file, "utf-8")
        print(f"a\tb {EVIL}", file=stream)
        stream.flush()
        stream.detach()
    assert path.read_text("utf-8").startswith("a\tb \\x1b[2J")
    assert path.read_text("utf-8").endswith("\\x0d\n")


def printed(*argv: str | Path) -> str:
    """Stdout and stderr of a command in a process of its own."""
    command = [sys.executable, "-m", "edgedec", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "surrogateescape").replace(os.linesep, "\n")


def test_names_of_a_bundle(nano: Path, tmp_path: Path) -> None:
    bundle = change_manifest(nano, tmp_path / "bundle", lambda manifest: manifest.update(name=f"n{EVIL}"))
    for more in ([], ["--json"]):
        said = printed("inspect", bundle, *more)
        assert "[2J" in said
        assert clean(said)


def test_an_error_that_quotes_a_file(nano: Path, tmp_path: Path) -> None:
    def weights(manifest: dict[str, object]) -> None:
        manifest["weights"] = f"w{EVIL}.bin"

    said = printed("run", "-m", change_manifest(nano, tmp_path / "bundle", weights), "-p", "Once")
    assert "[2J" in said
    assert clean(said)


def test_an_error_that_quotes_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="pulling needs huggingface_hub")
    with serving_hub({"a/b": write_llama(tmp_path / "repository")}) as (address, hub):
        hub.lies = {"commit": f"c{EVIL}".replace("\r", "").replace("\u202e", "")}
        for name, value in {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}.items():
            monkeypatch.setenv(name, value)
        said = printed("pull", "a/b")
    assert "edgedec: hf:a/b: " in said
    assert clean(said)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_models_text_on_a_terminal(nano: Path, tmp_path: Path) -> None:
    """A token of nano spells an escape sequence; a terminal gets it spelled, a pipe as it is."""
    import pty

    def spell(text: str) -> str:
        made = json.loads(text)
        word = next(token for token in made["model"]["vocab"] if token == "\u0120the")
        made["decoder"] = {"type": "Replace", "pattern": {"String": word}, "content": " \x1b[2J"}
        return json.dumps(made)

    bundle = change_manifest(nano, tmp_path / "bundle", lambda manifest: None, {"tokenizer.json": spell})
    command = [sys.executable, "-m", "edgedec", "run", "-m", str(bundle), "-p", "Once upon a time", "-n", "60"]
    command += ["--temp", "0", "--spec", "off"]
    assert b"\x1b[2J" in subprocess.run(command, capture_output=True, check=True).stdout
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        said = b""
        while part := _read(ours):
            said += part
        process.wait(60)
    os.close(ours)
    assert b"\\x1b[2J" in said
    assert b"\x1b" not in said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side has closed it
        return b""
