"""`-m model.gguf`: converted once, into the cache folder, by the file's bytes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vocabularies

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.locate import Progress, announce, find
from edgedec.cli import main
from edgedec.errors import BundleNotFound, CheckpointError
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.gguf import converted
from edgedec.export.gguf.file import GgufFile
from edgedec.runtime import Rows, logits_of, open_runtime

WORDS = vocabularies.byte_level
llama = vocabularies.tiny


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def bundles(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != "seen")


def test_a_file_is_converted_once(cache: Path, tmp_path: Path) -> None:
    path, told = llama(tmp_path / "m.gguf"), []

    @contextmanager
    def telling(what: str, folder: Path) -> Iterator[Progress]:
        told.append((what, folder))
        yield lambda stage, done, total: None

    token = announce.set(telling)
    try:
        first, again = find(path), find(str(path))
        copy = tmp_path / "copy.gguf"
        copy.write_bytes(path.read_bytes())
        os.utime(path)  # the same bytes with another time
        assert find(path) == first == again
        assert told == [(f"{path.name} is converted", first)]
        assert first.parent == cache
        other = find(llama(path, seed=1))
        assert other != first
        assert len(told) == 2
    finally:
        announce.reset(token)
    assert sorted([first.name, other.name]) == bundles(cache)
    assert find(copy).name.startswith("copy-")


def test_a_file_of_any_name(cache: Path, tmp_path: Path) -> None:
    """Other programs keep them under a hash."""
    blob = llama(tmp_path / "m.gguf").rename(tmp_path / "sha256-abc")
    assert find(blob).parent == cache
    assert export(str(blob), tmp_path / "out", ExportOptions(check=False)).spec == Bundle.open(find(blob)).spec


def test_a_large_file_is_read_with_progress_and_only_if_it_can_be_converted(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    @contextmanager
    def telling(what: str, folder: Path) -> Iterator[Progress]:
        told.append(what)
        yield lambda stage, done, total: told.append(f"{stage} {done == total}")

    monkeypatch.setattr(converted, "_LARGE", 1)
    token = announce.set(telling)
    try:
        find(llama(tmp_path / "m.gguf"))
        assert told[:3] == ["m.gguf is read", "read True", "m.gguf is converted"]
        told.clear()
        (tmp_path / "bad.gguf").write_bytes(b"GGUX" + bytes(100))
        with pytest.raises(CheckpointError, match="is not a GGUF file"):
            find(tmp_path / "bad.gguf")
        assert told == []
    finally:
        announce.reset(token)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("edgedec.json", "name its folder: "),
        ("model.safetensors", r"edgedec export .* -o BUNDLE"),
        ("model.onnx", r"edgedec import .* -o BUNDLE"),
        ("notes.txt", "neither a GGUF file nor a packed bundle"),
    ],
)
def test_a_file_that_is_no_model_by_itself(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(BundleNotFound, match=says):
        find(tmp_path / name)


def test_a_name_of_the_hub_without_its_prefix() -> None:
    with pytest.raises(BundleNotFound, match=r"a model of the Hugging Face Hub is hf:someone/tiny"):
        find("someone/tiny")


def test_the_progress_of_a_conversion(cache: Path, tmp_path: Path) -> None:
    """Told stage by stage, from less to all of it, and only while a bundle is made."""
    path, told = llama(tmp_path / "m.gguf"), list[tuple[str, int, int]]()

    @contextmanager
    def telling(what: str, folder: Path) -> Iterator[Progress]:
        yield lambda stage, done, total: told.append((stage, done, total))

    token = announce.set(telling)
    try:
        find(path)
        count = len(told)
        find(path)
    finally:
        announce.reset(token)
    assert count == len(told)
    weights = [(done, total) for stage, done, total in told if stage == "weights"]
    assert weights == sorted(weights)
    assert len(weights) > 5  # a step for each tensor
    assert weights[-1][0] == weights[-1][1] > weights[0][0] > 0
    assert {stage for stage, done, total in told if done == total} == {stage for stage, _, _ in told}


@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
def test_a_bar_is_drawn_in_a_terminal(cache: Path, tmp_path: Path) -> None:
    path = llama(tmp_path / "m.gguf")
    first, again = (drawn("run", "-m", str(path), "-p", "ab", "-n", "2", "--temp", "0") for _ in range(2))
    assert "m.gguf is converted, this first time only, into" in " ".join(first.split())
    assert "weights" in first
    assert "100%" in first
    assert "━" in first
    assert "weights" not in again
    assert "%" not in again


def drawn(*command: str) -> str:
    """What a command writes to a terminal that shows its errors."""
    import pty

    ours, its = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
    running = subprocess.Popen(
        [sys.executable, "-m", "edgedec", *command], stdout=subprocess.DEVNULL, stderr=its, env=environment
    )
    os.close(its)
    found = b""
    try:
        while part := os.read(ours, 1 << 16):
            found += part
    except OSError:  # Linux's word for the end
        pass
    os.close(ours)
    assert running.wait(60) == 0, found
    return found.decode()


def test_a_file_generates(cache: Path, tmp_path: Path) -> None:
    path = llama(tmp_path / "m.gguf")
    model = edgedec.open(path)
    text = "".join(model.session().generate("ab", max_tokens=12))
    assert model.bundle.path.parent == cache
    assert model.bundle.manifest.quantization["body"] == "int8"
    assert text == "".join(edgedec.open(str(path)).session().generate("ab", max_tokens=12))


def test_the_command_says_what_it_does(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = llama(tmp_path / "m.gguf", "Q4_0")
    command = ["run", "-m", str(path), "-p", "ab", "-n", "4", "--temp", "0", "--json"]
    assert main(command) == 0
    first = capsys.readouterr()
    assert first.err.strip() == f"edgedec: m.gguf is converted, this first time only, into {cache / bundles(cache)[0]}"
    assert main(command) == 0
    again = capsys.readouterr()
    assert "converted" not in again.err
    assert json.loads(again.out)["text"] == json.loads(first.out)["text"]


def test_export_takes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = llama(tmp_path / "m.gguf", "Q4_0")
    assert main(["export", str(path), "-o", str(tmp_path / "b"), "--for", "native", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parity"]["kl"]["f32"] < 0.05  # the integers are the file's own
    assert (
        main(["export", str(path), "-o", str(tmp_path / "c"), "--weights", "f32", "--for", "native", "--no-check"]) == 0
    )


def test_what_cannot_be_converted_leaves_nothing(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + bytes(50))
    with pytest.raises(CheckpointError):
        find(path)
    assert main(["run", "-m", str(path), "-p", "x"]) == 1
    assert capsys.readouterr().err == f"edgedec: : in {path}, has 0 axes; there can be 1 to 4\n"
    assert bundles(cache) == []
    with pytest.raises(BundleNotFound, match="no such file"):
        find(tmp_path / "n.gguf")


def test_a_note_that_is_damaged_is_made_anew(cache: Path, tmp_path: Path) -> None:
    path = llama(tmp_path / "m.gguf")
    first = find(path)
    (note,) = (cache / "seen").iterdir()
    for content in ("", "[]", '[[1], "../../x"]', "\xff"):
        note.write_text(content, "latin-1")
        assert find(path) == first


@pytest.mark.parametrize("isa", ["scalar", None])
def test_the_least_integer_of_q8_0_is_a_number_like_others(
    isa: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ggml never writes -128, others may: the error is no larger than with -127."""
    path = llama(tmp_path / "m.gguf")
    errors = []
    for byte in (0x80, 0x81):
        folder = tmp_path / str(byte)
        bundle = export(str(filled(path, byte)), folder, ExportOptions(check=False, runtimes=("native",)))
        values = [_logits(bundle, name, isa, monkeypatch) for name in ("reference", "native")]
        errors.append(np.sqrt(((values[0] - values[1]) ** 2).mean()))
    assert 0 < errors[0] < 1.5 * errors[1]


def filled(path: Path, byte: int) -> Path:
    """The file with all integers of one matrix alike."""
    tensor = GgufFile.open(path).tensors["blk.0.ffn_down.weight"]
    raw = bytearray(path.read_bytes())
    for at in range(tensor.offset, tensor.offset + tensor.size, 34):
        raw[at + 2 : at + 34] = bytes([byte]) * 32
    path.write_bytes(raw)
    return path


def _logits(bundle: Bundle, name: str, isa: str | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    if isa:
        monkeypatch.setenv("EDGEDEC_ISA", isa)
    runtime = open_runtime(name, bundle)
    return logits_of(runtime, Rows.chain(np.arange(3, 20), 0), runtime.new_cache(32))
