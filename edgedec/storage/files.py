"""Writing without leaving halves: to a temporary name beside the target, then renamed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edgedec.errors import UsageError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends well, and vanishes when it does not."""
    staging = _beside(path)
    try:
        with staging.open("xb") as file:
            yield file
        os.replace(staging, path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_folder(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A new folder that becomes `path` when the block ends well; an existing one only goes with `force`."""
    path = Path(os.path.abspath(path))  # "." has a name too
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UsageError(f"{path}: is not a folder and will not be replaced by one; choose another place")
    if path.exists() and not force:
        raise UsageError(f"{path}: exists already; choose another place or pass --force")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = _beside(path)
    try:
        staging.mkdir()
        yield staging
        _swap(staging, path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _swap(staging: Path, path: Path) -> None:
    """Rename `staging` to `path`; what was there goes, or comes back if that fails."""
    if not path.exists():
        staging.rename(path)
        return
    old = staging.with_name(staging.name + ".old")
    path.rename(old)
    try:
        staging.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old)


def _beside(path: Path) -> Path:
    """A name that nobody has, in the same folder."""
    return path.with_name(f".{path.name}.partial-{secrets.token_hex(6)}")


def cache_folder() -> Path:
    """Where what can be made again is kept: EDGEDEC_CACHE, else edgedec under XDG_CACHE_HOME, else ~/.cache."""
    own = os.environ.get("EDGEDEC_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgedec"
