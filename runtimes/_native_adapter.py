"""An adapter as the native engine reads it: the numbers and addresses of its matrices."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from edgedec.bundle.adapter import LoraAdapter
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
    "lookup": ("gate", "out", "context"),
    "mlp": ("", "down"),
    "moe": ("", ""),
    "power_law": ("qkv", "o", "gate_up", "down"),
    "ssm": ("in_proj", "out_proj"),
    "s6": ("in_proj", "out_proj", "x_proj", "dt_proj"),
    "conv": ("in_proj", "out_proj"),
    "rwkv7": ("r", "o", "k", "v", *(f"{name}_{way}" for name in _LOW for way in ("down", "up"))),
    "channel_mix": ("up", "down"),
    "delta": ("in_proj", "out_proj", "gate_up", "decay_up"),
}


class NativeAdapter:
    """The C++ view of an adapter; keeps alive what it points to."""

    def __init__(self, spec: ModelSpec, adapter: LoraAdapter) -> None:
        self._parts = (structs.LoraStruct * (structs.LORA_PARTS * spec.n_blocks))()
        self._keep, left = list[Any](), set(adapter.matrices)
        for b, block in enumerate(spec.blocks):
            names = (block.up, "down") if isinstance(block, Mlp) else _ADAPTED[block.kind]
            for i, name in enumerate(names):
                low = adapter.matrices.get(f"blocks.{b}.{name}")
                if low is None:
                    continue
                left.discard(f"blocks.{b}.{name}")
                a, up = np.ascontiguousarray(low.a, np.float32), np.ascontiguousarray(low.b, np.float32)
                self._keep += (a, up)
                self._parts[structs.LORA_PARTS * b + i] = structs.LoraStruct(len(a), 1.0, address(a), address(up))
        if left:
            raise UsageError(f"engine native adds nothing to {', '.join(sorted(left))}; use --engine reference")
        self._struct = structs.AdapterStruct(self._parts)
        self.address = ctypes.addressof(self._struct)
