"""libedgedec built for other machines: its size, its pages, and the story it tells there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from clibrary import HEADER, ROOT, builder, library_file, needs_compiler, needs_patience
from replayed import SOURCES, compare_bytes, compare_requests, run_cases

CROSS, EMULATOR, ARM_ROOT = "aarch64-linux-gnu-g++", "qemu-aarch64-static", Path("/usr/aarch64-linux-gnu")


def stripped(library: Path, strip: str, tmp_path: Path) -> int:
    """Its bytes without symbols that nobody needs."""
    if not shutil.which(strip):
        pytest.skip(f"no {strip} here")
    subprocess.run([strip, "-o", tmp_path / "stripped", library], check=True)
    return (tmp_path / "stripped").stat().st_size


@needs_compiler
def test_it_is_small_and_for_large_pages(tmp_path: Path) -> None:
    assert 500_000 < stripped(library_file(), "strip", tmp_path) < 2_450_000
    if shutil.which("readelf"):
        shown = subprocess.check_output(["readelf", "-lW", library_file()], text=True)
        loads = [line.split() for line in shown.splitlines() if line.split()[:1] == ["LOAD"]]
        assert loads
        assert all(int(load[-1], 16) >= 16384 for load in loads)
        needed = subprocess.check_output(["readelf", "-dW", library_file()], text=True)
        assert "python" not in needed
        assert "onnx" not in needed


@needs_compiler
def test_cmake_finds_what_it_installs(tmp_path: Path) -> None:
    """The files of a package, without compiling: what is installed is checked by `make demo-c`."""
    if not shutil.which("cmake"):
        pytest.skip("no cmake here")
    done = subprocess.run(["cmake", "-S", ROOT / "kernels" / "lib", "-B", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"edgedec-config.cmake", "edgedec-config-version.cmake", "edgedec.pc"} <= {
        p.name for p in tmp_path.iterdir()
    }
    assert "Version: 0." in (tmp_path / "edgedec.pc").read_text()


@needs_patience
def test_on_arm(nano: Path, tmp_path: Path) -> None:
    """Under an emulator, with the best instructions and with the least: nano's story, and Python's tokens and bytes."""
    if not (shutil.which(CROSS) and shutil.which(EMULATOR)):
        pytest.skip(f"no {CROSS} or no {EMULATOR} here")
    library = builder().build(tmp_path / "libedgedec.so", cxx=CROSS, arch="aarch64", jobs=2)
    assert stripped(library, "aarch64-linux-gnu-strip", tmp_path) < 2_450_000
    source, flags = ROOT / "examples" / "c" / "story.c", [f"-I{HEADER.parent}", f"-L{tmp_path}", "-ledgedec"]
    subprocess.run(["aarch64-linux-gnu-gcc", "-std=c99", source, *flags, "-o", tmp_path / "story"], check=True)
    for cpu in ("max", "cortex-a57"):
        command = [EMULATOR, "-cpu", cpu, "-L", ARM_ROOT, "-E", f"LD_LIBRARY_PATH={tmp_path}", tmp_path / "story", nano]
        shown = subprocess.check_output(command, text=True, timeout=600)
        assert shown.startswith("Once upon a time, there was a little girl named Lily. She loved to play with her toys")
    source, flags = SOURCES[0], [f"-I{HEADER.parent}", SOURCES[1], f"-L{tmp_path}", "-ledgedec", "-pthread"]
    subprocess.run([CROSS, "-std=c++17", source, *flags, "-o", tmp_path / "replay"], check=True)
    replay = [EMULATOR, "-cpu", "max", "-L", ARM_ROOT, "-E", f"LD_LIBRARY_PATH={tmp_path}", tmp_path / "replay"]
    compare_requests(replay, nano, tmp_path, every=8)
    for kv in ("f32", "int4"):
        compare_bytes(replay, nano, tmp_path, kv)
    run_cases(replay, nano, tmp_path)
