"""Random input for every entry of libedgedec: no crash, and errors with names. With sanitizers in the slow tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from clibrary import builder, needs_compiler, needs_patience

from edgedec.bundle import Bundle
from edgedec.bundle.packed import pack

SOURCE = Path(__file__).with_name("library_fuzz.cpp")
# How many in the fast tests.
MODES = {"manifest": 300, "tokenizer": 20, "index": 300, "session": 300, "calls": 60}
# The slow tests run so many times as many; EDGEDEC_FUZZ_ROUNDS says otherwise.
ROUNDS = int(os.environ.get("EDGEDEC_FUZZ_ROUNDS", "20"))


@pytest.fixture(scope="module")
def packed(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nano with nothing in it that the library has no use for."""
    folder = tmp_path_factory.mktemp("fuzz")
    manifest = json.loads((nano / "edgedec.json").read_text())
    keep = ("weights.bin", "tokenizer.json")
    manifest["files"] = {name: file for name, file in manifest["files"].items() if name in keep}
    manifest["artifacts"] = manifest["heads"] = manifest["drafts"] = {}
    (folder / "b").mkdir()
    for name in keep:
        shutil.copyfile(nano / name, folder / "b" / name)
    (folder / "b" / "edgedec.json").write_text(json.dumps(manifest))
    pack(Bundle.open(folder / "b"), folder / "nano.edb")
    return folder / "nano.edb"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = builder().build(tmp_path_factory.mktemp("program") / "fuzz", mains=[SOURCE], jobs=2)
    return made


def run(program: Path, mode: str, packed: Path, count: int, seed: int) -> int:
    """How many were accepted."""
    done = subprocess.run([program, mode, packed, str(count), str(seed)], capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, (mode, seed, done.stderr[-3000:])
    ran, accepted = map(int, done.stdout.split())
    assert ran == count
    return accepted


@needs_compiler
@pytest.mark.parametrize("mode", MODES)
def test_random_input(program: Path, packed: Path, mode: str) -> None:
    assert run(program, mode, packed, MODES[mode], 7) < MODES[mode] or mode == "tokenizer"


@needs_compiler
@needs_patience
def test_random_input_with_sanitizers(packed: Path, tmp_path: Path) -> None:
    program = builder().build(tmp_path / "fuzz", sanitize="address,undefined", mains=[SOURCE], jobs=2)
    for mode, count in MODES.items():
        run(program, mode, packed, count * ROUNDS, 11)
