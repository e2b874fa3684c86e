"""Adds files to an existing bundle: artifacts and draft heads. After an interruption the bundle opens as before.

New files are written to a staging folder inside the bundle and renamed into place; the manifest is replaced last. A
file whose content changes would not match the old manifest, so a manifest without the artifacts that use it is written
first.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edgedec.bundle import MANIFEST, Bundle, Manifest
from edgedec.bundle.manifest import Artifact
from edgedec.errors import BundleError, BundleUnsafe, UsageError
from edgedec.export.artifacts import FAMILY as ARTIFACTS
from edgedec.export.artifacts import Request, Tuning, choose, made_for
from edgedec.export.layout import Layout
from edgedec.export.writer import Progress, hashed, manifest_text
from edgedec.signing import remove_signature
from edgedec.storage.files import replacing

_STAGING = ".adding-"
_UNTUNED = Tuning()


def add_artifact(
    path: Path,
    runtime: str,
    kv: tuple[str, ...] = (),
    progress: Progress = lambda *_: None,
    tuning: Tuning = _UNTUNED,
) -> Bundle:
    """Add the files that `runtime` needs to the bundle at `path`. kv: cache formats besides those that the bundle
    names; tuning: of compiled libraries."""
    bundle = Bundle.open(path)
    manifest = bundle.manifest
    wanted = choose(manifest.spec, [runtime], "runtime ", [tensor.format for tensor in manifest.tensors.values()])
    if not wanted:
        return bundle  # it needs no files
    formats = _formats(bundle, kv)
    # Other artifacts may share its files: written again, the bytes are the same unless this edgedec writes other
    # graphs.
    names = [name for name in ARTIFACTS.names() if name in wanted or name in manifest.artifacts]
    names = names if runtime in names else list(wanted)
    with _staging(bundle) as folder:
        progress("graphs", 0, 1)
        layout, kv_format = Layout.of(manifest), manifest.kv_formats[0]
        request = Request(layout, manifest.text, formats, kv_format, bundle.path, tuning, progress)
        artifacts = made_for(names, folder, request)
        progress("graphs", 1, 1)
        return _install(bundle, folder, lambda m: _with_artifacts(m, artifacts, formats), progress)


def add_files(bundle: Bundle, files: dict[str, bytes], change: Callable[[Manifest], Manifest]) -> Bundle:
    """Put files into a bundle; `change` edits the manifest besides listing them."""
    with _staging(bundle) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return _install(bundle, folder, change)


@dataclass(frozen=True)
class Staging:
    """New files on their way into a bundle: written to `folder`, then installed."""

    bundle: Bundle
    folder: Path

    def install(self, change: Callable[[Manifest], Manifest]) -> Bundle:
        """Move them into the bundle; `change` edits the manifest besides listing them."""
        return _install(self.bundle, self.folder, change)


@contextmanager
def adding(bundle: Bundle) -> Iterator[Staging]:
    """An empty folder for new files of a bundle."""
    with _staging(bundle) as folder:
        yield Staging(bundle, folder)


def _formats(bundle: Bundle, kv: tuple[str, ...]) -> tuple[str, ...]:
    """The bundle's cache formats and `kv`, without duplicates."""
    for name in kv:
        if name in ("int8", "int4") and getattr(bundle.manifest.kv_scales, name) is None:
            raise UsageError(f"--kv {name}: {bundle.path} has no scales for it; export again with --kv {name}")
        if name not in ("f32", "f16", "int8", "int4"):
            raise UsageError(f"--kv {name}: must be one of f32, f16, int8, int4")
    return tuple(dict.fromkeys([*bundle.manifest.kv_formats, *kv]))


def _with_artifacts(manifest: Manifest, artifacts: dict[str, Artifact], kv: tuple[str, ...]) -> Manifest:
    return replace(manifest, artifacts={**manifest.artifacts, **artifacts}, kv_formats=kv)  # type: ignore[arg-type]


def _install(
    bundle: Bundle, folder: Path, change: Callable[[Manifest], Manifest], progress: Progress = lambda *_: None
) -> Bundle:
    """Move the files of a staging folder into the bundle, then the manifest."""
    new, old = hashed(folder, progress), bundle.manifest
    altered = {name for name, file in new.items() if name in old.files and old.files[name] != file}
    if altered:
        _write(bundle, _without(old, altered))
    for name in new:
        os.replace(folder / name, bundle.path / name)
    amended = change(replace(old, files={**old.files, **new}))
    _write(bundle, replace(amended, origin=bundle.origin if _same_model(old, amended) else ""))
    return Bundle.open(bundle.path)


def _same_model(a: Manifest, b: Manifest) -> bool:
    """Whether both describe the same model: spec, weights, cache scales, text."""
    facts = ("spec", "weights", "tensors", "ropes", "kv_scales", "text")
    names = (a.weights, a.text.tokenizer)
    return all(getattr(a, name) == getattr(b, name) for name in facts) and all(
        name is None or a.files[name] == b.files[name] for name in names
    )


def _without(manifest: Manifest, names: set[str]) -> Manifest:
    """The manifest less these files and what uses them."""
    return replace(
        manifest,
        files={name: file for name, file in manifest.files.items() if name not in names},
        artifacts={key: a for key, a in manifest.artifacts.items() if not names & set(a.files)},
        heads={kind: head for kind, head in manifest.heads.items() if head.file not in names},
        drafts={kind: draft for kind, draft in manifest.drafts.items() if not names & set(draft.files)},
    )


def _write(bundle: Bundle, manifest: Manifest) -> None:
    remove_signature(bundle.path)  # it signs the old manifest
    with replacing(bundle.path / MANIFEST) as file:
        file.write(manifest_text(manifest).encode())


@contextmanager
def _staging(bundle: Bundle) -> Iterator[Path]:
    """An empty folder inside the bundle, removed afterwards, together with folders that a killed process left."""
    if any((bundle.path / name).is_symlink() for name in (MANIFEST, *bundle.manifest.files)):
        raise BundleUnsafe(f"{bundle.path}: is made of links; add to a copy of it")
    try:
        for left in bundle.path.glob(f"{_STAGING}*"):
            shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=_STAGING, dir=bundle.path))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise BundleError(f"{bundle.path}: cannot be written: {error.strerror or error}") from None
