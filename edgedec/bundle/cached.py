"""Bundles in the cache folder: created at a model's first use, and deletable because they can be created again.

CACHE/hub/ORG--NAME@REVISION/           of the Hugging Face Hub; ORG--NAME@REVISION.json beside it: its `Origin`
CACHE/KIND/ANY-NAME/                    of other files
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from edgedec.bundle.locate import HUB
from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.storage.files import cache_folder, replacing
from edgedec.storage.serde import from_json, to_json

PLACE = "hub"
_ID = re.compile(r"(?P<id>\w[\w.-]*/\w[\w.-]*)(?:/(?P<file>[\w./-]+\.gguf))?(?:@(?P<revision>[\w.-]+))?\Z")


@dataclass(frozen=True)
class HubName:
    """A model of the Hub; file: one file of its repository, if it is that alone."""

    id: str
    revision: str = "main"
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName:
        """ "hf:ORG/NAME@REVISION" -> its parts; "hf:" and "@REVISION" may be missing."""
        found = _ID.match(text.removeprefix(HUB))
        if found is None or ".." in text:
            if ":" in text.removeprefix(HUB):
                raise UsageError(f"{text}: a colon names nothing; name the file: ORG/NAME/FILE.gguf")
            raise UsageError(
                f"{text}: not a model of the Hub; expected ORG/NAME, ORG/NAME@REVISION or ORG/NAME/FILE.gguf"
            )
        return cls(found["id"], found["revision"] or "main", found["file"])

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{HUB}{self.id}" + (f"/{self.file}" if self.file else "") + at

    @property
    def folder(self) -> Path:
        """Where its bundle is kept."""
        return cache_folder() / PLACE / f"{self.id.replace('/', '--')}@{self.revision}"


@dataclass(frozen=True)
class Origin:
    """The source of a Hub model's bundle. weights: the requested format, if any; version: of the bundle format."""

    id: str
    revision: str
    commit: str
    weights: str
    version: int


@dataclass(frozen=True)
class CachedBundle:
    """`name` opens it; `used`: when it was written, in seconds since 1970."""

    name: str
    path: Path
    bytes: int
    made: float


def origin_of(name: HubName) -> Origin | None:
    """The origin file of a bundle; None if the bundle or the file is missing or unreadable."""
    try:
        return from_json(Origin, json.loads(_note(name.folder).read_text("utf-8")), "origin")
    except (OSError, ValueError, BundleCorrupt):
        return None


def write_origin(name: HubName, origin: Origin) -> None:
    with replacing(_note(name.folder)) as file:
        file.write(json.dumps(to_json(origin)).encode())


def cached() -> list[CachedBundle]:
    """Every bundle in the cache folder, by name."""
    found = []
    for manifest in cache_folder().glob(f"*/*/{MANIFEST}"):
        folder = manifest.parent
        if not folder.name.startswith("."):
            size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
            found.append(CachedBundle(_name(folder), folder, size, manifest.stat().st_mtime))
    return sorted(found, key=lambda bundle: bundle.name)


def remove(name: str) -> CachedBundle:
    """Delete a cached bundle, by the name that `cached` gives it (or without "hf:")."""
    every = {bundle.name: bundle for bundle in cached()}
    found = every.get(name) or every.get(f"{HUB}{name}") or every.get(f"{HUB}{name}".removesuffix("@main"))
    if found is None:
        raise UsageError(f"{name}: not among the cached bundles; `edgedec list` shows them")
    _note(found.path).unlink(missing_ok=True)
    gone = found.path.with_name(f".{found.path.name}.partial-gone")
    shutil.rmtree(gone, ignore_errors=True)  # of a command that was killed
    found.path.rename(gone)
    shutil.rmtree(gone)
    return found


def _note(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _name(folder: Path) -> str:
    """The name that opens a cached bundle."""
    if folder.parent.name != PLACE:
        return str(folder)
    repository, _, revision = folder.name.partition("@")
    return str(HubName(repository.replace("--", "/", 1), revision))
