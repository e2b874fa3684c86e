"""The graph files of a bundle for devices: the facts of its artifact."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from edgedec.bundle import Bundle
from edgedec.errors import BundleCorrupt
from edgedec.storage.serde import from_json

ARTIFACT = "devices"
# Cache formats that there are graphs for.
FORMATS = ("f32", "f16", "int8")


@dataclass(frozen=True)
class DeviceGraphs:
    """blocks: a file for each block, by cache format; parts: files that are the whole stack one after another, by
    cache format; starts: the first block of each part."""

    head: str
    blocks: dict[str, tuple[str, ...]]
    parts: dict[str, tuple[str, ...]]
    starts: tuple[int, ...]

    @property
    def names(self) -> set[str]:
        """Every file that is named."""
        return {self.head, *itertools.chain(*self.blocks.values()), *itertools.chain(*self.parts.values())}


def device_graphs_of(bundle: Bundle) -> DeviceGraphs:
    """The graphs of the bundle's artifact; BundleCorrupt if its facts do not fit the bundle."""
    where, n = f"{bundle.path}: artifacts.{ARTIFACT}", bundle.spec.n_blocks
    artifact = bundle.manifest.artifacts[ARTIFACT]
    graphs = from_json(DeviceGraphs, artifact.facts, f"{where}.facts")
    missing = sorted(graphs.names - set(artifact.files))
    if missing:
        raise BundleCorrupt(f"{where}: names {missing[0]!r}, which is not among its files")
    rising = all(a < b for a, b in itertools.pairwise((*graphs.starts, n)))
    if not graphs.starts or graphs.starts[0] or not rising or graphs.parts.keys() != graphs.blocks.keys():
        raise BundleCorrupt(f"{where}: its parts are not those of {n} blocks")
    for kv, names in graphs.blocks.items():
        if kv not in FORMATS or len(names) != n or len(graphs.parts[kv]) != len(graphs.starts):
            raise BundleCorrupt(f"{where}: the graphs of KV {kv} are not those of {n} blocks")
    return graphs
