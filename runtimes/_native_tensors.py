"""The tensors of a bundle as the native engine reads them: addresses in the weights file."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import Tensor
from edgedec.kernels.cpu import codes, structs
from edgedec.runtimes._native_cache import address


def beside(t: Tensor) -> int:
    """What lies beside the weights and scales of a matrix, or that its scales are of rows: `Matrix::offsets`."""
    return 2 if t.parts else 3 if t.row_scales else int(t.offsets > 0)


class NativeTensors:
    """Where each tensor lies; keeps alive what it points to."""

    def __init__(self, bundle: Bundle) -> None:
        self._tensors, self._weights, self._keep = bundle.manifest.tensors, bundle.weights, list[Any]()
        self._base = address(self._weights)

    def _matrices(self, prefix: str, names: str) -> dict[str, structs.TensorStruct]:
        return {name: self._tensor(prefix + name) for name in names.split()}

    def _vectors(self, prefix: str, names: str) -> dict[str, int | None]:
        return {name: self._vector(prefix + name) for name in names.split()}

    def _numbers(self, values: tuple[float, ...]) -> int | None:
        """The address of facts as f32; None of none."""
        if not values:
            return None
        self._keep.append(array := np.array(values, np.float32))
        return address(array)

    def _integers(self, values: tuple[int, ...]) -> int | None:
        """As `_numbers`, of integers as int32."""
        if not values:
            return None
        self._keep.append(array := np.array(values, np.int32))
        return address(array)

    def _norm(self, kind: str, name: str) -> structs.NormStruct:
        return structs.NormStruct(codes.NORMS[kind], 0, self._vector(name), self._vector(f"{name}_bias"))

    def _tensor(self, name: str) -> structs.TensorStruct:
        """No format if the model has no such one."""
        if name not in self._tensors:
            return structs.TensorStruct()
        t = self._tensors[name]
        scales = self._base + t.scales if t.block else 0
        others = t.zeros or t.offsets or t.parts
        zeros = self._base + others if others else 0
        (n, k), what = t.shape, beside(t)
        return structs.TensorStruct(
            codes.FORMATS[t.format], codes.LAYOUTS[t.layout], n, k, t.block, what, self._base + t.data, scales, zeros
        )

    def _list(self, names: Sequence[str]) -> int | None:
        """The address of these tensors one after another; None of none."""
        if not names:
            return None
        self._keep.append(made := (structs.TensorStruct * len(names))(*map(self._tensor, names)))
        return ctypes.addressof(made)

    def _vector(self, name: str) -> int | None:
        """Vectors are always f32; None if the model has no such one."""
        return self._base + self._tensors[name].data if name in self._tensors else None
