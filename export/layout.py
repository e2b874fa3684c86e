"""A bundle's facts and the layout of its weights file, before there is a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgedec.bundle.manifest import KVScales, Manifest, Tensor
from edgedec.spec import ModelSpec

if TYPE_CHECKING:
    from edgedec.export.graph import Graph


@dataclass(frozen=True)
class Layout:
    """The part of a manifest that graphs need; `prefix` begins the names of their files."""

    spec: ModelSpec
    weights: str
    tensors: dict[str, Tensor]
    ropes: tuple[tuple[int, ...], ...]
    kv_scales: KVScales
    prefix: str = ""

    @classmethod
    def of(cls, manifest: Manifest) -> Layout:
        """The layout of an existing bundle."""
        return cls(manifest.spec, manifest.weights, manifest.tensors, manifest.ropes, manifest.kv_scales)

    def graph(self, name: str) -> Graph:
        """An empty ONNX graph over the weights file; only this needs the package onnx."""
        from edgedec.export.graph import Graph

        return Graph(self.prefix + name, self.weights, self.tensors)
