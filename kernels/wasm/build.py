"""Compile libedgedec to WebAssembly, with zig's C++ compiler (`pip install ziglang`). Standard library only.

    python kernels/wasm/build.py --out DIR
    python kernels/wasm/build.py --out DIR --constraints

Leaves `edgedec.wasm`, for any browser and node with 128-bit vectors, and `edgedec-relaxed.wasm`, for those that have
relaxed ones too, in DIR; and the same on shared memory, `…-threads.wasm`. All give the same bytes. With --constraints
also llguidance (constraints.py), which needs Rust.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARY = runpy.run_path(str(HERE.parent / "lib" / "build.py"))
CPU: dict[str, Any] = LIBRARY["CPU"]
BuildFailed = CPU["BuildFailed"]
FEATURES = "-mcpu=generic+simd128+bulk_memory+exception_handling+nontrapping_fptoint+sign_ext"
FLAGS = ("-fwasm-exceptions", "-fno-sanitize=undefined", "-g0", "-fvisibility=hidden")
UNITS = {"wasm": ("-msimd128",), "relaxed": ("-msimd128", "-mrelaxed-simd")}
# The parts of the C++ library that zig builds without exceptions.
RUNTIME = ("libcxxabi/src/cxa_exception.cpp", "libcxxabi/src/cxa_personality.cpp", "libunwind/src/Unwind-wasm.c")
LINK = (
    "-mexec-model=reactor",
    "-s",
    "-Wl,--gc-sections",
    "-Wl,--strip-all",
    "-Wl,-z,stack-size=1048576",
    "-Wl,--max-memory=4294901760",
)
# The initial pages equal those of runtimes/web/threads.js.
SHARED = ("-Wl,--shared-memory", "-Wl,--import-memory", "-Wl,--initial-memory=33554432", "-Wl,--export=__stack_pointer")


@dataclass(frozen=True)
class Module:
    """A module: its units of kernels, and whether its memory is shared by threads."""

    units: tuple[str, ...]
    threads: bool = False

    @property
    def target(self) -> tuple[str, ...]:
        return ("-target", "wasm32-wasi", FEATURES + "+atomics" * self.threads)

    @property
    def std(self) -> Path:
        """The missing parts of its C++ library."""
        return HERE / "threads" / "std" if self.threads else HERE / "std"


MODULES = {
    "edgedec.wasm": Module(("wasm",)),
    "edgedec-relaxed.wasm": Module(("wasm", "relaxed")),
    "edgedec-threads.wasm": Module(("wasm",), threads=True),
    "edgedec-relaxed-threads.wasm": Module(("wasm", "relaxed"), threads=True),
}


@dataclass(frozen=True)
class WasmSource:
    """A source and how it is compiled."""

    source: Path
    flags: tuple[str, ...]


def zig() -> Path:
    """The folder of zig's package."""
    found = find_spec("ziglang")
    if found is None or not found.submodule_search_locations:
        raise BuildFailed("no zig here, whose C++ compiler makes WebAssembly: pip install ziglang")
    return Path(found.submodule_search_locations[0])


def build(out: Path, jobs: int | None = None) -> list[Path]:
    """Compile and link the modules into folder `out`; each appears when it is finished."""
    home = zig()
    compilers = {".c": (sys.executable, "-m", "ziglang", "cc"), ".cpp": (sys.executable, "-m", "ziglang", "c++")}
    cache = CPU["object_cache"](compilers[".cpp"], _headers())
    out.mkdir(parents=True, exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory(prefix="edgedec-") as folder, ThreadPoolExecutor(jobs or os.cpu_count()) as pool:

        def compiled(numbered: tuple[int, WasmSource]) -> Path:
            at, part = numbered
            into = Path(folder, f"{at}-{part.source.stem}.o")
            command = [*compilers[part.source.suffix], *part.flags, "-c", str(part.source), "-o", str(into)]
            cache.compile(part.source, command, into, None)
            return into

        for name, module in MODULES.items():
            objects = list(pool.map(compiled, enumerate(_parts(home, module))))
            with CPU["replacing"](out / name) as partial:
                CPU["run"](_linking(compilers[".cpp"], module, objects, partial), None)
            made.append(out / name)
    return made


def _headers() -> Iterator[Path]:
    """All that sources include."""
    for folder in (HERE.parent / "cpu", HERE.parent / "lib", HERE):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".inl") or path.parent.name == "std":
                yield path


