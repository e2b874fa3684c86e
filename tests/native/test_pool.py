"""The pool of cache pages by itself, under sanitizers too."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels" / "cpu"
PROGRAM = HERE / "pages_test.cpp"
SOURCES = [KERNELS / name for name in ("pages.cpp", "mapped_file.cpp")]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
@pytest.mark.parametrize("sanitize", ["", "address,undefined", "thread"])
def test_pages_of_several_threads(tmp_path: Path, sanitize: str) -> None:
    flags = ["-O1", "-g", f"-fsanitize={sanitize}", "-fno-sanitize-recover=all"] if sanitize else ["-O2"]
    command = ["g++", "-std=c++17", *flags, f"-I{KERNELS}", PROGRAM, *SOURCES, "-pthread", "-o"]
    built = subprocess.run([*command, tmp_path / "pages"], capture_output=True, text=True)
    if built.returncode and "san" in built.stderr:
        pytest.skip(f"no sanitizer {sanitize} here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "pages", tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "wrong: 0\n"), done.stderr
