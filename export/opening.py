"""The checkpoint that a user means, whatever its format."""

from __future__ import annotations

from pathlib import Path

from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.export.gguf.checkpoint import GgufCheckpoint


def open_source(place: str | Path) -> Checkpoint:
    """The checkpoint at a folder, a GGUF file or a hub id."""
    path = Path(place)
    return GgufCheckpoint.of(path) if path.suffix == ".gguf" and not path.is_dir() else open_checkpoint(place)
