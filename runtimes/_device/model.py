"""A bundle's weights on a device. Quantized matrices are packed (`interleave16`); those stored by rows in the bundle
are packed when they are copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.integers import filler
from edgedec.bundle.interleave import pack, packed_zeros, zeros_by_row
from edgedec.bundle.manifest import Tensor
from edgedec.kernels.device import structs
from edgedec.kernels.device.interface import Buffer, Device


class DeviceModel:
    """DeviceWeights by their names in a bundle; copied to the device at first use."""

    def __init__(self, bundle: Bundle, device: Device) -> None:
        self.spec, self._bundle, self._device = bundle.spec, bundle, device
        self._tensors, self._kept = bundle.manifest.tensors, dict[str, Buffer]()
        self._weights = dict[str, structs.DeviceWeights]()

    def weights(self, name: str) -> structs.DeviceWeights:
        """A matrix; one without data if the model has none of this name."""
        if name not in self._tensors:
            return structs.DeviceWeights()
        if name not in self._weights:
            self._weights[name] = self._bring(name, self._tensors[name])
        return self._weights[name]

    def vector(self, name: str) -> int:
        """The address of a vector; 0 if the model has none of this name."""
        if name not in self._tensors:
            return 0
        tensor = self._tensors[name]
        return self._put(name, self._bundle.array(tensor.data, np.float32, tensor.shape))

    def floats(self, name: str) -> NDArray[np.float32]:
        """The values of a vector, for the host."""
        tensor = self._tensors[name]
        return np.asarray(self._bundle.array(tensor.data, np.float32, tensor.shape), np.float32)

    def numbers(self, name: str, values: Sequence[float]) -> int:
        """The address of numbers of the spec, under a name that no tensor has."""
        return self._put(name, np.array(values, np.float32))

    def norm(self, kind: str, name: str) -> structs.Norm:
        bias = self.vector(f"{name}_bias")
        return structs.Norm(self.vector(name), bias, structs.NORMS[kind], self.spec.norm_eps)

    def rope(self, number: int) -> tuple[int, int, int]:
        """Addresses of cos and sin [positions, pairs], and pairs."""
        pairs, places = len(self.spec.ropes[number].inv_freq), self._bundle.manifest.ropes[number]
        shape = (self.spec.positions, pairs)
        cos, sin = (
            self._put(f"rope.{number}.{i}", self._bundle.array(at, np.float32, shape)) for i, at in enumerate(places)
        )
        return cos, sin, pairs

    @property
    def nbytes(self) -> int:
        return sum(buffer.size for buffer in self._kept.values())

    def _put(self, name: str, array: NDArray[Any]) -> int:
        if name not in self._kept:
            self._kept[name] = Buffer.of(self._device, array)
        return self._kept[name].at

    def _bring(self, name: str, t: Tensor) -> structs.DeviceWeights:
        n, k = t.shape
        fmt = structs.FORMATS[t.format]
        if t.format in ("f32", "f16"):
            plain = self._bundle.array(t.data, np.float32 if t.format == "f32" else np.float16, t.shape)
            return structs.DeviceWeights(self._put(name, plain), 0, 0, fmt, n, k, 0)
        data = self._put(name, self._packed(t, t.data, np.uint32, t.blocks * t.block_bytes // 4, filler(t.format)))
        scales = self._put(f"{name}.scales", self._packed(t, t.scales, np.uint16, t.blocks, 0))
        zeros = self._put(f"{name}.zeros", self._zeros(t)) if t.zeros else 0
        return structs.DeviceWeights(data, scales, zeros, fmt, n, k, t.block)

    def _packed(self, t: Tensor, at: int, dtype: Any, words: int, fill: int) -> NDArray[Any]:
        """Words of a tensor as 16 rows side by side."""
        if t.layout == "interleave16":
            return self._bundle.array(at, dtype, (t.groups, words, structs.LANES))
        return pack(self._bundle.array(at, dtype, (t.shape[0], words)), fill)

    def _zeros(self, t: Tensor) -> NDArray[np.uint8]:
        stored = self._bundle.array(t.zeros, np.uint8, (t.zero_bytes,))
        if t.layout == "interleave16":
            return stored
        return packed_zeros(zeros_by_row(stored.reshape(t.shape[0], -1), t), replace(t, layout="interleave16"))
