"""The bundle folder that a user means: a path, or the name of the bundled model."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BundleNotFound

NANO = "nano"


def find(path_or_name: str | os.PathLike[str]) -> Path:
    """The folder that a user means."""
    path = Path(path_or_name)
    # A folder that merely has the name of the bundled model does not hide it; a bundle of that name does.
    if str(path_or_name) == NANO and not (path / MANIFEST).is_file():
        home = find_spec("edgedec.models.nano")
        if home is not None and home.origin is not None:
            return Path(home.origin).parent / "bundle"
    if not path.is_dir():
        raise BundleNotFound(f"{path}: no such bundle folder; make one with `edgedec export`, or use {NANO!r}")
    return path
