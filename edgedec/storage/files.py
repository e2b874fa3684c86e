"""Atomic writing: to a temporary name next to the target, then renamed."""

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
    """A file that replaces `path` if the block succeeds, and is removed if it fails."""
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
    """A new folder that becomes `path` if the block succeeds; an existing one is only replaced with `force`."""
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
    """Rename `staging` to `path`; an existing folder is removed, or restored if that fails."""
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
    """An unused name in the same folder."""
    return path.with_name(f".{path.name}.partial-{secrets.token_hex(6)}")


def cache_folder() -> Path:
    """The folder for data that can be created again: EDGEDEC_CACHE, else edgedec under XDG_CACHE_HOME, else
    ~/.cache."""
    own = os.environ.get("EDGEDEC_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgedec"
