"""Compiled contexts of a bundle for a SoC: the facts of its artifact `qnn:SM8650`.

`edgedec add qnn:SM8650 BUNDLE` compiles every part at every bucket. The buckets of a part share one binary with each
weight once. The simulator cannot open such a binary, so it compiles graphs when they are opened.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from edgedec.bundle import Bundle
from edgedec.errors import BundleCorrupt
from edgedec.runtime import DeviceName
from edgedec.runtimes.ort.device_shapes import CallShape
from edgedec.storage.serde import from_json


@dataclass(frozen=True)
class ShippedContexts:
    """models: files that name a compiled graph, by what they are (`key`); binaries: those they name."""

    models: dict[str, str]
    binaries: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        """Every file that is named."""
        return {*self.models.values(), *self.binaries}


def key(graph: str, shape: CallShape) -> str:
    """The key of a compiled graph: its source file and its bucket."""
    return f"{graph}:{shape.rows}:{shape.past}"


def shipped_contexts(bundle: Bundle, device: DeviceName) -> dict[str, str]:
    """The compiled graphs for a device by `key`; none on a simulator, and none if the bundle brings none."""
    if str(device) not in bundle.manifest.artifacts or platform.machine().lower() not in ("aarch64", "arm64"):
        return {}
    return contexts_of(bundle, str(device)).models


def contexts_of(bundle: Bundle, name: str) -> ShippedContexts:
    """The facts of the bundle's artifact of this name; BundleCorrupt if they do not fit the bundle."""
    where = f"{bundle.path}: artifacts.{name}"
    artifact = bundle.manifest.artifacts[name]
    found = from_json(ShippedContexts, artifact.facts, f"{where}.facts")
    missing = sorted(found.names - set(artifact.files))
    if missing:
        raise BundleCorrupt(f"{where}: names {missing[0]!r}, which is not among its files")
    return found
