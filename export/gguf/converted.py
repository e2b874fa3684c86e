"""The bundle of a GGUF file, made once and kept in the cache folder under the hash of the file's bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from edgedec.bundle.locate import Announce, Progress
from edgedec.bundle.manifest import MANIFEST, VERSION
from edgedec.errors import BundleError, UsageError
from edgedec.export.gguf.file import PART, split_paths
from edgedec.storage.files import cache_folder, replacing

# Incremented when the conversion changes.
REVISION = 3
# Files from this size on are hashed with progress; bytes of a piece.
_LARGE, _PIECE = 1 << 30, 16 << 20


def bundle_of(path: Path, announce: Announce) -> Path:
    """The folder of the bundle that the file is converted to; it is made at the first call."""
    folder = cache_folder() / "gguf" / f"{path.stem}-{_key(path, announce)}"
    if (folder / MANIFEST).is_file():
        return folder
    _convert(path, folder, announce)
    return folder


def _convert(path: Path, folder: Path, announce: Announce) -> None:
    """Make the bundle. The exporter is imported here because it is needed once only."""
    from edgedec.export.export_options import ExportOptions
    from edgedec.export.exporter import export
    from edgedec.kernels.cpu import loader

    # Files for other engines would take time: they are made only if the native engine cannot run the model.
    runtimes = ("native",) if loader.why_not() is None else None
    options = ExportOptions(check=False, runtimes=runtimes, name=path.stem)
    what = f"{path.name} is converted"
    with ExitStack() as stack:
        try:
            export(str(path), folder, options, _announcing(lambda: stack.enter_context(announce(what, folder))))
        except (UsageError, BundleError):
            if not (folder / MANIFEST).is_file():  # not made by another process meanwhile
                raise


def _announcing(start: Callable[[], Progress]) -> Progress:
    """A progress that is announced at its first report: after the file was read and found convertible."""
    started: list[Progress] = []

    def show(stage: str, done: int, total: int) -> None:
        if not started:
            started.append(start())
        started[0](stage, done, total)

    return show


def _key(path: Path, announce: Announce) -> str:
    """The hash of the file or files, cached by their sizes and times. For a large file, which takes seconds to read,
    the reading is announced, after a check that the file can be converted."""
    parts = [path.resolve()]
    if (named := PART.fullmatch(path.name)) is not None:
        parts = [part.resolve() for part in split_paths(path, int(named[3]))]
    stats = [[str(part), part.stat().st_size, part.stat().st_mtime_ns] for part in parts]
    seen = [REVISION, VERSION, stats]
    note = cache_folder() / "gguf" / "seen" / f"{hashlib.sha256(str(parts[0]).encode()).hexdigest()[:16]}.json"
    found = _noted(note)
    if found and found[0] == seen:
        return found[1]
    with ExitStack() as stack:
        show: Progress = lambda *_: None  # noqa: E731
        if sum(part.stat().st_size for part in parts) >= _LARGE:
            import_module("edgedec.export.opening").open_source(path)
            show = stack.enter_context(announce(f"{path.name} is read", note.parent.parent))
        key = _digest(parts, show)
    note.parent.mkdir(parents=True, exist_ok=True)
    with replacing(note) as file:
        file.write(json.dumps([seen, key]).encode())
    return key


def _noted(note: Path) -> tuple[object, str] | None:
    try:
        seen, key = json.loads(note.read_text("utf-8"))
        return (seen, key) if isinstance(key, str) and key.isalnum() else None
    except (OSError, ValueError, TypeError):
        return None


def _digest(parts: list[Path], show: Progress) -> str:
    whole = hashlib.sha256(f"{REVISION} {VERSION}".encode())
    done, total = 0, sum(part.stat().st_size for part in parts)
    for part in parts:
        digest = hashlib.sha256()
        with part.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                done += len(piece)
                show("read", done, total)
        whole.update(digest.digest())
    return whole.hexdigest()[:24]
