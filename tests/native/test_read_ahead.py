"""Experts that rows chose are read ahead from a mapped file: these and no others, and results stay the same bytes."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native.watched_reads import TOKENS, bundle_of

from edgedec.bench.experts import given_experts
from edgedec.bundle import Bundle
from edgedec.bundle.extents import extents
from edgedec.kernels.cpu.loader import why_not
from edgedec.spec import Moe
from edgedec.testing.conformance.compare import tokens

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels" / "cpu"
GIVEN = "experts chosen before the layers"
linux = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="replaces functions of Linux by a library of g++"
)


def compiled(out: Path, *words: str | Path) -> Path:
    done = subprocess.run(["g++", "-std=c++17", "-Wall", "-Wextra", *words, "-o", out], capture_output=True, text=True)
    if done.returncode and "san" in done.stderr:
        pytest.skip("no such sanitizer here")
    assert done.returncode == 0, done.stderr
    return out


@linux
@pytest.mark.parametrize("sanitize", ["", "address,undefined", "thread"])
def test_parts_of_a_file_that_begin_and_end_anywhere(tmp_path: Path, sanitize: str) -> None:
    flags = ["-O1", "-g", f"-fsanitize={sanitize}", "-fno-sanitize-recover=all"] if sanitize else ["-O2"]
    sources = [HERE / "read_ahead_test.cpp", KERNELS / "mapped_file.cpp"]
    program = compiled(tmp_path / "test", *flags, f"-I{KERNELS}", *sources)
    done = subprocess.run([program, tmp_path / "file"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "wrong: 0\n"), done.stdout + done.stderr
