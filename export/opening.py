"""Opens a checkpoint of any format by path or hub id."""

from __future__ import annotations

from pathlib import Path

from edgedec.bundle.cached import HubName
from edgedec.bundle.locate import GGUF, HUB, is_gguf
from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import CheckpointError, UsageError
from edgedec.export.bundle_source import BundleSource
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.export.domain_experts import ExpertSource, read_experts
from edgedec.export.download import download, download_file
from edgedec.export.gguf.checkpoint import GgufCheckpoint


def open_source(place: str | Path) -> Checkpoint:
    """The checkpoint at a folder, with its experts if it has any beside it, a bundle, a GGUF file or a hub id, which is
    downloaded and checked."""
    path = Path(place)
    if str(place).startswith(HUB) or not path.exists():
        path = _downloaded(str(place))
    if (path / MANIFEST).is_file():
        return BundleSource.of(path)
    if path.is_dir():
        files = sorted(path.glob(f"*{GGUF}"))
        if files and not (path / "config.json").exists():
            raise CheckpointError(f"{path}: holds GGUF files and no config.json; name the file: {files[0]}")
        found = open_checkpoint(path)
        experts = read_experts(path)
        return found if experts is None else ExpertSource.of(found, experts)
    return GgufCheckpoint.of(path) if is_gguf(path) else open_checkpoint(path)


def _downloaded(place: str) -> Path:
    """The folder of a hub id's downloaded files; any other name is returned as a path."""
    try:
        name = HubName.parse(place)
    except UsageError:
        if place.startswith(HUB):
            raise
        return Path(place)
    return download(name).folder if name.file is None else download_file(name)
