"""Links in a folder that is imported: none is followed out of it, so that no other file of this machine is copied."""

from __future__ import annotations

import os
from pathlib import Path

from edgedec.errors import CheckpointError

# Files that some importer reads; others may be links to wherever they like.
_READ = (".json", ".safetensors", ".jinja", ".txt", ".model", ".onnx", ".onnx_data", ".data", ".bin", ".pt", ".pth")


def check_links(folder: Path, *inside: str) -> None:
    """CheckpointError for a file of the folder, or of the named folders in it, that is a link out of the folder."""
    for place in (folder, *(folder / name for name in inside)):
        if not place.is_dir():
            continue
        check_link(folder, place)
        for path in sorted(place.iterdir()):
            if path.suffix in _READ:
                check_link(folder, path)


def check_link(folder: Path, path: Path) -> None:
    """CheckpointError if `path`, below the folder, leads out of it. A snapshot in the Hub's shared cache links to the
    blobs beside it."""
    # realpath and not resolve: a circle of links is no error to it.
    target, home = os.path.realpath(path), os.path.realpath(folder)
    homes = [home]
    if os.path.basename(os.path.dirname(home)) == "snapshots":
        homes.append(os.path.join(os.path.dirname(os.path.dirname(home)), "blobs"))
    if not any(target == one or target.startswith(one.rstrip(os.sep) + os.sep) for one in homes):
        raise CheckpointError(f"{path}: a link out of {folder}; copy the file in")
