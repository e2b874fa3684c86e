"""The bundle folder that a user means: a path, the name of the bundled model, or a GGUF file, which becomes one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BundleNotFound

NANO, GGUF = "nano", ".gguf"
Progress = Callable[[str, int, int], None]
Announce = Callable[[Path, Path], AbstractContextManager[Progress]]


def _silent(file: Path, folder: Path) -> AbstractContextManager[Progress]:
    return nullcontext(lambda stage, done, total: None)


# Told of a file that is about to be converted, and into which folder; gives what is told of the progress.
announce: ContextVar[Announce] = ContextVar("announce", default=_silent)


def find(path_or_name: str | os.PathLike[str]) -> Path:
    """The folder that a user means. A GGUF file is converted into the cache folder when it is first asked for."""
    path = Path(path_or_name)
    # A folder that merely has the name of the bundled model does not hide it; a bundle of that name does.
    if str(path_or_name) == NANO and not (path / MANIFEST).is_file():
        home = find_spec("edgedec.models.nano")
        if home is not None and home.origin is not None:
            return Path(home.origin).parent / "bundle"
    if path.suffix == GGUF and path.is_file():
        converted: Path = import_module("edgedec.export.gguf.converted").bundle_of(path, announce.get())
        return converted
    if not path.is_dir():
        what = "file" if path.suffix == GGUF else "bundle folder"
        raise BundleNotFound(f"{path}: no such {what}; make a bundle with `edgedec export`, or use {NANO!r}")
    return path
