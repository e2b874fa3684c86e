"""The checkpoint that a user means, whatever its format."""

from __future__ import annotations

from pathlib import Path

from edgedec.errors import CheckpointError
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.export.gguf.checkpoint import GgufCheckpoint

GGUF = ".gguf"


def open_source(place: str | Path) -> Checkpoint:
    """The checkpoint at a folder, a GGUF file or a hub id."""
    path = Path(place)
    if path.is_dir():
        files = sorted(path.glob(f"*{GGUF}"))
        if files and not (path / "config.json").exists():
            raise CheckpointError(f"{path}: holds GGUF files and no config.json; name the file: {files[0]}")
        return open_checkpoint(place)
    return GgufCheckpoint.of(path) if path.suffix == GGUF else open_checkpoint(place)
