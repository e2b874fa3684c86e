"""libedgedec for Android, compiled by zig without the NDK: what it needs of the system, its pages, and its tokens.

No Android runs here. musl stands in for Android's C library: its loader takes libc.so, libm.so and libdl.so for names
of its own, so the very files that go into the APK run under it, given `__errno`, as Android calls one function.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from clibrary import LIBRARY, needs_patience
from replayed import compare_bytes, compare_requests, link_replay, run_cases

ANDROID: dict[str, Any] = runpy.run_path(str(LIBRARY / "android.py"))
# Where musl's loader is, by ABI. For ARM: a folder with lib/ld-musl-aarch64.so.1, as Debian's package for arm64 has it.
MUSL = {"x86_64": Path("/"), "arm64-v8a": Path(os.environ.get("EDGEDEC_MUSL_ARM64", "/usr/aarch64-linux-musl"))}
LOADERS = {"x86_64": "lib/ld-musl-x86_64.so.1", "arm64-v8a": "lib/ld-musl-aarch64.so.1"}
SYMBOLS = (LIBRARY / "android" / "symbols.txt").read_text("utf-8").split()
ERRNO = "int* __errno_location(void);\nint* __errno(void) { return __errno_location(); }\n"
pytestmark = [needs_patience, pytest.mark.skipif(find_spec("ziglang") is None, reason="no zig here")]


@pytest.fixture(scope="module", params=ANDROID["ABIS"])
def abi(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def built(abi: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the ABI's library in a folder of its name."""
    folder = tmp_path_factory.mktemp("android")
    ANDROID["build"](abi, folder, 2)
    return folder


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf here")
def test_what_it_needs(built: Path, abi: str) -> None:
    library = built / abi / "libedgedec.so"
    assert 500_000 < library.stat().st_size < 2_000_000
    shown = subprocess.check_output(["readelf", "-dlW", "--dyn-syms", library], text=True)
    assert set(re.findall(r"\(NEEDED\).*\[(.*)\]", shown)) == {"libc.so", *ANDROID["BESIDE"]}
    assert re.findall(r"\(SONAME\).*\[(.*)\]", shown) == ["libedgedec.so"]
    loads = [line.split()[-1] for line in shown.splitlines() if line.split()[:1] == ["LOAD"]]
    assert loads
    assert all(int(align, 16) >= 16384 for align in loads)
    assert "TEXTREL" not in shown
    symbols = [line.split() for line in shown.splitlines() if re.match(r"\s+\d+: ", line)]
    wanted = {words[7].split("@")[0] for words in symbols if len(words) > 7 and words[6] == "UND"}
    wanted -= {""}
    assert "malloc" in wanted
    assert wanted <= set(SYMBOLS), wanted - set(SYMBOLS)
    given = {words[7] for words in symbols if words[6] != "UND"}
    assert {"edgedec_open", "edgedec_generate"} < given
    assert all(name.startswith("edgedec_") for name in given), given


@pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-objdump"), reason="no aarch64-linux-gnu-objdump here")
def test_the_systems_register_is_left_alone(built: Path, abi: str) -> None:
    """But by the unwinder, which keeps it with the others and puts it back."""
    if not abi.startswith("arm"):
        pytest.skip("x86-64 has none")
    command = ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", built / abi / "libedgedec.so"]
    shown = subprocess.check_output(command, text=True)
    used = [line.split()[1] for line in shown.splitlines() if re.search(r"\b[xw]18\b", line)]
    assert len(used) < 10
    assert set(used) <= {"ldp", "stp"}


def test_it_tells_what_python_tells(built: Path, abi: str, nano: Path, tmp_path: Path) -> None:
    root = MUSL[abi]
    if not (root / LOADERS[abi]).exists():
        pytest.skip(f"no {root / LOADERS[abi]} here")
    arm = abi.startswith("arm")
    if arm and not shutil.which("qemu-aarch64-static"):
        pytest.skip("no qemu-aarch64-static here")
    (tmp_path / "errno.c").write_text(ERRNO)
    zig = [*ANDROID["zig"]("c", abi), "-shared", "-fPIC", tmp_path / "errno.c", "-o", tmp_path / "errno.so"]
    subprocess.run(zig, check=True)
    link = [f"-L{built / abi}", "-ledgedec", "-dynamic", "-fPIC", "-pie", "-o", tmp_path / "replay"]
    link_replay(ANDROID["zig"]("c++", abi), tmp_path, link)
    loader: list[str | Path] = [root / LOADERS[abi], "--library-path", built / abi, "--preload", tmp_path / "errno.so"]
    command = [*(["qemu-aarch64-static", "-cpu", "max"] if arm else []), *loader, tmp_path / "replay"]
    compare_requests(command, nano, tmp_path, every=10 if arm else 1)
    compare_bytes(command, nano, tmp_path, "f32")
    compare_bytes(command, nano, tmp_path, "int4")
    run_cases(command, nano, tmp_path)
