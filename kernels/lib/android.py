"""Compile libedgedec for Android without its NDK, by zig: 64-bit processors, Android 10 and later.

    pip install ziglang
    python kernels/lib/android.py [--out build/android] [arm64-v8a] [x86_64]

The C++ library is zig's and linked in. zig has no headers of Android's C library, so those of musl are used: on 64-bit
machines its types and constants equal Android's where this library uses them: threads, mutexes, conditions, files,
mappings, core sets. The differences are in `android/bionic.c`. `android/symbols.txt` lists all symbols used from
Android's libc.so, libm.so, libdl.so, which have them since Android 10 or earlier. The register x18 is reserved for the
system.

With an NDK take `CMakeLists.txt` and its toolchain file (docs/c-library.md): that is the officially supported way.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARY: dict[str, Any] = runpy.run_path(str(HERE / "build.py"))
SEVERAL = runpy.run_path(str(HERE / "several.py"))
BuildFailed = LIBRARY["BuildFailed"]
# Android's name of a processor: zig's, and that of kernels/cpu.
ABIS = {
    "arm64-v8a": (("-target", "aarch64-linux-musl", "-mcpu=generic+reserve_x18"), "aarch64"),
    "x86_64": (("-target", "x86_64-linux-musl", "-mcpu=x86_64_v2"), "x86_64"),
}
PAGE = ("-Wl,-z,max-page-size=16384",)
# Android's linker searches only the libraries that a file names as needed; musl has all functions in libc.so.
BESIDE = ("libm.so", "libdl.so")


def zig(language: str, abi: str) -> list[str]:
    """The compiler for an ABI: language is "c" or "c++"."""
    if find_spec("ziglang") is None:
        raise BuildFailed("needs zig: pip install ziglang")
    return [sys.executable, "-m", "ziglang", {"c": "cc", "c++": "c++"}[language], *ABIS[abi][0]]


def build(abi: str, folder: Path, jobs: int | None = None) -> Path:
    """libedgedec.so of an ABI, in a folder of its name under `folder`."""
    into = folder / abi
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="edgedec-") as temporary:
        beside = [HERE / "android" / "bionic.c", HERE / "no_demangler.c"]
        objects = [str(Path(temporary) / f"{source.stem}.o") for source in beside]
        for source, made in zip(beside, objects, strict=True):
            _run([*zig("c", abi), "-O2", "-fPIC", "-fvisibility=hidden", "-c", source, "-o", made])
        link = [*objects, "-s", "-Wl,-soname,libedgedec.so", "-Wl,--no-as-needed", *_stubs(abi, Path(temporary))]
        library: Path = LIBRARY["build"](into / "libedgedec.so", zig("c++", abi), ABIS[abi][1], jobs=jobs, link=link)
    return library


def build_jni(abi: str, folder: Path, source: Path, includes: Sequence[Path]) -> Path:
    """A library of JNI functions over the libedgedec.so in the ABI's folder."""
    into = folder / abi
    flags = ["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-s", *PAGE, *(f"-I{path}" for path in includes)]
    named = ["-Wl,-soname,libedgedec_jni.so", f"-L{into}", "-ledgedec"]
    with LIBRARY["CPU"]["_replacing"](into / "libedgedec_jni.so") as partial:
        _run([*zig("c", abi), *flags, f"-I{HERE / 'include'}", source, *named, "-o", partial])
    return into / "libedgedec_jni.so"


def _stubs(abi: str, folder: Path) -> list[str]:
    """Stub libraries with Android's names for the linker; they define only the symbols that musl lacks."""
    made = []
    (folder / "stub.c").write_text("int* __errno(void) { return 0; }\n")
    for name in BESIDE:
        made.append(str(folder / name))
        flags = ["-shared", "-nostdlib", f"-Wl,-soname,{name}"]
        _run([*zig("c", abi), *flags, folder / "stub.c", "-o", folder / name])
    return made


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{command[3]} ended with {done.returncode}", done.stderr)


if __name__ == "__main__":
    sys.exit(SEVERAL["main"](None, "android", ABIS, build))
