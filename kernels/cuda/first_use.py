"""Kernels compiled for the GPU that is found, at first use, by the NVRTC that the `cuda` extra brings.

They are kept in the cache folder by a hash of the sources, the architecture and the compiler's version. One process
compiles; others of the machine that need the same kernels wait for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from edgedec.kernels.cuda import nvrtc
from edgedec.kernels.cuda.sources import CudaBuildFailed, cache_folder, cubin_name, digest
from edgedec.kernels.device.interface import DeviceError

# Seconds between two notes of progress.
_NOTED = 10.0
_KINDS = {"cubin": b"\x7fELF", "ptx": b"//"}


def note(message: str) -> None:
    print(f"edgedec: {message}", file=sys.stderr, flush=True)


def why_not(capability: tuple[int, int]) -> str | None:
    """None if kernels can be compiled for this compute capability here, else the reason in one line."""
    missing = nvrtc.why_not()
    if missing is not None:
        return missing
    try:
        architecture_for(capability, nvrtc.architectures())
    except (CudaBuildFailed, DeviceError) as error:
        return str(error)
    return None


def architecture_for(capability: tuple[int, int], known: list[int]) -> str:
    """The newest architecture of the compiler that a GPU runs: sm_89; compute_120, as PTX, for a GPU newer than all."""
    own = 10 * capability[0] + capability[1]
    fitting = [architecture for architecture in known if architecture <= own]
    if not fitting:
        raise DeviceError(f"NVRTC {nvrtc.version()} knows no compute capability {capability[0]}.{capability[1]}")
    newest = max(fitting)
    return f"{'sm' if newest // 10 == capability[0] else 'compute'}_{newest}"


def compiled(capability: tuple[int, int], say: Callable[[str], None] = note) -> Path:
    """The engine's file for a compute capability, compiled now unless it is kept; DeviceError gives the reason for a
    failure."""
    try:
        architecture = architecture_for(capability, nvrtc.architectures())
        path = kept_at(architecture)
        if _is_whole(path):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent / "lock", lambda: say("another process compiles the CUDA kernels; waiting for it")):
            if not _is_whole(path):
                _compile(path, architecture, say)
    except CudaBuildFailed as error:
        raise DeviceError(f"the CUDA kernels do not compile: {error}") from None
    except OSError as error:
        raise DeviceError(f"the CUDA kernels cannot be kept in {cache_folder()}: {error.strerror or error}") from None
    return path


def kept_at(architecture: str) -> Path:
    """Where the kernels of these sources, this architecture and this compiler are kept."""
    key = sha256(f"{digest()} {architecture} {nvrtc.version()}".encode()).hexdigest()[:16]
    return cache_folder() / "cuda" / key / cubin_name(architecture)


def _is_whole(path: Path) -> bool:
    """Whether the file is there and begins as such a file does."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_KINDS[path.suffix[1:]])
    except OSError:
        return False


def _compile(path: Path, architecture: str, say: Callable[[str], None]) -> None:
    began, done = monotonic(), Event()

    def tick() -> None:
        while not done.wait(_NOTED):
            say(f"compiling the CUDA kernels for {architecture}: {monotonic() - began:.0f} s")

    say(f"compiling the CUDA kernels for {architecture}, once for this GPU; it takes about a minute")
    noting = Thread(target=tick, daemon=True)
    noting.start()
    try:
        code = nvrtc.compile_for(architecture).code
    finally:
        done.set()
        noting.join()
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        partial.write_bytes(code)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    say(f"compiled in {monotonic() - began:.0f} s, kept in {path.parent}")


@contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock between processes, which ends with the process; waiting: called if another one holds it."""
    with path.open("ab") as file:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
