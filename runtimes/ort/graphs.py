"""The graph files of a bundle for this runtime: the facts of its artifact."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.bundle import Bundle
from edgedec.errors import BundleCorrupt
from edgedec.storage.serde import from_json

ARTIFACT = "ort"


@dataclass(frozen=True)
class Graphs:
    """embed, head: empty for an encoder; blocks: a file for each block, by cache format; stack: the whole stack, by
    cache format; model: embedding, stack and head in one, for plain decoding with the cache format `model_kv`."""

    embed: str
    head: str
    blocks: dict[str, tuple[str, ...]]
    stack: dict[str, str]
    model: str | None = None
    model_kv: str = ""

    @property
    def names(self) -> set[str]:
        """Every file that is named."""
        files = {
            self.embed,
            self.head,
            *self.stack.values(),
            *(name for names in self.blocks.values() for name in names),
        }
        return (files | ({self.model} if self.model is not None else set())) - {""}


def graphs_of(bundle: Bundle) -> Graphs:
    """The graphs of the bundle's artifact; BundleCorrupt if its facts do not fit the bundle."""
    where = f"{bundle.path}: artifacts.{ARTIFACT}"
    artifact = bundle.manifest.artifacts[ARTIFACT]
    graphs = from_json(Graphs, artifact.facts, f"{where}.facts")
    missing = sorted(graphs.names - set(artifact.files))
    if missing:
        raise BundleCorrupt(f"{where}: names {missing[0]!r}, which is not among its files")
    for kv, names in graphs.blocks.items():
        if len(names) != bundle.spec.n_blocks or kv not in graphs.stack:
            raise BundleCorrupt(f"{where}: the graphs of KV {kv} are not those of {bundle.spec.n_blocks} blocks")
    return graphs
