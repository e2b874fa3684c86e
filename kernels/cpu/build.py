"""Compile the engine: one shared library, one translation unit an instruction set. Standard library only.

    python kernels/cpu/build.py                                        into this folder, for this machine
    python kernels/cpu/build.py --out t.so --sanitize address,undefined
    python kernels/cpu/build.py --out t --main check.cpp               a program of check.cpp and the engine
    python kernels/cpu/build.py --out t.so --cxx aarch64-linux-gnu-g++ --arch aarch64

`setup.py` does the first when edgedec is installed.
"""

from __future__ import annotations

import argparse
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial as part_of
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Imported by path: during the installation of edgedec there is no package yet.
_OBJECTS = runpy.run_path(str(HERE / "objects.py"))
BuildFailed, report, run = _OBJECTS["BuildFailed"], _OBJECTS["report"], _OBJECTS["run"]
ObjectCache, object_cache, replacing = _OBJECTS["ObjectCache"], _OBJECTS["object_cache"], _OBJECTS["replacing"]
_run_all = runpy.run_path(str(HERE / "progress.py"))["run_all"]
LIBRARY = {"win32": "_native.dll", "darwin": "_native.dylib"}.get(sys.platform, "_native.so")
ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Unit:
    """`unit_<name>.cpp`, which only a CPU that has these instructions may run."""

    name: str
    arch: str | None = None  # None: everywhere
    gnu: tuple[str, ...] = ()
    msvc: tuple[str, ...] = ()

    @property
    def define(self) -> str:
        return f"ED_HAVE_{self.name.upper()}=1"


AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
# GCC's own AVX-512 header reads values marked as undefined, and GCC warns of them.
QUIET = ("-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-unknown-warning-option")
UNITS = (
    Unit("scalar", gnu=("-O2",)),
    Unit("avx2", "x86_64", AVX2, ("/arch:AVX2",)),
    Unit("avxvnni", "x86_64", (*AVX2, "-mavxvnni"), ("/arch:AVX2",)),
    Unit("avx512", "x86_64", (*AVX512, *QUIET), ("/arch:AVX512",)),
    Unit("dotprod", "aarch64", ("-march=armv8.2-a+dotprod",)),
    Unit("i8mm", "aarch64", ("-march=armv8.2-a+dotprod+i8mm",)),
)


# The library of kernels/lib drops unused sections; with these flags it can share the engine's objects.
SECTIONS = ("-fvisibility-inlines-hidden", "-ffunction-sections", "-fdata-sections")


