"""Compile libedgedec: the engine of `kernels/cpu` and this folder, as one shared library. Standard library only.

    python kernels/lib/build.py --out build/libedgedec.so
    python kernels/lib/build.py --out t.so --sanitize address,undefined
    python kernels/lib/build.py --out t.so --cxx aarch64-linux-gnu-g++ --arch aarch64
    python kernels/lib/build.py --out t --main fuzz.cpp         a program of fuzz.cpp and the library

`CMakeLists.txt` does the same, and installs it. Objects of an installed edgedec are reused.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Imported by path: no package is needed to build the library.
CPU: dict[str, Any] = runpy.run_path(str(HERE.parent / "cpu" / "build.py"))
BuildFailed = CPU["BuildFailed"]
VERSION = re.search(r'"(.+)"', (HERE.parents[1] / "edgedec" / "version.py").read_text("utf-8").splitlines()[-1])
# The engine's sources that run in every step.
FAST = ("attention_block", "attention_views", "cache", "engine", "head", "mlp_block", "pool", "sample")


def build(
    out: Path,
    cxx: str | Sequence[str] | None = None,
    arch: str | None = None,
    sanitize: str | None = None,
    jobs: int | None = None,
    mains: Sequence[Path] = (),
    link: Sequence[str] = (),
    llguidance: Path | None = None,
) -> Path:
    """Compile and link to `out`, which appears when it is finished. `mains`: sources of a program; then `out` is that
    program. `link`: options of the linker besides. `llguidance`: a folder with its llguidance.h and libllguidance.a."""
    tool = CPU["compiler"](cxx, arch, sanitize)
    if not isinstance(tool, CPU["Gnu"]):
        raise BuildFailed("not a compiler that answers to g++'s options; use CMakeLists.txt")
    with tempfile.TemporaryDirectory(prefix="edgedec-") as temporary, CPU["replacing"](out) as partial:
        folder = Path(temporary)
        work = [*_engine(tool, folder), *_own(tool, folder, mains, llguidance)]
        with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            list(pool.map(lambda part: part[0].compile(*part[1:], tool.env), work[::-1]))
        CPU["run"](
            [
                *tool.link([part[3] for part in work], partial, shared=not mains),
                *_linking(tool, link, not mains, llguidance),
            ],
            tool.env,
        )
    return out


def _engine(tool: Any, folder: Path) -> list[tuple[Any, ...]]:
    """(cache, source, command, object) of the engine's sources, as its own build compiles them."""
    sources = CPU["HERE"]
    units = CPU["units_for"](tool, sources, folder)
    defines = [unit.define for unit in units]
    common = [path for path in CPU["common_sources"](sources) if path.name != "probe.cpp"]
    parts = [(path, _level(tool, "-O2" if path.stem in FAST else "-Os")) for path in common]
    for unit in units:
        parts.append((CPU["unit_source"](sources, unit), tool.flags(unit)))
    cache = CPU["object_cache"](tool.command, CPU["engine_headers"](sources), tool.env)
    made = [folder / f"cpu-{at}-{path.stem}.o" for at, (path, _) in enumerate(parts)]
    return [(cache, p, tool.compile(p, o, flags, defines), o) for (p, flags), o in zip(parts, made, strict=True)]


def _level(tool: Any, level: str) -> list[str]:
    """The optimization level of a source."""
    return [] if tool.sanitize else [level]


def _own(tool: Any, folder: Path, mains: Sequence[Path], llguidance: Path | None) -> list[tuple[Any, ...]]:
    """The same for this folder's sources and those of a program."""
    cache = CPU["object_cache"](tool.command, [*sorted(HERE.rglob("*.h")), CPU["HERE"] / "api.h"], tool.env)
    assert VERSION is not None
    defines = ["EDGEDEC_BUILD", f'EDGEDEC_VERSION_TEXT="{VERSION[1]}"']
    flags = [f"-I{HERE / 'include'}", *_level(tool, "-Os")]
    if llguidance:
        flags += ["-DEDGEDEC_LLGUIDANCE", f"-I{llguidance}"]
    found = []
    for path in [*sorted(HERE.glob("*.cpp")), *mains]:
        into = folder / f"lib-{path.stem}.o"
        own = [*flags, f"-I{HERE}"] if path in mains else flags
        found.append((cache, path, tool.compile(path, into, own, defines), into))
    return found


def _linking(tool: Any, link: Sequence[str], shared: bool, llguidance: Path | None) -> list[str]:
    if llguidance:
        link = [str(llguidance / "libllguidance.a"), "-ldl", "-lm", *link]
    target = " ".join(tool.command)
    windows, apple = "windows" in target or "mingw" in target, "macos" in target or sys.platform == "darwin"
    if tool.sanitize or windows or apple:
        return list(link)
    hidden = [f"-Wl,--version-script={HERE / 'exports.map'}"] if shared else []
    return [*hidden, "-Wl,--gc-sections", "-Wl,-z,max-page-size=16384", *link]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CPU["command_line"]("Compile libedgedec.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--llguidance", type=Path, help="with constraints: the folder of llguidance.h and libllguidance.a"
    )
    parser.add_argument("--link", action="append", default=[], help="an option of the linker")
    told = parser.parse_args(arguments)
    mains = [path.resolve() for path in told.main]
    own = (told.cxx, told.arch, told.sanitize, told.jobs, mains, told.link, told.llguidance)
    status: int = CPU["report"]("libedgedec", lambda: build(told.out.resolve(), *own))
    return status


if __name__ == "__main__":
    sys.exit(main())
