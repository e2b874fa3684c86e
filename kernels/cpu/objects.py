"""Shared parts of builds: running compilers, an object cache keyed by inputs, atomic replacement of results.

Standard library only: `build.py` runs it by its path.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

Environment = Mapping[str, str] | None
_INCLUDED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


class BuildFailed(Exception):
    """A build error in one line; `log` is the compiler's output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


def run(command: Sequence[str], env: Environment) -> bool:
    """Run a compiler; returns whether it printed nothing."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, errors="replace")
    except OSError as error:
        raise BuildFailed(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        lines = done.stdout.splitlines() or [f"{command[0]} ended with {done.returncode}"]
        why = next((line for line in lines if "error" in line or "undefined" in line), lines[0])
        raise BuildFailed(why.strip(), done.stdout)
    warnings = done.stdout.strip()
    if warnings:
        print(warnings, file=sys.stderr)
    return not warnings


def report(name: str, work: Callable[[], Path]) -> int:
    """The exit status of a build, which prints what it made, or on stderr why it failed."""
    try:
        print(work())
    except BuildFailed as error:
        print(f"{error.log}{name}: {error}", file=sys.stderr)
        return 1
    return 0


class ObjectCache:
    """Compiles objects that are not cached. Objects without compiler output are kept in the cache folder by source,
    those of `headers` that it includes, compiler and command; "0" in EDGEDEC_OBJECT_CACHE disables it."""

    def __init__(
        self,
        compiler: bytes,
        run: Callable[[Sequence[str], Environment], bool],
        most: int = 600,
        headers: Iterable[Path] = (),
    ) -> None:
        self._compiler, self._run, self._most = hashlib.sha256(compiler).digest(), run, most
        self._headers = [(path.name, path.read_bytes()) for path in headers]
        self._folder = _cache_folder() / "objects" if os.environ.get("EDGEDEC_OBJECT_CACHE") != "0" else None

    def compile(self, source: Path, command: Sequence[str], into: Path, env: Environment) -> None:
        """Run `command`, which makes `into` from `source`, unless its result is cached."""
        if self._folder is None:
            self._run(command, env)
            return
        # Paths of this build do not affect the object.
        words = [word for word in command if word not in (str(into), str(source)) and not word.startswith("/Fo")]
        texts = self._included(source.read_bytes())
        key = hashlib.sha256(b"\0".join([self._compiler, *texts, *(word.encode() for word in words)]))
        found = self._folder / f"{key.hexdigest()[:40]}.o"
        try:
            shutil.copyfile(found, into)
            found.touch()
        except OSError:
            if self._run(command, env):
                self._keep(into, found)

    def _included(self, source: bytes) -> list[bytes]:
        """A source and the headers that it includes, with those that they do; by their names in whatever folder."""
        texts, known = [source], set[str]()
        for text in texts:
            names = {name.decode().rpartition("/")[2] for name in _INCLUDED.findall(text)} - known
            known |= names
            texts += [found for name, found in self._headers if name in names]
        return texts

    def _keep(self, made: Path, found: Path) -> None:
        partial = found.with_name(f"{found.name}.partial-{os.getpid()}")
        try:
            found.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made, partial)
            os.replace(partial, found)
        except OSError:
            partial.unlink(missing_ok=True)  # a full or read-only disk costs time only

    def trim(self) -> None:
        """Remove all but the latest used objects."""
        if self._folder is None or not self._folder.is_dir():
            return
        for path in sorted(self._folder.glob("*.o"), key=lambda path: path.stat().st_mtime)[: -self._most]:
            path.unlink(missing_ok=True)


def object_cache(command: Sequence[str], headers: Iterable[Path], env: Environment = None) -> ObjectCache:
    """The objects that this compiler made of sources with these headers."""
    return ObjectCache(compiler_version(command, env), run, headers=headers)


def compiler_version(command: Sequence[str], env: Environment) -> bytes:
    """The compiler's version, because another compiler makes other objects. cl prints it when called without
    arguments."""
    asked = [*command] if Path(command[0]).stem.lower() == "cl" else [*command, "--version"]
    with TemporaryDirectory(prefix="edgedec-") as folder:  # zig leaves an empty a.o where it is asked, for macOS
        try:
            done = subprocess.run(
                asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, check=False, cwd=folder
            )
            return done.stdout
        except OSError:
            return b""  # the first compilation reports the error


def _cache_folder() -> Path:
    """edgedec's cache folder (as `edgedec.storage.files.cache_folder`, which cannot be imported here)."""
    own = os.environ.get("EDGEDEC_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgedec"


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A temporary path in the folder of `out`; renamed at the end, removed on failure."""
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    try:
        yield partial
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


# zig names a processor where others name an architecture.
_ZIG = {
    "-march=armv8.2-a+dotprod": "-mcpu=generic+v8_2a+dotprod",
    "-march=armv8.2-a+dotprod+i8mm": "-mcpu=generic+v8_2a+dotprod+i8mm",
}


def spelt_for(command: Sequence[str], flags: Sequence[str]) -> list[str]:
    """g++'s flags in this compiler's spelling. Features that zig's command requires of every processor are added."""
    if not any(Path(part).stem in ("zig", "ziglang") for part in command):
        return list(flags)
    asked = "".join(part.removeprefix("-mcpu=generic") for part in command if part.startswith("-mcpu=generic+"))
    return [_ZIG[flag] + asked if flag in _ZIG else flag for flag in flags]
