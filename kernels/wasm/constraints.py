"""Compile llguidance to WebAssembly by cargo: `edgedec-constraints.wasm`, which JavaScript's structured output needs.

Needs Rust 1.87 with the target wasm32-wasip1 (`rustup target add wasm32-wasip1`). Standard library only.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CPU: dict[str, Any] = runpy.run_path(str(HERE.parent / "cpu" / "build.py"))
BuildFailed = CPU["BuildFailed"]
CRATE, TARGET, NAME = HERE / "llguidance", "wasm32-wasip1", "edgedec-constraints.wasm"


def why_not() -> str:
    """Why it cannot be compiled here; "": it can."""
    if not shutil.which("cargo") or not shutil.which("rustc"):
        return "no Rust here, in which llguidance is written: https://rustup.rs"
    found = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", TARGET], capture_output=True, text=True, check=False
    )
    if found.returncode or not Path(found.stdout.strip()).is_dir():
        return f"Rust cannot compile for WebAssembly here: rustup target add {TARGET}"
    return ""


def build(out: Path, jobs: int | None = None, offline: bool = False) -> Path:
    """Compile into folder `out`; the file appears when it is finished."""
    if why := why_not():
        raise BuildFailed(why)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="edgedec-") as folder:
        command = ["cargo", "build", "--release", "--locked", "--quiet", "--target", TARGET, "--target-dir", folder]
        command += ["--manifest-path", str(CRATE / "Cargo.toml"), "--jobs", str(jobs or os.cpu_count() or 1)]
        CPU["run"]([*command, *["--offline"] * offline], None)
        with CPU["replacing"](out / NAME) as partial:
            shutil.copyfile(Path(folder, TARGET, "release", NAME.replace("-", "_")), partial)
    return out / NAME
