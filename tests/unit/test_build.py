"""Compiling the engine and finding what was compiled. Most tests compile stubs, which takes a second."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedec.kernels.cpu import loader

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "cpu"
native = SimpleNamespace(**runpy.run_path(str(KERNELS / "build.py")))  # the checkout's, which has its sources
COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
CROSS = "aarch64-linux-gnu-g++"
X86 = native.ARCHITECTURES.get(platform.machine().lower()) == "x86_64"
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="a minute; set EDGEDEC_SLOW_TESTS")
needs_compiler = pytest.mark.skipif(COMPILER is None or os.name == "nt", reason="no C++ compiler here")

ENGINE = """
#include "parts.h"
extern "C" SHOWN int ed_abi(void) { return %d; }
extern "C" SHOWN const char* ed_isa(void) { return "scalar"; }
extern "C" SHOWN const char* ed_isas(void) {
  return ""
#ifdef ED_HAVE_AVXVNNI
      "avxvnni,"
#endif
#ifdef ED_HAVE_AVX2
      "avx2,"
#endif
      "scalar+";
}
"""


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder of sources as small as can be."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    (folder / "engine.cpp").write_text(ENGINE % loader.ABI)
    (folder / "parts.h").write_text('#pragma once\n#define SHOWN __attribute__((visibility("default")))\n')
    for unit in native.UNITS:
        (folder / f"unit_{unit.name}.cpp").write_text(f"int unit_{unit.name}() {{ return {unit.define[:-2]}; }}\n")
    return folder


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str | None]:
    """Have the loader load this file; what it says."""

    def use(file: Path) -> str | None:
        monkeypatch.setenv(loader.OVERRIDE, str(file))
        return loader.why_not()

    return use


# -- what is installed


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
@pytest.mark.skipif(bool(os.environ.get("EDGEDEC_NO_NATIVE")), reason="told to do without")
def test_where_a_compiler_is_the_engine_is() -> None:
    assert loader.why_not() is None, "pip install -v tells what the compiler said"
    assert loader.isas()[loader.isa()], "an instruction set is chosen that this CPU lacks"
    assert loader.isas()["scalar"]


def test_units_are_the_sources() -> None:
    assert {f"unit_{unit.name}.cpp" for unit in native.UNITS} == {path.name for path in KERNELS.glob("unit_*.cpp")}
    assert {path.suffix for path in native.source_files()} <= {".cpp", ".h", ".inl"}
    assert native.LIBRARY == loader.LIBRARY


@needs_compiler
@pytest.mark.parametrize("compiler", ["c++", pytest.param("clang++", marks=slow), pytest.param(CROSS, marks=slow)])
def test_the_engine_compiles_without_a_warning(
    compiler: str, tmp_path: Path, use: Callable[[Path], str | None], capfd: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    arch = "aarch64" if compiler == CROSS else None
    out = native.build(tmp_path / "engine.so", compiler, arch, scratch=tmp_path)
    assert capfd.readouterr().err == ""
    if arch is None:
        assert use(out) is None
        assert "scalar" in loader.isas()
    objects = {unit.name: path for unit in native.UNITS if unit.arch for path in tmp_path.glob(f"*-unit_{unit.name}.o")}
    assert len(objects) >= 2
    if shutil.which("nm"):
        found = {name: lent(path, f"ed_{name}::") for name, path in objects.items()}
        assert {name: names for name, names in found.items() if names} == {}


def lent(compiled: Path, own: str) -> list[str]:
    """Inline functions of a unit that have no name of their own.

    Of one in two objects the linker keeps one: another CPU might run what only this unit's may.
    """
    lines = subprocess.check_output(["nm", "-C", "--defined-only", compiled], text=True).splitlines()
    symbols = [line.split(maxsplit=2)[1:] for line in lines]  # address, kind, name
    return [name for kind, name in symbols if kind in "WVu" and own not in name]


@needs_compiler
@pytest.mark.skipif(shutil.which("nm") is None or not X86, reason="no nm, or a unit of x86")
def test_a_lent_function_is_found(stubs: Path, tmp_path: Path) -> None:
    lending = "template <class T> int twice(T x) { return 2 * x; }\ntemplate int twice(int);\n"
    (stubs / "unit_avx2.cpp").write_text(f"{lending}namespace ed_avx2 {{\n{lending}}}\n")
    native.build(tmp_path / "t.so", sources=stubs, scratch=tmp_path)
    (compiled,) = tmp_path.glob("*-unit_avx2.o")
    assert lent(compiled, "ed_avx2::") == ["int twice<int>(int)"]


# -- building


@needs_compiler
def test_a_build_loads(stubs: Path, tmp_path: Path, use: Callable[[Path], str | None]) -> None:
    out = native.build(tmp_path / "t.so", sources=stubs)
    assert out == tmp_path / "t.so"
    assert use(out) is None
    assert loader.library() is loader.library()
    assert loader.isa() == "scalar"
    assert loader.isas() == ({"avxvnni": False, "avx2": False} if X86 else {}) | {"scalar": True}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stubs", "t.so"]


@needs_compiler
@pytest.mark.skipif(not X86, reason="a unit of x86")
def test_a_unit_that_the_compiler_does_not_know_is_left_out(
    stubs: Path, tmp_path: Path, use: Callable[[Path], str | None], capfd: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old-c++"
    old.write_text(f'#!/bin/sh\ncase "$*" in *-mavxvnni*) echo unknown >&2; exit 1;; esac\nexec {COMPILER} "$@"\n')
    old.chmod(0o755)
    assert use(native.build(tmp_path / "t.so", str(old), sources=stubs)) is None
    assert loader.isas() == {"avx2": False, "scalar": True}
    said = capfd.readouterr().err
    assert "avxvnni: left out" in said
    assert said.count("\n") == 1


@needs_compiler
def test_only_units_of_the_architecture_are_built(
    stubs: Path, tmp_path: Path, use: Callable[[Path], str | None]
) -> None:
    assert use(native.build(tmp_path / "t.so", arch="riscv64", sources=stubs)) is None
    assert loader.isas() == {"scalar": True}


@needs_compiler
@pytest.mark.parametrize("text", ["int broken = ;", "extern int nowhere;\nint* found() { return &nowhere; }"])
def test_a_build_that_fails_changes_nothing(stubs: Path, tmp_path: Path, text: str) -> None:
    if sys.platform != "linux" and "extern" in text:
        pytest.skip("a name that is nowhere is an error on Linux")
    out = tmp_path / "t.so"
    out.write_bytes(b"as it was")
    (stubs / "wrong.cpp").write_text(text)
    with pytest.raises(native.BuildFailed, match="wrong") as caught:
        native.build(out, sources=stubs)
    assert "\n" not in str(caught.value)
    assert "wrong.cpp" in caught.value.log
    assert out.read_bytes() == b"as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stubs", "t.so"]


def test_without_a_compiler_a_build_says_so(stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler --fast")
    with pytest.raises(native.BuildFailed, match="no-such-compiler: No such file"):
        native.build(tmp_path / "t.so", sources=stubs)
    if os.name == "posix":
        monkeypatch.delenv("CXX")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(native.BuildFailed, match="no C\\+\\+ compiler"):
            native.build(tmp_path / "t.so", sources=stubs)
    assert not (tmp_path / "t.so").exists()


@needs_compiler
def test_the_command_builds_a_program(stubs: Path, tmp_path: Path) -> None:
    main = tmp_path / "main.cpp"
    main.write_text(
        '#include <cstdio>\n#include "parts.h"\nextern "C" int ed_abi(void);\nint main() { printf("%d", ed_abi()); }'
    )
    command = [sys.executable, str(KERNELS / "build.py"), "--sources", str(stubs), "--out", str(tmp_path / "t")]
    subprocess.run([*command, "--main", str(main)], check=True)
    assert subprocess.check_output([tmp_path / "t"], text=True) == str(loader.ABI)
    main.write_text("int main() { return }")
    failed = subprocess.run([*command, "--main", str(main)], capture_output=True, text=True)
    assert failed.returncode == 1
    assert "main.cpp" in failed.stderr
    assert "Traceback" not in failed.stderr


# -- loading


def test_a_library_that_is_not_there(
    tmp_path: Path, use: Callable[[Path], str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(tmp_path / "t.so") in str(use(tmp_path / "t.so"))
    monkeypatch.delenv(loader.OVERRIDE)
    monkeypatch.setattr(loader, "__file__", str(tmp_path / "loader.py"))
    assert str(loader.why_not()).startswith("not built (")
    with pytest.raises(ImportError, match="reinstall edgedec"):
        loader.library()


def test_a_library_that_cannot_be_loaded(tmp_path: Path, use: Callable[[Path], str | None]) -> None:
    (tmp_path / "t.so").write_bytes(b"\x7fELF of another machine")
    said = str(use(tmp_path / "t.so"))
    assert said.startswith("built for another machine or damaged: ")
    assert "\n" not in said


@needs_compiler
def test_a_library_of_another_version(stubs: Path, tmp_path: Path, use: Callable[[Path], str | None]) -> None:
    (stubs / "engine.cpp").write_text(ENGINE % (loader.ABI + 1))
    said = use(native.build(tmp_path / "newer.so", sources=stubs))
    assert f"ABI {loader.ABI + 1}, not {loader.ABI}" in str(said)
    (stubs / "engine.cpp").write_text("int nothing;")
    stranger = native.build(tmp_path / "stranger.so", sources=stubs)
    assert "ed_abi" in str(use(stranger))
    assert ctypes.CDLL(str(stranger))


# -- objects of earlier builds


@needs_compiler
def test_only_what_changed_is_compiled_again(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], str | None]
) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    log = tmp_path / "log"
    counting = tmp_path / "counting-c++"
    counting.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {COMPILER} "$@"\n')
    counting.chmod(0o755)

    def compiled() -> list[str]:
        """The sources that a build compiles."""
        log.write_text("")
        native.build(tmp_path / "t.so", str(counting), sources=stubs)
        words = [word for line in log.read_text().splitlines() for word in line.split()]
        return sorted(Path(word).name for word in words if word.endswith(".cpp") and "empty" not in word)

    first = compiled()
    assert "engine.cpp" in first
    assert "unit_scalar.cpp" in first
    assert compiled() == []
    assert use(tmp_path / "t.so") is None
    (stubs / "engine.cpp").write_text(ENGINE % loader.ABI + "\n// changed\n")
    assert compiled() == ["engine.cpp"]
    (stubs / "parts.h").write_text((stubs / "parts.h").read_text() + "\n// changed\n")
    assert compiled() == ["engine.cpp"], "the others do not include it"
    monkeypatch.setenv("EDGEDEC_OBJECT_CACHE", "0")
    assert compiled() == first


@needs_compiler
def test_an_object_that_the_compiler_warned_of_is_not_kept(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    (stubs / "engine.cpp").write_text(ENGINE % loader.ABI + "\nstatic int nobody;\n")
    for _ in range(2):
        native.build(tmp_path / "t.so", sources=stubs)
        assert "nobody" in capfd.readouterr().err
    assert len(list((tmp_path / "cache" / "objects").glob("*.o"))) >= 2, "the others are"


@needs_compiler
def test_a_build_says_how_far_it_is(
    stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By hand, and in `make demo`; nothing of what is done at once."""
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    slow_compiler = tmp_path / "slow-c++"
    slow_compiler.write_text(f'#!/bin/sh\ncase "$@" in *unit_scalar*) sleep 0.3;; esac\nexec {COMPILER} "$@"\n')
    slow_compiler.chmod(0o755)
    own = native.main.__globals__
    monkeypatch.setitem(own, "_run_all", lambda *given: native._run_all(*given, every=0.05))
    told = ["--out", str(tmp_path / "t.so"), "--sources", str(stubs), "--cxx", str(slow_compiler)]
    assert native.main(told) == 0
    lines = capfd.readouterr().err.splitlines()
    found = [re.fullmatch(r"compiling the CPU engine: (\d+) of (\d+) files, \d+ s(, at .*)?", line) for line in lines]
    assert len(lines) >= 3
    assert all(found)
    assert any("unit_scalar.cpp" in line for line in lines)
    done = [int(line[1]) for line in found if line]
    assert done == sorted(done)
    assert found[-1] is not None
    assert done[-1] == int(found[-1][2]) > 1
    monkeypatch.setitem(own, "_run_all", native._run_all)
    assert native.main(told) == 0
    assert capfd.readouterr().err == "", "objects were at hand"


