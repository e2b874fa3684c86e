"""The bundle folder for a path or name: a folder, the name of a bundled model, or a source that is converted at first
use: a GGUF file, a name on the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BundleNotFound

NANO, GGUF, HUB, PACKED = "nano", ".gguf", "hf:", ".edb"
# The bundled models: their names, and their folders beside nano's recipe. nano-canvas is in checkouts only.
BUNDLED = {NANO: "bundle", "nano-block": "block", "nano-canvas": "canvas"}
# A name on the Hub without its prefix.
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
Progress = Callable[[str, int, int], None]
Announce = Callable[[str, Path], AbstractContextManager[Progress]]


def _silent(what: str, folder: Path) -> AbstractContextManager[Progress]:
    return nullcontext(lambda stage, done, total: None)


# Called with a description of the work ("m.gguf is converted") and the folder; returns the progress callback.
announce: ContextVar[Announce] = ContextVar("announce", default=_silent)


def find(path_or_name: str | os.PathLike[str]) -> Path:
    """The folder for a path or name. At first use a GGUF file is converted into the cache folder, a packed bundle is
    unpacked there, `hf:ORG/NAME` is downloaded and exported."""
    path = Path(path_or_name)
    # A folder that merely has the name of a bundled model does not hide it; a bundle of that name does.
    if str(path_or_name) in BUNDLED and not (path / MANIFEST).is_file():
        home = find_spec("edgedec.models.nano")
        if home is not None and home.origin is not None:
            folder = Path(home.origin).parent / BUNDLED[str(path_or_name)]
            if folder.is_dir():
                return folder
            raise BundleNotFound(f"{path}: not part of this installation; models/nano/README.md has the command for it")
    if str(path_or_name).startswith(HUB):
        # A bundle folder, or a file of another format that has been downloaded, which is looked for in its turn.
        found: Path = import_module("edgedec.export.hub").fetched(str(path_or_name), announce.get())
        return found if found.is_dir() else find(found)
    if path.is_file() and is_gguf(path):
        converted: Path = import_module("edgedec.export.gguf.converted").bundle_of(path, announce.get())
        return converted
    if path.is_file():
        packed = import_module("edgedec.bundle.packed")
        if path.suffix == PACKED or packed.is_packed(path):
            content: Path = packed.unpacked(path)
            return content
        raise BundleNotFound(f"{path}: neither a GGUF file nor a packed bundle; {_instead_of(path)}")
    if not path.is_dir():
        what = "file" if path.suffix in (GGUF, PACKED) else "bundle folder"
        if what == "bundle folder" and _ID.fullmatch(str(path_or_name)):
            raise BundleNotFound(f"{path}: no such bundle folder; a model of the Hugging Face Hub is {HUB}{path}")
        raise BundleNotFound(f"{path}: no such {what}; make a bundle with `edgedec export`, or use {NANO!r}")
    return path


def is_gguf(path: Path) -> bool:
    """Whether a file is GGUF, by its name or its magic bytes: other programs store such files under other names."""
    if path.suffix == GGUF:
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def _instead_of(path: Path) -> str:
    """Advice for a file that is not a model by itself."""
    if path.name == MANIFEST:
        return f"name its folder: {path.parent}"
    if path.suffix == ".onnx":
        return f"edgedec import {path.parent} -o BUNDLE makes a bundle of a decoder"
    if path.suffix == ".safetensors" or path.name == "config.json":
        return f"edgedec export {path.parent} -o BUNDLE makes one of its folder"
    return "make a bundle with `edgedec export`"
