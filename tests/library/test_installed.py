"""What a clean clone gives: `make demo-c` tells a story, and what it installed is found by CMake and by pkg-config."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from clibrary import ROOT, needs_compiler, needs_patience

STORY = "Once upon a time, there was a little girl named Lily. She loved to play with her toys"
# A program of someone else's.
CONSUMER = """
cmake_minimum_required(VERSION 3.16)
project(tells LANGUAGES C CXX)
find_package(edgedec 0.1 REQUIRED)
add_executable(in_c story.c)
target_link_libraries(in_c PRIVATE edgedec::edgedec)
add_executable(in_cpp story.cpp)
set_target_properties(in_cpp PROPERTIES CXX_STANDARD 17)
target_link_libraries(in_cpp PRIVATE edgedec::edgedec)
"""
NEEDS = [name for name in ("git", "make", "cmake", "cc", "c++", "pkg-config") if not shutil.which(name)]
pytestmark = [
    needs_compiler,
    needs_patience,
    pytest.mark.skipif(bool(NEEDS), reason=f"not here: {', '.join(NEEDS)}"),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone of the repository"),
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last commit, and nothing that was built beside it."""
    folder = tmp_path_factory.mktemp("clone") / "edgedec"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, folder], check=True)
    told = subprocess.run(["make", "demo-c"], cwd=folder, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr[-2000:]
    assert STORY in told.stdout
    return folder


def story_of(*command: str | Path, **env: str) -> str:
    return subprocess.check_output(list(map(str, command)), text=True, env=os.environ | env)


def cmake(*arguments: str | Path) -> None:
    done = subprocess.run(["cmake", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def check_consumer(clone: Path, installed: Path, folder: Path) -> None:
    """Someone else's project finds what is installed there, and its programs tell nano's story."""
    for name in ("c/story.c", "cpp/story.cpp"):
        shutil.copy(clone / "examples" / name, folder)
    (folder / "CMakeLists.txt").write_text(CONSUMER)
    cmake("-S", folder, "-B", folder / "b", f"-DCMAKE_PREFIX_PATH={installed}")
    cmake("--build", folder / "b")
    nano = clone / "models" / "nano" / "bundle"
    assert story_of(folder / "b" / "in_c", nano).startswith(STORY)
    assert story_of(folder / "b" / "in_cpp", nano).count("Once upon a time") == 2


def test_cmake_finds_it(clone: Path, tmp_path: Path) -> None:
    check_consumer(clone, clone / "build/lib/installed", tmp_path)


def test_pkg_config_finds_it_also_where_it_was_moved_to(clone: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(clone / "build/lib/installed", moved, symlinks=True)
    here = {"PKG_CONFIG_PATH": str(moved / "lib" / "pkgconfig")}
    flags = story_of("pkg-config", "--cflags", "--libs", "edgedec", **here).split()
    assert f"-I{moved / 'include'}" in [flag.replace("/lib/pkgconfig/../..", "") for flag in flags]
    source = clone / "examples" / "c" / "story.c"
    subprocess.run(["cc", "-std=c99", source, *flags, "-o", tmp_path / "story"], check=True)
    nano = clone / "models" / "nano" / "bundle"
    assert story_of(tmp_path / "story", nano, LD_LIBRARY_PATH=str(moved / "lib")).startswith(STORY)


def test_a_static_library(clone: Path, tmp_path: Path) -> None:
    """The program has all of it inside, and is found by the same name."""
    static = ["-DEDGEDEC_STATIC=ON", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_INSTALL_LIBDIR=lib"]
    cmake("-S", clone / "kernels/lib", "-B", tmp_path / "s", *static)
    cmake("--build", tmp_path / "s", "--parallel", "2")
    cmake("--install", tmp_path / "s", "--prefix", tmp_path / "installed")
    check_consumer(clone, tmp_path / "installed", tmp_path)
    nano = clone / "models" / "nano" / "bundle"
    here = {"PKG_CONFIG_PATH": str(tmp_path / "installed" / "lib" / "pkgconfig")}
    flags = story_of("pkg-config", "--cflags", "--libs", "edgedec", **here).split()
    subprocess.run(["cc", "-std=c99", tmp_path / "story.c", *flags, "-o", tmp_path / "in_c"], check=True)
    assert story_of(tmp_path / "in_c", nano).startswith(STORY)
