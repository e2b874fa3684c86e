"""Weights read through images: a matrix as a row of texels. No second copy: OpenCL 1.2 makes such an image from a
buffer.

On GPUs with a separate texture cache (Adreno) this is a second path to memory, besides that of activations and pages.
Texels are integers, so kernels read the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from ctypes import Structure, byref, c_int32, c_size_t, c_uint32, c_void_p
from struct import Struct
from types import MappingProxyType
from typing import NamedTuple

from edgedec.kernels.opencl.library import DeviceFacts, error_name, library
from edgedec.kernels.opencl.memory import DeviceMemory

_ONE_LINE_OF_BUFFER, _READ_ONLY = 0x10F6, 4
_R, _RGBA, _UINT16, _UINT32 = 0x10B0, 0x10B5, 0x10DB, 0x10DC


class _Format(Structure):
    """cl_image_format."""

    _fields_ = (("order", c_uint32), ("type", c_uint32))

    @property
    def texel(self) -> int:
        """Bytes of a texel."""
        return (4 if self.order == _RGBA else 1) * (4 if self.type == _UINT32 else 2)


class _Shape(Structure):
    """cl_image_desc."""

    _fields_ = (
        ("type", c_uint32), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("array", c_size_t),
        ("row_pitch", c_size_t), ("slice_pitch", c_size_t), ("levels", c_uint32), ("samples", c_uint32),
        ("buffer", c_void_p),
    )  # fmt: skip


class _Reader(NamedTuple):
    """A kernel that reads weights through an image, and its texels."""

    kernel: str
    texels: _Format


def _readers() -> dict[str, _Reader]:
    """By the kernels that read the same weights by their addresses (products.cl). A thread reads 16 bytes of packed
    weights at a time, and one f16."""
    packed = [f"product_{name}_{rows}" for name in ("int8", "int4", "int3", "int2") for rows in (1, 2, 4, 8)]
    texels = {**dict.fromkeys(packed, _Format(_RGBA, _UINT32)), "product_f16": _Format(_R, _UINT16)}
    return {kernel: _Reader(f"{kernel}_image", of) for kernel, of in texels.items()}


READERS: Mapping[str, _Reader] = MappingProxyType(_readers())
# In the arguments of products: `data` of their weights.
_DATA = Struct("@8xP")


class WeightImages:
    """Images of a device's matrices, made when they are first read."""

    def __init__(self, context: int, facts: DeviceFacts, memory: DeviceMemory) -> None:
        self._lib, self._context, self._facts, self._memory = library(), context, facts, memory
        self._made = dict[int, tuple[int, int]]()  # by address: the image (0: none), the buffer that it is of
        self._found = Counter[str]()  # of all matrices so far why there is no image; "": there is

    def __del__(self) -> None:
        for address in list(getattr(self, "_made", ())):
            self.forget(address)

    def reader(self, kernel: str, arguments: bytes) -> tuple[str, tuple[int, ...]]:
        """The kernel that reads a launch's weights through an image, and its further arguments: the image and the
        buffer that it is of; the launch's own and nothing where there is no image."""
        if kernel not in READERS:
            return kernel, ()
        (address,) = _DATA.unpack_from(arguments)
        if address not in self._made:
            self._made[address] = self._image(address, READERS[kernel].texels)
        made = self._made[address]
        return (READERS[kernel].kernel, made) if made[0] else (kernel, ())

    def forget(self, address: int) -> None:
        """Drop the image of a freed address."""
        for handle in self._made.pop(address, ()):
            if handle:
                self._lib.clReleaseMemObject(handle)

    def summary(self) -> str:
        """How many matrices were read through images, and why others were not."""
        missing = [f"{n}: {why}" for why, n in self._found.items() if why]
        return "; ".join([f"{self._found['']} of {self._found.total()} matrices read through images", *missing])

    def _image(self, address: int, texels: _Format) -> tuple[int, int]:
        """The image and its buffer; zeros are counted with the reason."""
        buffer, size = self._memory.part(address)
        width, code, image, why = size // texels.texel, c_int32(), None, ""
        if not buffer:
            why = "no buffer can be made of its memory"
        elif width > self._facts.texels:
            why = f"an image holds {self._facts.texels * texels.texel >> 10} KiB at most"
        else:
            shape = _Shape(type=_ONE_LINE_OF_BUFFER, width=width, buffer=buffer)
            image = self._lib.clCreateImage(self._context, _READ_ONLY, byref(texels), byref(shape), None, byref(code))
            why = "" if image else f"the driver makes no image of it: {error_name(code.value)}"
        self._found[why] += 1
        return image or 0, buffer