def sources() -> list[Path]:
    """All of this checkout that a build reads."""
    folders = (HERE.parent / "cpu", HERE.parent / "lib", HERE, HERE / "threads")
    return [*_headers(), *(path for folder in folders for path in sorted(folder.glob("*.c*"))), Path(__file__)]


def _parts(home: Path, module: Module) -> Iterator[WasmSource]:
    """All sources of a module."""
    cpu, lib = HERE.parent / "cpu", HERE.parent / "lib"
    every = (*module.target, *FLAGS)
    plain = (*every, "-std=c++17", "-ffp-contract=off", f"-I{module.std}", "-Wall", "-Wextra")
    have = tuple(f"-DED_HAVE_{unit.upper()}=1" for unit in module.units)
    for path in CPU["common_sources"](cpu):
        if path.name != "probe.cpp":
            yield WasmSource(path, (*plain, "-O2", *have))
    for unit in module.units:
        yield WasmSource(HERE / f"unit_{unit}.cpp", (*plain, "-O3", f"-I{cpu}", *UNITS[unit]))
    own: tuple[str, ...] = (
        "-DEDGEDEC_BUILD",
        f'-DEDGEDEC_VERSION_TEXT="{LIBRARY["VERSION"][1]}"',
        f"-I{lib / 'include'}",
        f"-I{lib}",
        "-DEDGEDEC_LLGUIDANCE",
        f"-I{HERE / 'llguidance'}",
    )
    threads = sorted((HERE / "threads").glob("*.cpp")) if module.threads else []
    for path in [*sorted(lib.glob("*.cpp")), *sorted(HERE.glob("*.cpp")), *threads]:
        if path != lib / "files.cpp" and not path.name.startswith("unit_"):
            yield WasmSource(path, (*plain, "-Os", "-ffunction-sections", "-fdata-sections", *own))
    yield WasmSource(HERE / "tag.c", every)
    yield from _runtime(home, every)


def _runtime(home: Path, every: tuple[str, ...]) -> Iterator[WasmSource]:
    """The runtime support of C++ exceptions."""
    lib = home / "lib"
    folders = ("libcxxabi/include", "libcxx/include", "libcxxabi/src", "libcxx/src", "libunwind/include")
    shared = (*every, "-O2", "-DNDEBUG", "-w", "-D_LIBUNWIND_HIDE_SYMBOLS", "-D_LIBCXXABI_HAS_NO_THREADS")
    cpp: tuple[str, ...] = ("-std=c++23", "-D_LIBCXXABI_BUILDING_LIBRARY", "-D_LIBCPP_BUILDING_LIBRARY")
    cpp += tuple(f"-I{lib / folder}" for folder in folders)
    for name in RUNTIME:
        path = lib / name
        if not path.is_file():
            raise BuildFailed(f"{path}: not in this version of ziglang; 0.17 has it")
        yield WasmSource(path, (*shared, *(cpp if path.suffix == ".cpp" else (f"-I{lib / 'libunwind/include'}",))))


def exports(threads: bool) -> list[str]:
    """The functions that a host calls."""
    found = []
    for header, before in (
        (HERE.parent / "lib" / "include" / "edgedec.h", "EDGEDEC_API"),
        (HERE / "wasm.h", "EDGEDEC_WASM(?:_THREADS)?" if threads else "EDGEDEC_WASM"),
    ):
        text = re.sub(r"/\*.*?\*/", "", header.read_text("utf-8"), flags=re.S)
        found += re.findall(rf"^{before}\s[^;(]*?\b(edgedec_\w+)\(", text, re.M)
    return [name for name in found if name not in ("edgedec_open_fd", "edgedec_generate_many")]


def _linking(compiler: Sequence[str], module: Module, objects: Sequence[Path], into: Path) -> list[str]:
    names = [f"-Wl,--export={name}" for name in exports(module.threads)]
    shared = SHARED if module.threads else ()
    return [*compiler, *module.target, *LINK, *shared, *names, *(str(path) for path in objects), "-o", str(into)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile libedgedec to WebAssembly.")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--jobs", type=int, help="compilers at once; default: as many as CPUs")
    parser.add_argument("--constraints", action="store_true", help="llguidance too, by cargo")
    told = parser.parse_args(arguments)
    try:
        made = build(told.out, told.jobs)
        if told.constraints:
            made.append(runpy.run_path(str(HERE / "constraints.py"))["build"](told.out, told.jobs))
        for path in made:
            print(f"{path}: {path.stat().st_size:,} bytes")
    except BuildFailed as error:
        print(f"{error.log}libedgedec: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
