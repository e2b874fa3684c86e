"""Opening of models for the server: one, or every bundle of a folder."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.cli import _flags as o
from edgedec.errors import EdgedecError, UsageError

if TYPE_CHECKING:
    import edgedec
    from edgedec.runtime import Adapter
    from edgedec.server.limits import ServerLimits
    from edgedec.server.pool import ModelSource

# A split GGUF file is opened by its first part.
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}$")


@dataclass(frozen=True)
class ModelOpening:
    """How models are opened to be served."""

    engine: str
    threads: int
    kv: o.KVFormat
    speculate: str
    template: o.TemplateFlags
    cache: str = "full"
    device: str = ""
    device_cache: int = 0
    diffusion: str = ""
    fuse: str = ""

    def only(self, name: str, lora: Sequence[str], limits: ServerLimits) -> tuple[ModelSource, ServerLimits]:
        """The only model, and limits that fit the memory; errors of the first request are raised here."""
        from edgedec.server.pool import ModelSource, fitted

        opened = self._open(name)
        self.template.apply(opened)
        adapters = {item: opened.adapter(*paths) for item, paths in _named_files(lora).items()}
        self._try(opened, limits.context)
        return ModelSource.of(opened, adapters), fitted(limits, opened)

    def folder(self, folder: Path, more: str | None, lora: Sequence[str], limits: ServerLimits) -> list[ModelSource]:
        """Every bundle in a folder, and optionally one more; opened on demand."""
        from edgedec.bundle.locate import find

        if not folder.is_dir():
            raise UsageError(f"--models {folder}: no such folder")
        if self.template.given:
            raise UsageError("--chat-template: with --models every model has its own; leave it out")
        paths = [*bundles(folder), *([] if more is None else [find(more)])]
        if not paths:
            raise UsageError(f"--models {folder}: no bundle and no GGUF file in it; make one with `edgedec export`")
        files = _named_files(lora)
        sources = [source for path in paths if (source := self._served(path, files, limits)) is not None]
        if not sources:
            raise UsageError(f"--models {folder}: none of its models can be served")
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"--models {folder}: two bundles are called {twice[0]!r}; rename or remove one")
        known = {name for source in sources for name in source.adapters}
        unknown = sorted(set(files) - known)
        if unknown:
            raise UsageError(f"--lora {unknown[0]}: with --models it is MODEL/NAME=FILE; models: {', '.join(names)}")
        return sources

    def _served(self, path: Path, lora: Mapping[str, Sequence[Path]], limits: ServerLimits) -> ModelSource | None:
        """A model source; a model that cannot be opened is reported and skipped."""
        try:
            return self._source(path, lora, limits)
        except EdgedecError as error:
            print(f"edgedec: {path.name} is not served: {error}", file=sys.stderr)
            return None

    def _source(self, path: Path, lora: Mapping[str, Sequence[Path]], limits: ServerLimits) -> ModelSource:
        from edgedec.bundle import Bundle
        from edgedec.cache import kv_bytes_per_token
        from edgedec.server.pool import ModelSource, limits_of

        bundle = Bundle.open(path)
        name, manifest = bundle.manifest.name, bundle.manifest
        own = {item: files for item, files in lora.items() if item.rpartition("/")[0] == name}

        def opened() -> tuple[edgedec.Model, Mapping[str, Adapter]]:
            model = self._open(str(path))
            self._try(model, limits_of(limits, model.spec).context)
            return model, {item: model.adapter(*files) for item, files in own.items()}

        per_token = kv_bytes_per_token(manifest.spec, self.kv or manifest.kv_formats[0])
        caches = limits_of(limits, manifest.spec).room * per_token
        memory = caches + sum(file.size for file in manifest.files.values())
        return ModelSource(name, bundle, opened, tuple(own), memory, int(path.stat().st_mtime))

    def _open(self, name: str) -> edgedec.Model:
        place = self.device, self.device_cache
        model = o.open_model(name, self.engine, self.threads, self.kv, 1.0, self.cache, *place, self.diffusion, True)
        model.fuse = self.fuse
        return model

    def _try(self, model: edgedec.Model, context: int) -> None:
        """Raise the errors of a model that cannot be used."""
        from edgedec.fusion import make_fusion

        if model.spec.output is not None:
            _ = model.encoder
            return
        session = model.session(context=context or None, speculate=self.speculate)
        _ = model.tokenizer
        make_fusion(model, self.fuse)
        longest: int | None = getattr(model.runtime, "longest", None)
        if longest is not None and longest < session.capacity:
            raise UsageError(
                f"--device-cache: holds a text of {longest} tokens, less than the context of {session.capacity}; allow "
                "more, or take a smaller --ctx-size"
            )


def bundles(folder: Path) -> Iterator[Path]:
    """The bundles in a folder, in its packed files, and of its GGUF files, which are converted now if necessary; a file
    that cannot be converted is reported and skipped."""
    from edgedec.bundle.locate import GGUF, PACKED, find
    from edgedec.bundle.manifest import MANIFEST

    for path in sorted(folder.iterdir()):
        if (path / MANIFEST).is_file():
            yield path
        elif path.suffix in (GGUF, PACKED) and path.is_file() and not _LATER_PART.search(path.stem):
            try:
                yield find(path)
            except EdgedecError as error:
                print(f"edgedec: {path.name} is not served: {error}", file=sys.stderr)


def _named_files(lora: Sequence[str]) -> dict[str, list[Path]]:
    """NAME=FILE of --lora; a name that is given several times is that of a set of adapters."""
    found: dict[str, list[Path]] = {}
    for item in lora:
        name, equals, file = item.partition("=")
        if not (name and equals and file):
            raise UsageError(f"--lora {item!r}: must be NAME=FILE, as in pirate=pirate.lora")
        found.setdefault(name, []).append(Path(file))
    return found


def three_quarters() -> int:
    """Bytes of three quarters of this machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return 8 << 30
