"""Compile the CUDA engine: cubins for GPUs by NVRTC, without a GPU or a toolkit; the emulation by a C++ compiler.

    python -m edgedec.kernels.cuda.build                     cubins for all architectures into this folder, with PTX
    python -m edgedec.kernels.cuda.build --arch sm_90 --out FOLDER
    python -m edgedec.kernels.cuda.build --emulation emulated.so --sanitize address

NVRTC is needed here only (pip install nvidia-cuda-nvrtc): at run time the driver is enough.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from edgedec.kernels.cuda.nvrtc import compile_for
from edgedec.kernels.cuda.sources import HERE, SOURCE, CudaBuildFailed, cache_folder, cubin_name, digest

# The last one also as PTX: the driver compiles it for newer GPUs.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


# ---- the emulation -------------------------------------------------------------------------------


def emulation(sanitize: str = "") -> Path:
    """The library that emulates a GPU, compiled once for these sources."""
    name = f"cuda-emulated-{digest()}-{_processor()}{'-' + sanitize if sanitize else ''}.so"
    out = cache_folder() / name
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        compile_emulation(out, sanitize)
    return out


def _processor() -> str:
    """A key of this machine's instructions: a library for one processor may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    said = next((line for line in lines if line.lower().startswith(("flags", "features"))), platform.machine())
    return hashlib.sha256(said.encode()).hexdigest()[:8]


def compile_emulation(out: Path, sanitize: str = "", sources: Sequence[Path] = (SOURCE,)) -> None:
    """Compile kernels and the emulation to a library that appears when it is finished."""
    if sys.platform == "win32":
        raise CudaBuildFailed("kernels are emulated on Linux and macOS only")
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    flags = ["-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden"]
    flags += ["-Wall", "-Wextra", "-Wno-unused-function", "-DED_EMULATE", f"-I{HERE}"]
    if sanitize:
        flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g"]
    names = [str(path) for path in (*sources, HERE / "emulate.cpp")]
    try:
        _run([os.environ.get("CXX", "c++"), *flags, "-x", "c++", *names, "-o", str(partial)])
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    except OSError as error:
        raise CudaBuildFailed(f"{command[0]}: {error.strerror}: the emulation needs a C++ compiler") from None
    if done.returncode:
        lines = done.stdout.splitlines() or [f"{command[0]} ended with {done.returncode}"]
        raise CudaBuildFailed(next((line for line in lines if "error" in line), lines[0]).strip())


# ---- cubins --------------------------------------------------------------------------------------


def build_cubins(out: Path, architectures: Sequence[str]) -> list[Path]:
    """Compile the engine for these architectures into a folder, with a digest of the sources."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for architecture in architectures:
        path, partial = out / cubin_name(architecture), out / f"{cubin_name(architecture)}.partial"
        partial.write_bytes(compile_for(architecture).code)
        os.replace(partial, path)
        made.append(path)
    (out / "SOURCES").write_text(digest() + "\n", "utf-8")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile edgedec's CUDA engine.")
    parser.add_argument("--out", type=Path, default=HERE / "cubins", help="a folder; default: cubins beside this file")
    parser.add_argument("--arch", action="append", help="such as sm_90; default: all")
    parser.add_argument("--emulation", type=Path, help="compile the emulation to this file instead")
    parser.add_argument("--sanitize", default="", help="of the emulation, such as address")
    told = parser.parse_args(arguments)
    try:
        if told.emulation:
            compile_emulation(told.emulation, told.sanitize)
            print(told.emulation)
            return 0
        for path in build_cubins(told.out, told.arch or (*ARCHITECTURES, "compute_120")):
            print(f"{path} {path.stat().st_size} bytes")
    except (CudaBuildFailed, OSError) as error:
        print(f"edgedec: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
