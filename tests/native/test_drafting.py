"""The drafters and the tree merge of the library by themselves, under sanitizers too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
KERNELS = HERE.parents[1] / "kernels" / "cpu"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"] if SLOW else ["address,undefined"])
def test_drafting_of_several_threads(tmp_path: Path, sanitize: str) -> None:
    command = ["g++", "-std=c++17", "-O0", "-g1", "-Wall", "-Wextra", f"-I{KERNELS}", "-fno-sanitize-recover=all"]
    sources = [HERE / "drafting_test.cpp", *sorted(KERNELS.glob("spec_*.cpp"))]
    built = subprocess.run(
        [*command, f"-fsanitize={sanitize}", *sources, "-pthread", "-o", tmp_path / "drafting"],
        capture_output=True,
        text=True,
    )
    if built.returncode and "san" in built.stderr and "error:" not in built.stderr:
        pytest.skip(f"no sanitizer {sanitize} here")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "drafting"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "wrong: 0\n"), done.stderr[-3000:]
