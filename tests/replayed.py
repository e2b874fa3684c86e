"""What the C++ program of library/elsewhere replays of Python's, on this machine or another, and what it must say."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clibrary import LIBRARY
from kotlin_golden import GOLDEN

from edgedec.bundle import Bundle
from edgedec.bundle.packed import pack

SOURCES = [Path(__file__).parent / "library" / "elsewhere" / f"{name}.cpp" for name in ("replay", "cases")]
HASHES = json.loads((Path(__file__).parent / "golden" / "nano_native.json").read_text("utf-8"))
REALS = ["temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
CASES = ["library", "refusals", "texts", "files", "packed bundles", "together", "threads", "cancelled", "memory",
         "progress"]  # fmt: skip


def link_replay(compiler: Sequence[str], folder: Path, link: Sequence[str | Path]) -> None:
    """The program, by a compiler of zig's. First the objects: zig makes a C++ library for the options of each link."""
    objects = [folder / f"{source.stem}.o" for source in SOURCES]
    for source, into in zip(SOURCES, objects, strict=True):
        flags = ["-std=c++17", "-O1", "-fPIC", f"-I{LIBRARY / 'include'}", "-c", source, "-o", into]
        subprocess.run([*compiler, *flags], check=True)
    subprocess.run([*compiler, *objects, *link], check=True)


def line_of(request: dict[str, Any]) -> str:
    """A request of the golden file as the program reads it; doubles by their bits."""
    sampling, ids = request["sampling"], request["ids"]
    reals = [struct.unpack("<Q", struct.pack("<d", sampling[name]))[0] for name in REALS]
    head = (request["kv"], request["drafts"], request["then"], len(ids))
    return " ".join(map(str, (*head, *ids, *reals, sampling["top_k"], sampling["seed"])))


def compare_requests(command: Sequence[str | Path], nano: Path, folder: Path, env: Any = None, every: int = 1) -> None:
    requests = json.loads(GOLDEN.read_text("utf-8"))["requests"][::every]
    (folder / "requests").write_text("\n".join(map(line_of, requests)) + "\n")
    told, run = folder / "told", [*command, "requests", nano, folder / "requests", folder / "told", folder]
    subprocess.run(run, check=True, env=env, timeout=1200)
    lines = told.read_text().splitlines()
    assert len(lines) == len(requests) > 5
    accepted = 0
    for number, (line, request) in enumerate(zip(lines, requests, strict=True)):
        first, more, right = (list(map(int, part.split())) for part in line.split("|"))
        assert (first, more) == (request["tokens"], request["more"]), number
        accepted += right[0]
    assert accepted, "nothing was drafted and right"


def compare_bytes(command: Sequence[str | Path], nano: Path, folder: Path, kv: str, env: Any = None) -> None:
    subprocess.run([*command, "golden", nano, kv, folder / "golden"], check=True, env=env, timeout=600)
    assert hashlib.sha256((folder / "golden").read_bytes()).hexdigest() == HASHES[kv]


def run_cases(command: Sequence[str | Path], nano: Path, folder: Path, env: Any = None) -> None:
    pack(Bundle.open(nano), folder / "nano.edb")
    scratch = folder / "scratch"
    scratch.mkdir()
    run = [*command, "cases", nano, folder / "nano.edb", scratch]
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == CASES
    names = {path.name for path in scratch.iterdir()}
    assert "Über 日本.session" in names
    assert not any(".partial-" in name for name in names)
