"""The layers of a draft as a bundle inside the bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgedec.bundle import MANIFEST
from edgedec.export.writer import Add, BundleWriter, Contents, Progress, Scales


def write_stack(folder: Path, contents: Contents, fill: Callable[[Add], Scales], progress: Progress) -> str:
    """Write its files into a staging folder -> the name of its manifest."""
    BundleWriter(folder, contents, progress).write(fill)
    name = f"{contents.prefix}json"
    (folder / MANIFEST).rename(folder / name)
    return name
