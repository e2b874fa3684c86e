"""An adapter, or a set of adapters, as the native engine reads it: the numbers and addresses of its matrices."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.adapter import LoraAdapter, LowRank
from edgedec.bundle.routed import Route, RoutedAdapters
from edgedec.errors import UsageError
from edgedec.kernels.cpu import structs
from edgedec.runtimes._native_cache import address
from edgedec.spec import Mlp, ModelSpec

# Of RWKV-7, made by way of few values.
_LOW = ("decay", "rate", "gate", "value")
# The matrices of a block, by kind, that an adapter may change: the first and the last of its one or two parts, and
# of a kind with more those between them.
_ADAPTED = {
    "attention": ("qkv", "o"),
    "latent": ("", ""),
    "shared_attention": ("q", "o"),
    "gmu": ("gate", "out"),
    "lookup": ("gate", "out", "context"),
    "laurel": ("left", "right"),
    "altup": (),
    "mlp": ("", "down"),
    "moe": ("", ""),
    "pre_router": ("", ""),
    "power_law": ("qkv", "o", "gate_up", "down"),
    "ssm": ("in_proj", "out_proj"),
    "s6": ("in_proj", "out_proj", "x_proj", "dt_proj"),
    "conv": ("in_proj", "out_proj"),
    "rwkv7": ("r", "o", "k", "v", *(f"{name}_{way}" for name in _LOW for way in ("down", "up"))),
    "channel_mix": ("up", "down"),
    "delta": ("in_proj", "out_proj", "gate_up", "decay_up"),
}


class NativeAdapter:
    """The C++ view of an adapter or of a set of adapters; keeps alive what it points to."""

    def __init__(self, spec: ModelSpec, adapter: LoraAdapter | RoutedAdapters) -> None:
        self._parts = (structs.LoraStruct * (structs.LORA_PARTS * spec.n_blocks))()
        self._keep, left = list[Any](), set(adapter.matrices)
        for b, block in enumerate(spec.blocks):
            names = (block.up, "down") if isinstance(block, Mlp) else _ADAPTED[block.kind]
            for i, name in enumerate(names):
                found = adapter.matrices.get(f"blocks.{b}.{name}")
                if found is not None:
                    left.discard(f"blocks.{b}.{name}")
                    made = self._low_rank(found) if isinstance(found, LowRank) else self._routed(found)
                    self._parts[structs.LORA_PARTS * b + i] = made
        if left:
            raise UsageError(f"engine native adds nothing to {', '.join(sorted(left))}; use --engine reference")
        self._struct = structs.AdapterStruct(self._parts)
        self.address = ctypes.addressof(self._struct)

    def _low_rank(self, low: LowRank) -> structs.LoraStruct:
        return structs.LoraStruct(len(low.a), 1.0, self._array(low.a, np.float32), self._array(low.b, np.float32), 0)

    def _routed(self, routes: Sequence[Route]) -> structs.LoraStruct:
        """The parts of a matrix of a set of adapters."""
        pairs = [self._low_rank(low) for route in routes for low in route.low]
        loras = (structs.LoraStruct * len(pairs))(*pairs)
        route = structs.RouteStruct(
            len(routes),
            len(routes[0].low),
            self._array(np.concatenate([route.gates for route in routes]), np.float32),
            self._array(np.array([route.first for route in routes]), np.int32),
            self._array(np.array([route.count for route in routes]), np.int32),
            ctypes.addressof(loras),
        )
        self._keep += (loras, route)
        return structs.LoraStruct(0, 1.0, 0, 0, ctypes.addressof(route))

    def _array(self, values: NDArray[Any], dtype: Any) -> int:
        """The address of a copy, or of the array itself."""
        self._keep.append(np.ascontiguousarray(values, dtype))
        return address(self._keep[-1])
