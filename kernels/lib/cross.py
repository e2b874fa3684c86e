"""Compile libedgedec for other machines by zig, which has their C and C++ libraries inside: `make lib-cross`.

    pip install ziglang
    python kernels/lib/cross.py [--out build/cross] [TARGET…]

Without targets: all. Android is not among them: see `android.py` and docs/c-library.md.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SEVERAL = runpy.run_path(str(HERE / "several.py"))


@dataclass(frozen=True)
class CrossTarget:
    """zig's name of a machine, its architecture in edgedec, and the library's file name."""

    zig: str
    arch: str
    library: str


TARGETS = {
    "linux-arm64": CrossTarget("aarch64-linux-gnu.2.28", "aarch64", "libedgedec.so"),
    "linux-arm64-musl": CrossTarget("aarch64-linux-musl", "aarch64", "libedgedec.so"),
    "linux-x86-64-musl": CrossTarget("x86_64-linux-musl", "x86_64", "libedgedec.so"),
    "windows-x86-64": CrossTarget("x86_64-windows-gnu", "x86_64", "edgedec.dll"),
    "macos-arm64": CrossTarget("aarch64-macos", "aarch64", "libedgedec.dylib"),
}


def build(name: str, folder: Path, jobs: int | None = None) -> Path:
    """The library of a target, in a folder of its name under `folder`."""
    target, library = TARGETS[name], runpy.run_path(str(HERE / "build.py"))
    into = folder / name
    into.mkdir(parents=True, exist_ok=True)
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", target.zig]
    with tempfile.TemporaryDirectory(prefix="edgedec-") as temporary:
        link = ["-s", *_no_demangler(target, Path(temporary))]
        made: Path = library["build"](into / target.library, compiler, target.arch, jobs=jobs, link=link)
    if made.suffix == ".dll":
        _import_library(made)
    return made


def _no_demangler(target: CrossTarget, folder: Path) -> list[str]:
    """An object that replaces the C++ demangler, where the C++ library is linked in."""
    if "macos" in target.zig:
        return []
    flags = ["-target", target.zig, "-O2", "-fPIC", "-fvisibility=hidden"]
    made = folder / "no_demangler.o"
    command = [sys.executable, "-m", "ziglang", "cc", *flags, "-c", HERE / "no_demangler.c", "-o", made]
    subprocess.run(list(map(str, command)), check=True)
    return [str(made)]


def _import_library(dll: Path) -> None:
    """The import library of the DLL: NAME.lib, and the NAME.def that it is made from."""
    for unnamed in dll.parent.glob("cpu-0-*.lib"):
        unnamed.unlink()  # zig's own, named after an object and of a temporary name
    code = re.sub(r"/\*.*?\*/", "", (HERE / "include" / "edgedec.h").read_text("utf-8"), flags=re.S)
    names = re.findall(r"^EDGEDEC_API\s[^;(]*?\b(edgedec_\w+)\(", code, re.M)
    definition, library = dll.with_suffix(".def"), dll.with_suffix(".lib")
    definition.write_text("\n".join([f"LIBRARY {dll.name}", "EXPORTS", *names]) + "\n", "utf-8")
    tool = [sys.executable, "-m", "ziglang", "dlltool", "-m", "i386:x86-64", "-d", str(definition), "-l", str(library)]
    subprocess.run(tool, check=True)


if __name__ == "__main__":
    sys.exit(SEVERAL["main"](None, "cross", TARGETS, build))
