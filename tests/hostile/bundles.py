"""Bundles whose manifest or files were changed, with the right hashes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def change_manifest(
    nano: Path,
    folder: Path,
    change: Callable[[dict[str, Any]], None],
    files: Mapping[str, Callable[[str], str]] | None = None,
) -> Path:
    """A copy of a bundle with a changed manifest. files: what becomes of the text of some files."""
    shutil.copytree(nano, folder)
    manifest = json.loads((folder / "edgedec.json").read_text("utf-8"))
    for name, make in (files or {}).items():
        raw = make((folder / name).read_text("utf-8")).encode()
        (folder / name).write_bytes(raw)
        manifest["files"][name] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    change(manifest)
    (folder / "edgedec.json").write_text(json.dumps(manifest), "utf-8")
    return folder
