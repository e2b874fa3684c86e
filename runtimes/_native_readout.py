"""Some rows of a bundle's head as the native engine reads them (`edgedec.runtime.Readout`)."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.interleave import pack, packed_zeros, pick, zeros_by_row
from edgedec.bundle.manifest import LANES, Tensor
from edgedec.kernels.cpu import codes, structs
from edgedec.runtime import Outputs, Readout, check_readout
from edgedec.runtimes._native_cache import address
from edgedec.runtimes._native_tensors import beside


class NativeReadouts:
    """The readouts of a bundle that are in use."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._known: WeakKeyDictionary[Readout, NativeReadout] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def address(self, wanted: Outputs, keep: list[Any]) -> int:
        """The address of a call's readout; `keep` keeps it alive."""
        readout = check_readout(wanted, self._bundle.spec)
        found = self._known.get(readout)
        if found is None:
            found = self._known[readout] = NativeReadout(self._bundle, readout)
        keep.append(found)
        return found.address


class NativeReadout:
    """The C++ view of a readout; owns a copy of its rows, in the format and layout of the head."""

    def __init__(self, bundle: Bundle, readout: Readout) -> None:
        tensor = bundle.manifest.tensors["embed" if bundle.spec.tied else "head"]
        rows = readout.ids.astype(np.int64)
        self._ids = np.ascontiguousarray(readout.ids, np.int32)
        self._data, self._scales, self._zeros = _copied(bundle, tensor, rows)
        head = structs.TensorStruct(
            codes.FORMATS[tensor.format],
            codes.LAYOUTS[tensor.layout],
            len(rows),
            tensor.shape[1],
            tensor.block,
            beside(tensor),
            _place(self._data),
            _place(self._scales),
            _place(self._zeros),
        )
        self._struct = structs.ReadoutStruct(head, address(self._ids))
        self.address = ctypes.addressof(self._struct)


def _copied(
    bundle: Bundle, t: Tensor, rows: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
    """The data, scales and zero points, or offsets, of some rows of a matrix."""
    if t.format in ("f32", "f16"):
        dtype = np.float32 if t.format == "f32" else np.float16
        return _aligned(bundle.array(t.data, dtype, t.shape)[rows]), None, None
    data = _taken(bundle, t, rows, t.data, np.uint32, t.blocks * t.block_bytes // 4, 0)
    scales = _taken(bundle, t, rows, t.scales, np.float16, t.blocks, 0)
    if t.offsets:
        return data, scales, _taken(bundle, t, rows, t.offsets, np.float16, t.blocks, 0)
    if not t.zeros:
        return data, scales, None
    zeros = zeros_by_row(bundle.array(t.zeros, np.uint8, (t.zero_bytes,)), t)[rows]
    return data, scales, _aligned(packed_zeros(zeros, replace(t, shape=(len(rows), t.shape[1]))))


def _taken(
    bundle: Bundle, t: Tensor, rows: NDArray[np.int64], offset: int, dtype: Any, width: int, fill: int
) -> NDArray[Any]:
    """The selected rows in the head's layout: by rows, or packed by 16."""
    if t.layout == "rows":
        return _aligned(bundle.array(offset, dtype, (t.shape[0], width))[rows])
    return _aligned(pack(pick(bundle.array(offset, dtype, (t.groups, width, LANES)), rows), fill))


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that begins on a cache line, as the weights in a bundle do."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -address(room) % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _place(array: NDArray[Any] | None) -> int:
    return 0 if array is None else address(array)
