"""The engine's kernels, in C++: near double precision, and the same bits on every instruction set and machine."""

from __future__ import annotations

import os
import platform
import re
import runpy
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).parent
native = SimpleNamespace(**runpy.run_path(str(HERE.parents[1] / "kernels" / "cpu" / "build.py")))
COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
ARM_ROOT = Path("/usr/aarch64-linux-gnu")
NATIVE = native.ARCHITECTURES.get(platform.machine().lower(), "other")
# What a CPU has, and the best that it is given.
CPUS = {"max": ["dotprod", "i8mm"], "cortex-a76": ["dotprod"], "cortex-a57": []}

needs_compiler = pytest.mark.skipif(COMPILER is None or os.name == "nt", reason="no C++ compiler here")
needs_arm = pytest.mark.skipif(
    not (os.environ.get("EDGEDEC_SLOW_TESTS") and shutil.which(CROSS) and shutil.which(EMULATOR)),
    reason=f"no {CROSS} or no {EMULATOR} here, or no patience: asks for EDGEDEC_SLOW_TESTS=1",
)

needs_patience = pytest.mark.skipif(
    not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="compiles for minutes: asks for EDGEDEC_SLOW_TESTS=1"
)

SOURCES = {"products": "products_test.cpp", "attention": "attention_test.cpp", "bench": "attention_bench.cpp"}
READS = HERE / "expert_reads.cpp"
PART = """
#define main %s
#include "%s"
"""
MAIN = """
#include <cstdio>
#include <cstring>
#include "api.h"
int products();
int reads();
int attention(int, char**);
int bench(int, char**);
int main(int argc, char** argv) {
  std::printf("engine: %s\\n", ed_isa());
  if (argc > 1 && !std::strcmp(argv[1], "reads")) return reads();
  if (argc > 1 && !std::strcmp(argv[1], "bench")) return bench(argc - 1, argv + 1);
  return argc > 1 && !std::strcmp(argv[1], "attention") ? attention(argc - 1, argv + 1) : products();
}
"""


def build(folder: Path, **how: object) -> Path:
    """One program of the engine, both tests and the benchmark: compiling the engine is what takes the time."""
    texts = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.[ch]*")))
    changed = f"// {sha256(texts).hexdigest()}\n"  # or else the object of an older text would be taken
    parts = {name: PART % (name, HERE / source) + changed for name, source in SOURCES.items()}
    mains = [folder / f"{name}.cpp" for name in (*parts, "main")]
    for path in mains:
        path.write_text(parts.get(path.stem, MAIN))
    return Path(native.build(folder / "tests", mains=[*mains, READS], **how))


def run(program: Path, *arguments: str, cpu: str | None = None) -> tuple[str, str]:
    """What it says, and the instruction set that the engine would take."""
    emulated = [EMULATOR, "-L", str(ARM_ROOT), "-cpu", cpu] if cpu else []
    done = subprocess.run([*emulated, str(program), *arguments], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    found = re.search("^engine: (.*)$", said, re.M)
    assert found
    return said, found[1]


def tables(said: str) -> list[str]:
    found = re.search("^runs: (.*)$", said, re.M)
    assert found
    return found[1].split()


def digest(said: str) -> str:
    found = re.search("^digest: (.*)$", said, re.M)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("arm"), cxx=CROSS, arch="aarch64")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("checked"), sanitize="address,undefined")


@needs_compiler
def test_products_here(here: Path) -> None:
    said, engine = run(here, "products")
    assert tables(said)[0] == "scalar"
    assert engine in tables(said)


@needs_compiler
def test_a_call_of_8_rows_reads_the_union_of_their_experts_once(here: Path) -> None:
    """Counted at the products: of 16 experts 8 rows that choose 4 each read 32 one by one, and their union at once. By
    ReLU rows choose different numbers of experts."""
    said, _ = run(here, "reads")
    found = re.search(r"^experts: 32 read by 8 rows one by one, (\d+) at once, (\d+) in their union$", said, re.M)
    assert found, said
    assert 4 < int(found[1]) == int(found[2]) <= 16
    found = re.search(r"^experts by ReLU: (\d+) read by 8 rows one by one, (\d+) at once, (\d+) in", said, re.M)
    assert found, said
    assert 8 < int(found[2]) == int(found[3]) < int(found[1]) < 128


@needs_compiler
def test_attention_here(here: Path) -> None:
    run(here, "attention", "60")


@needs_compiler
def test_the_benchmark_of_attention_runs(here: Path) -> None:
    said, engine = run(here, "bench", "16", "2", "1")
    lines = re.findall(r"^(\S+) +(\S+) +decode +([\d.]+) ns a key, .* prefill +([\d.]+) G multiply", said, re.M)
    assert engine in {isa for isa, *_ in lines}
    assert [fmt for _, fmt, *_ in lines] == ["f32", "f16", "int8", "int4"] * (len(lines) // 4)
    assert lines


def test_every_program_here_is_run() -> None:
    """Each C++ file with a main is named by a test that compiles it."""
    tests = "".join(path.read_text("utf-8") for path in HERE.glob("test_*.py"))
    named = {path.name for path in HERE.glob("*.cpp") if f'"{path.name}"' in tests or f'"{path.stem}"' in tests}
    assert named == {path.name for path in HERE.glob("*.cpp")}


@needs_arm
@pytest.mark.parametrize("cpu", CPUS)
def test_products_on_arm(arm: Path, cpu: str) -> None:
    said, engine = run(arm, "products", cpu=cpu)
    assert tables(said) == ["scalar", *CPUS[cpu]]
    assert engine == ["scalar", *CPUS[cpu]][-1]


@needs_arm
@pytest.mark.parametrize("cpu", ["max", "cortex-a57"])
def test_attention_on_arm(arm: Path, cpu: str) -> None:
    run(arm, "attention", "8", cpu=cpu)


@needs_compiler
@needs_arm
def test_every_machine_has_the_same_bits(here: Path, arm: Path) -> None:
    assert digest(run(here, "products")[0]) == digest(run(arm, "products", cpu="max")[0])


@needs_compiler
@needs_patience
@pytest.mark.parametrize("test", [["products"], ["attention", "60"]], ids=lambda test: test[0])
def test_sanitized(checked: Path, test: list[str]) -> None:
    run(checked, *test)