def test_the_latest_objects_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    folder = tmp_path / "objects"
    folder.mkdir()
    for age in range(5):
        (folder / f"{age}.o").write_bytes(b"")
        os.utime(folder / f"{age}.o", (1000 - age, 1000 - age))
    native.ObjectCache(b"", print, most=3).trim()
    assert sorted(path.name for path in folder.iterdir()) == ["0.o", "1.o", "2.o"]


def test_the_loader_expects_the_library_of_the_header() -> None:
    """Here, because where they differ the engine's own tests are skipped."""
    (found,) = re.findall(r"^#define ED_ABI (\d+)$", (native.HERE / "api.h").read_text("utf-8"), re.MULTILINE)
    assert int(found) == loader.ABI


def test_an_object_is_made_anew_if_a_header_changes_that_its_source_includes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EDGEDEC_OBJECT_CACHE", raising=False)
    source, inner, other = tmp_path / "a.cpp", tmp_path / "simd" / "inner.h", tmp_path / "other.h"
    inner.parent.mkdir()
    source.write_text('#include "outer.h"\n')
    (tmp_path / "outer.h").write_text('  #  include "simd/inner.h"\n')
    inner.write_text("int x;\n")
    other.write_text("int y;\n")
    runs = list[str]()

    def compiled() -> int:
        before = len(runs)
        cache = native.ObjectCache(b"", made, headers=[tmp_path / "outer.h", inner, other])
        cache.compile(source, ["compiler"], tmp_path / "a.o", None)
        return len(runs) - before

    def made(command: list[str], env: object) -> bool:
        (tmp_path / "a.o").write_bytes(b"made")
        runs.append(command[0])
        return True

    assert [compiled(), compiled()] == [1, 0]
    other.write_text("int z;\n")
    assert compiled() == 0, "it does not include this one"
    inner.write_text("int w;\n")
    assert compiled() == 1
    source.write_text('#include "outer.h"\nint v;\n')
    assert compiled() == 1


def test_what_a_compiler_leaves_when_asked_for_its_version_is_not_left_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = SimpleNamespace(**runpy.run_path(str(KERNELS / "objects.py")))
    script = tmp_path / "compiler.py"
    script.write_text("import sys\nopen('a.o', 'w').close()\nprint('compiler', sys.argv[1:])\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    said = objects.compiler_version([sys.executable, str(script)], None)
    assert said.split() == b"compiler ['--version']".split()
    assert not [*Path().iterdir()]
    assert objects.compiler_version([str(tmp_path / "none")], None) == b""
