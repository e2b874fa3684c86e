"""Races and accesses out of bounds in the OpenCL kernels, looked for by oclgrind, an interpreter of OpenCL 1.2. It has
no shared virtual memory, so this is the engine with its memory in plain buffers as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.kernels.opencl import driver, library, sources, variants
from edgedec.runtimes._selftest.cases import CASES

OCLGRIND = Path("/usr/lib/oclgrind/liboclgrind-rt.so")
pytestmark = pytest.mark.skipif(not OCLGRIND.is_file(), reason="oclgrind is not installed (Debian: oclgrind)")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="minutes; set EDGEDEC_SLOW_TESTS")
# Every kernel at least once: those of each weight and cache format, experts, state space, cache policies.
WATCHED = [case for i, case in enumerate(CASES) if i in (2, 7, 9, 12) or (case.model != "dense" and case.kv == "int8")]
# One kernel on two rows of 64 floats.
NORMS = """
import sys
from pathlib import Path
import numpy as np
from edgedec.kernels.device import structs
from edgedec.kernels.device.interface import Buffer
from edgedec.kernels.opencl import driver, memory
memory._FIRST = 1 << 20  # oclgrind keeps 50 bytes for each
device = driver.OpenclDevice(driver.chosen(), Path(sys.argv[1]).read_text())
assert 'SHARED_MEMORY' not in device.variants
x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
rows, weight, out = (Buffer.of(device, array) for array in (x, np.ones(64, np.float32), np.zeros((2, 64), np.float32)))
pointers = int(structs.STEP.format.removeprefix("@").partition("P")[0])
about = np.zeros(structs.STEP.size, np.uint8)
about[8 * pointers] = 2  # rows
step = Buffer.of(device, about)
norm = structs.Norm(weight.at, 0, structs.NORMS["rms"], 1e-6)
device.launch("norm_rows", (2, 1, 1), 32, 16, structs.norm_rows(step.at, rows.at, out.at, norm, 64, 64, 64, False))
found = np.zeros((2, 64), np.float32)
device.read(out.at, found)
print(np.abs(found - x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)).max() < 1e-5)
"""
# A golden case of the self-test: every kernel of a model.
CASE = """
import sys
from edgedec.kernels.opencl import driver, memory
from edgedec.runtimes._selftest import check
from edgedec.runtimes._selftest.cases import CASES
memory._FIRST = 1 << 20
device = driver.OpenclDevice(driver.chosen())
case = next(case for case in CASES if case.name == sys.argv[1])
print(check.is_right(device, case) and device.launches > 100, any(name.endswith("_image") for name in device._kernels))
"""


def watched(code: str, argument: str, tmp_path: Path, words: str = "") -> tuple[str, str]:
    """What a program prints, and what oclgrind has to say."""
    log = tmp_path / "oclgrind.log"
    environment = {
        **os.environ,
        library.LIBRARY: str(OCLGRIND),
        driver.DEVICE: "0",
        variants.VARIANTS: words,
        "EDGEDEC_CACHE": str(tmp_path / "cache"),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_CHECK_API": "1",
        "OCLGRIND_NUM_THREADS": "1",
        "OCLGRIND_LOG": str(log),
    }
    done = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), log.read_text("utf-8") if log.exists() else ""


def program(tmp_path: Path, text: str) -> str:
    file = tmp_path / "program.cl"
    file.write_text(text, "utf-8")
    return str(file)


def test_a_kernel_without_races_is_right_in_plain_buffers(tmp_path: Path) -> None:
    assert watched(NORMS, program(tmp_path, sources.source()), tmp_path) == ("True", "")


def test_a_planted_race_is_found(tmp_path: Path) -> None:
    """The barrier between writing sixteen lanes and adding them up, left out."""
    kept = "    lanes[THREAD] = squares;\n  }\n  BARRIER;\n"
    text = sources.source()
    assert text.count(kept) == 1
    _, said = watched(NORMS, program(tmp_path, text.replace(kept, kept.replace("  BARRIER;\n", ""))), tmp_path)
    assert "data race at local memory" in said
    assert "norm_rows" in said
    assert "sum_lanes" in said or "squares" in said


def test_a_planted_access_out_of_bounds_is_found(tmp_path: Path) -> None:
    text = sources.source()
    kept = "      const float y = normed(x[i], a.norm, s, part * a.part + i);\n"
    assert text.count(kept) == 1
    wrong = kept.replace("x[i]", "x[i + (1 << 28)]")
    _, said = watched(NORMS, program(tmp_path, text.replace(kept, wrong)), tmp_path)
    assert "Invalid read of size 4 at global memory" in said
    assert "norm_rows" in said


@slow
@pytest.mark.parametrize("case", WATCHED, ids=lambda case: case.name)
def test_the_kernels_have_no_races(case: object, tmp_path: Path) -> None:
    assert watched(CASE, case.name, tmp_path) == ("True False", "")  # type: ignore[attr-defined]


@slow
@pytest.mark.parametrize("case", [CASES[2], CASES[7], CASES[9]], ids=lambda case: case.name)
def test_products_that_read_images_have_no_races(case: object, tmp_path: Path) -> None:
    assert watched(CASE, case.name, tmp_path, "images") == ("True True", "")  # type: ignore[attr-defined]
