"""LoRA adapters on a device: y += b (a x) after a product, computed by the products of float weights. Used in steps in
which all rows have the same adapter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from edgedec.bundle.adapter import LoraAdapter
from edgedec.bundle.routed import RoutedAdapters
from edgedec.errors import UsageError
from edgedec.kernels.device import structs
from edgedec.kernels.device.interface import Buffer, Device
from edgedec.kernels.device.structs import DeviceWeights
from edgedec.spec import Mlp, ModelSpec

# The matrices of a block that an adapter may change here, by kind; of an mlp, those of its own names.
_PROJECTIONS = ("in_proj", "out_proj")
_ADAPTED: dict[str, tuple[str, ...]] = {
    "attention": ("qkv", "o"),
    "conv": _PROJECTIONS,
    "delta": (*_PROJECTIONS, "gate_up", "decay_up"),
    "ssm": _PROJECTIONS,
}


class DeviceAdapter:
    """The low-rank weights of an adapter on a device. `number`: its number among the adapters copied there."""

    def __init__(self, device: Device, spec: ModelSpec, adapter: LoraAdapter, number: int) -> None:
        left = sorted(set(adapter.matrices) - set(_matrices(spec)))
        if left:
            raise UsageError(f"engines of GPUs add nothing to {', '.join(left)}; use --engine reference")
        self.number, self._kept = number, list[Buffer]()
        self._parts = {
            name: (self._bring(device, low.a), self._bring(device, low.b))
            for name, low in adapter.matrices.items()
            if len(low.a)
        }

    def part(self, name: str) -> tuple[DeviceWeights, DeviceWeights] | None:
        """The pair a, b for a matrix; None if the adapter does not change it."""
        return self._parts.get(name)

    @property
    def rank(self) -> int:
        return max((a.n for a, _ in self._parts.values()), default=1)

    def _bring(self, device: Device, matrix: Any) -> DeviceWeights:
        n, k = matrix.shape
        self._kept.append(Buffer.of(device, np.ascontiguousarray(matrix, np.float32)))
        return DeviceWeights(self._kept[-1].at, 0, 0, structs.FORMATS["f32"], n, k, 0)


class DeviceAdapters:
    """The adapters used by calls. Each is copied to the device once and kept while other code holds it."""

    def __init__(self, device: Device, spec: ModelSpec) -> None:
        self._device, self._spec, self._count = device, spec, 0
        self._known: WeakKeyDictionary[Any, DeviceAdapter] = WeakKeyDictionary()

    def of(self, adapter: Any) -> DeviceAdapter | None:
        """The adapter on the device; None if the call has none."""
        if adapter is None:
            return None
        if isinstance(adapter, RoutedAdapters):
            raise UsageError("engines of GPUs use one adapter for a text, not a set; use --engine native")
        found = self._known.get(adapter)
        if found is None:
            self._count += 1
            found = self._known[adapter] = DeviceAdapter(self._device, self._spec, adapter, self._count)
        return found


def _matrices(spec: ModelSpec) -> Iterable[str]:
    for b, block in enumerate(spec.blocks):
        names = (block.up, "down") if isinstance(block, Mlp) else _ADAPTED.get(block.kind, ())
        yield from (f"blocks.{b}.{name}" for name in names)