@dataclass(frozen=True)
class Gnu:
    """g++, clang++ and compilers with the same options."""

    command: tuple[str, ...]
    arch: str
    sanitize: str | None = None
    env: Mapping[str, str] | None = None

    @property
    def target(self) -> list[str]:
        """The options for the architecture: Apple's compiler can build for either of two."""
        return ["-arch", self.arch.replace("aarch64", "arm64")] if sys.platform == "darwin" else []

    @property
    def common(self) -> list[str]:
        # Sums run in the order written, on every machine: no contraction, nothing "fast".
        flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-pthread"]
        return [*self.target, *flags, "-Wall", "-Wextra", *(self._sanitizer or SECTIONS)]

    @property
    def _sanitizer(self) -> list[str]:
        if self.sanitize is None:
            return []
        return [f"-fsanitize={self.sanitize}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]

    def flags(self, unit: Unit) -> list[str]:
        # x86 processors without AVX2 are from before 2013; ARM processors without dotprod are common.
        rare = unit.name == "scalar" and self.arch == "x86_64" and self.sanitize is None
        spelt: list[str] = _OBJECTS["spelt_for"](self.command, ("-Os",) if rare else unit.gnu)
        return spelt

    def compile(self, source: Path, into: Path, flags: Sequence[str], defines: Sequence[str]) -> list[str]:
        told = [f"-D{define}" for define in defines]
        return [*self.command, *self.common, *flags, *told, "-c", str(source), "-o", str(into)]

    def link(self, objects: Sequence[Path], into: Path, shared: bool) -> list[str]:
        how = ["-shared"] if shared else []
        if shared and self.sanitize is None and sys.platform.startswith("linux"):
            how.append("-Wl,--no-undefined")
        if sys.platform == "win32":
            how.append("-static")  # no MinGW libraries to ship along
        names = [str(name) for name in objects]
        return [*self.command, *self.target, *self._sanitizer, *names, *how, "-pthread", "-o", str(into)]


@dataclass(frozen=True)
class Msvc:
    """Microsoft's cl. Its intrinsics need no option to be known."""

    command: tuple[str, ...]
    arch: str
    sanitize: str | None = None
    env: Mapping[str, str] | None = None

    def flags(self, unit: Unit) -> list[str]:
        return list(unit.msvc)

    def compile(self, source: Path, into: Path, flags: Sequence[str], defines: Sequence[str]) -> list[str]:
        told = [f"/D{define}" for define in defines]
        common = ["/nologo", "/std:c++17", "/O2", "/fp:precise", "/EHsc", "/MT"]
        return [*self.command, *common, *flags, *told, "/c", str(source), f"/Fo{into}"]

    def link(self, objects: Sequence[Path], into: Path, shared: bool) -> list[str]:
        # The import library, which is not needed, goes to the objects' folder.
        unwanted = f"/IMPLIB:{objects[0].with_name('unwanted.lib')}"
        how = ["/LD"] if shared else []
        return [*self.command, "/nologo", *how, *(str(o) for o in objects), f"/Fe{into}", "/link", unwanted]


def compiler(
    cxx: str | Sequence[str] | None = None, arch: str | None = None, sanitize: str | None = None
) -> Gnu | Msvc:
    """`cxx`, else $CXX, else the first that this machine has."""
    machine = ARCHITECTURES.get((arch or platform.machine()).lower(), "other")
    wanted = cxx or os.environ.get("CXX")
    if wanted:
        command = shlex.split(wanted, posix=os.name == "posix") if isinstance(wanted, str) else list(wanted)
        kind = Msvc if Path(command[0]).stem.lower() in ("cl", "clang-cl") else Gnu
        return kind(tuple(command), machine, sanitize)
    if sys.platform == "win32" and (env := _visual_studio(machine)):
        return Msvc((shutil.which("cl", path=env["PATH"]) or "cl",), machine, sanitize, env)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return Gnu((name,), machine, sanitize)
    raise BuildFailed("no C++ compiler on this machine")


def _visual_studio(arch: str) -> Mapping[str, str] | None:
    """The environment for cl, from its command prompt's script; None without Visual Studio."""
    if shutil.which("cl"):
        return dict(os.environ)
    programs = os.environ.get("PROGRAMFILES(X86)", r"C:\Program Files (x86)")
    finder = Path(programs, "Microsoft Visual Studio", "Installer", "vswhere.exe")
    if not finder.is_file():
        return None
    asked = [str(finder), "-latest", "-products", "*", "-property", "installationPath"]
    root = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    script = Path(root, "VC", "Auxiliary", "Build", "vcvarsall.bat")
    if not root or not script.is_file():
        return None
    shell = f'"{script}" {"arm64" if arch == "aarch64" else "x64"} >nul && set'
    told = subprocess.run(shell, shell=True, capture_output=True, text=True).stdout
    env = {name.upper(): value for name, _, value in (line.partition("=") for line in told.splitlines())}
    return env if shutil.which("cl", path=env.get("PATH", "")) else None


def build(
    out: Path,
    cxx: str | Sequence[str] | None = None,
    arch: str | None = None,
    sanitize: str | None = None,
    jobs: int | None = None,
    sources: Path = HERE,
    mains: Sequence[Path] = (),
    scratch: Path | None = None,
    progress: bool = False,
) -> Path:
    """Compile and link to `out`, which appears when it is finished and stays as it was on failure.

    `mains`: sources of a program; then `out` is that program. `scratch`: a folder to leave the objects in.
    `progress`: on stderr, if it takes more than a moment.
    """
    tool = compiler(cxx, arch, sanitize)
    with tempfile.TemporaryDirectory(prefix="edgedec-") as temporary, replacing(out) as partial:
        folder = scratch or Path(temporary)
        units = units_for(tool, sources, folder)
        defines = [unit.define for unit in units]
        # The linker keeps the first copy of an inline function that is in several objects: this has to be one that any
        # CPU can run.
        parts = [(path, [f"-I{sources}"] if path in mains else []) for path in (*common_sources(sources), *mains)]
        parts += [(unit_source(sources, unit), tool.flags(unit)) for unit in units]
        objects = [folder / f"{at}-{path.stem}.o" for at, (path, _) in enumerate(parts)]
        commands = [tool.compile(path, o, flags, defines) for (path, flags), o in zip(parts, objects, strict=True)]
        kept = object_cache(tool.command, engine_headers(sources), tool.env)
        work = [(path, command, o) for (path, _), command, o in zip(parts, commands, objects, strict=True)]
        # Units of instruction sets take longest, so they come first, and the last one, with the most registers, before
        # the others.
        named = [(path.name, part_of(kept.compile, path, command, o, tool.env)) for path, command, o in work[::-1]]
        _run_all(named, jobs or os.cpu_count(), "compiling the CPU engine" if progress else "")
        kept.trim()
        run(tool.link(objects, partial, shared=not mains), tool.env)
    return out


def source_files(folder: Path = HERE) -> list[Path]:
    """All that a build reads."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".cpp", ".h", ".inl"))


def engine_headers(folder: Path = HERE) -> list[Path]:
    """The headers of the engine's sources."""
    return [path for path in source_files(folder) if path.suffix != ".cpp"]


def common_sources(folder: Path) -> list[Path]:
    found = [path for path in sorted(folder.glob("*.cpp")) if not path.name.startswith("unit_")]
    if not found:
        raise BuildFailed(f"no C++ sources in {folder}")
    return found


def unit_source(folder: Path, unit: Unit) -> Path:
    return folder / f"unit_{unit.name}.cpp"


def units_for(tool: Gnu | Msvc, sources: Path, scratch: Path) -> list[Unit]:
    """The units for this architecture whose options the compiler supports; the others are left out and reported."""
    empty = scratch / "empty.cpp"
    empty.write_text("int nothing;\n")
    run(tool.compile(empty, scratch / "empty.o", [], []), tool.env)
    units = []
    for unit in UNITS:
        if unit.arch not in (None, tool.arch) or not unit_source(sources, unit).is_file():
            continue
        try:
            run(tool.compile(empty, scratch / "empty.o", tool.flags(unit), []), tool.env)
            units.append(unit)
        except BuildFailed:
            print(f"edgedec: {tool.command[0]} cannot compile for {unit.name}: left out", file=sys.stderr)
    return units


def command_line(description: str) -> argparse.ArgumentParser:
    """The options of every build but where it goes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cxx", help="the compiler; default: $CXX, else the first found")
    parser.add_argument("--arch", help="x86_64 or aarch64, if not this machine's")
    parser.add_argument("--sanitize", help="such as address,undefined or thread")
    parser.add_argument("--jobs", type=int, help="compilers at once; default: as many as CPUs")
    parser.add_argument("--main", type=Path, action="append", default=[], help="link a program with this source")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("Compile edgedec's CPU engine.")
    parser.add_argument("--out", type=Path, default=HERE / LIBRARY, help="default: beside this file")
    parser.add_argument("--sources", type=Path, default=HERE, help="the engine's folder, if not this one")
    told = parser.parse_args(arguments)
    status: int = report(
        "edgedec",
        lambda: build(told.out, told.cxx, told.arch, told.sanitize, told.jobs, told.sources, told.main, progress=True),
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
