"""The OpenCL library of the system by ctypes: its functions, facts of devices, errors."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

from edgedec.kernels.device.interface import DeviceError

LIBRARY = "EDGEDEC_OPENCL_LIBRARY"  # another library than the system's
_NAMES = {
    "win32": ("OpenCL.dll",),
    "darwin": ("/System/Library/Frameworks/OpenCL.framework/OpenCL",),
}
_LINUX = ("libOpenCL.so.1", "libOpenCL.so", "/vendor/lib64/libOpenCL.so", "/system/vendor/lib64/libOpenCL.so")
_GPU, _ALL = 1 << 2, 0xFFFFFFFF
_NO_DEVICE, _NO_PLATFORM = -1, -1001
# Names of common error codes; others are shown as numbers.
_ERRORS = {
    -4: "out of device memory", -5: "out of resources", -6: "out of host memory", -11: "the program does not compile",
    -38: "not a buffer", -46: "no such kernel", -50: "a kernel's argument is wrong", -54: "the work-group is too large",
    -61: "more bytes than one piece of its memory may have", -68: "more bytes than it allows",
}  # fmt: skip
_PROFILE, _NAME, _VERSION, _DRIVER, _EXTENSIONS = 0x102E, 0x102B, 0x102F, 0x102D, 0x1030
_TYPE, _FLOATS, _SVM, _MOST, _LOCAL, _THREADS = 0x1000, 0x101B, 0x1053, 0x1010, 0x1023, 0x1004
_IMAGES, _TEXELS, _ALIGN_BITS = 0x1016, 0x1040, 0x1019
_COARSE, _ROUNDED_DIVISION = 1, 1 << 7


@dataclass(frozen=True)
class DeviceFacts:
    """A driver's facts of a device. most: bytes of one piece of memory; exact_division: rounds as IEEE 754 says;
    texels: of an image made from a buffer, at most (0: none); aligned: where parts of a buffer may begin, in bytes."""

    handle: int
    platform: str
    name: str
    version: str
    driver: str
    extensions: frozenset[str]
    gpu: bool
    full: bool
    shared_memory: bool
    exact_division: bool
    most: int
    local: int
    threads: int
    texels: int
    aligned: int

    def lacks(self) -> str | None:
        """The requirements of this engine that the device lacks, in one line."""
        if not self.full:
            return f"{self.name}: has the embedded profile of OpenCL only"
        return None


@cache
def library() -> ctypes.CDLL:
    """The library; DeviceError if there is none."""
    own = os.environ.get(LIBRARY)
    names = (own,) if own else _NAMES.get(sys.platform, _LINUX)
    for name in names:
        try:
            return _declared(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
    raise DeviceError(f"no OpenCL library ({', '.join(names)})")


def _declared(lib: ctypes.CDLL) -> ctypes.CDLL:
    p, n, u, flags = c_void_p, c_size_t, c_uint32, c_uint64
    pointers: dict[str, list[Any]] = {
        "clCreateContext": [p, u, p, p, p, p],
        "clCreateCommandQueue": [p, p, flags, p],
        "clCreateProgramWithSource": [p, u, p, p, p],
        "clCreateProgramWithBinary": [p, u, p, p, p, p, p],
        "clCreateKernel": [p, c_char_p, p],
        "clCreateBuffer": [p, flags, n, p, p],
        "clCreateSubBuffer": [p, flags, u, p, p],
        "clCreateImage": [p, flags, p, p, p, p],
    }
    codes: dict[str, list[Any]] = {
        "clGetPlatformIDs": [u, p, p],
        "clGetPlatformInfo": [p, u, n, p, p],
        "clGetDeviceIDs": [p, flags, u, p, p],
        "clGetDeviceInfo": [p, u, n, p, p],
        "clBuildProgram": [p, u, p, c_char_p, p, p],
        "clGetProgramBuildInfo": [p, p, u, n, p, p],
        "clGetProgramInfo": [p, u, n, p, p],
        "clGetKernelWorkGroupInfo": [p, p, u, n, p, p],
        "clSetKernelArg": [p, u, n, p],
        "clEnqueueNDRangeKernel": [p, p, u, p, p, p, u, p, p],
        "clEnqueueReadBuffer": [p, p, u, n, n, p, u, p, p],
        "clEnqueueWriteBuffer": [p, p, u, n, n, p, u, p, p],
        "clEnqueueCopyBuffer": [p, p, p, n, n, n, u, p, p],
        "clReleaseMemObject": [p],
        "clReleaseKernel": [p],
        "clFinish": [p],
    }
    for name, arguments in pointers.items():
        getattr(lib, name).argtypes, getattr(lib, name).restype = arguments, p
    for name, arguments in codes.items():
        getattr(lib, name).argtypes, getattr(lib, name).restype = arguments, c_int32
    return _declare_shared(lib) if hasattr(lib, "clSVMAlloc") else lib


def _declare_shared(lib: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the functions that an OpenCL 1.2 library lacks."""
    p, n, u = c_void_p, c_size_t, c_uint32
    lib.clSVMAlloc.argtypes, lib.clSVMAlloc.restype = [p, c_uint64, n, u], p
    lib.clSVMFree.argtypes, lib.clSVMFree.restype = [p, p], None
    lib.clSetKernelExecInfo.argtypes, lib.clSetKernelExecInfo.restype = [p, u, n, p], c_int32
    lib.clEnqueueSVMMemcpy.argtypes, lib.clEnqueueSVMMemcpy.restype = [p, u, p, p, n, u, p, p], c_int32
    return lib


def check(code: int, what: str) -> None:
    """Raise DeviceError (MemoryError for a lack of memory) unless the code is success."""
    if not code:
        return
    if code in (-4, -6, -61):
        raise MemoryError(f"OpenCL: {what}: {error_name(code)}")
    raise DeviceError(f"OpenCL: {what}: {error_name(code)}")


def error_name(code: int) -> str:
    """An error's name, or its number."""
    return _ERRORS.get(code, f"OpenCL error {code}")


def devices() -> list[DeviceFacts]:
    """All devices of all platforms."""
    lib, count = library(), c_uint32()
    code = lib.clGetPlatformIDs(0, None, byref(count))
    if code == _NO_PLATFORM or not count.value:
        return []
    check(code, "listing platforms")
    platforms = (c_void_p * count.value)()
    check(lib.clGetPlatformIDs(count, platforms, None), "listing platforms")
    return [facts for platform in platforms for facts in _of_platform(platform or 0)]


def _of_platform(platform: int) -> Iterator[DeviceFacts]:
    lib, count = library(), c_uint32()
    code = lib.clGetDeviceIDs(platform, _ALL, 0, None, byref(count))
    if code == _NO_DEVICE:
        return
    check(code, "listing devices")
    handles = (c_void_p * count.value)()
    check(lib.clGetDeviceIDs(platform, _ALL, count, handles, None), "listing devices")
    name = _said(lib.clGetPlatformInfo, platform, 0x0902)
    yield from (_facts(name, handle or 0) for handle in handles)


def _facts(platform: str, handle: int) -> DeviceFacts:
    ask, number = library().clGetDeviceInfo, _number
    return DeviceFacts(
        handle,
        platform,
        _said(ask, handle, _NAME),
        _said(ask, handle, _VERSION),
        _said(ask, handle, _DRIVER),
        frozenset(_said(ask, handle, _EXTENSIONS).split()),
        gpu=bool(number(handle, _TYPE) & _GPU),
        full=_said(ask, handle, _PROFILE) == "FULL_PROFILE",
        shared_memory=hasattr(library(), "clSVMAlloc") and bool(number(handle, _SVM) & _COARSE),
        exact_division=bool(number(handle, _FLOATS) & _ROUNDED_DIVISION),
        most=number(handle, _MOST),
        local=number(handle, _LOCAL),
        threads=number(handle, _THREADS),
        texels=number(handle, _TEXELS) if number(handle, _IMAGES) else 0,
        aligned=number(handle, _ALIGN_BITS) // 8,
    )


def _said(ask: Any, of: int, what: int) -> str:
    size = c_size_t()
    if ask(of, what, 0, None, byref(size)):
        return ""
    text = ctypes.create_string_buffer(max(size.value, 1))
    check(ask(of, what, size, text, None), "asking a device")
    return text.value.decode(errors="replace").strip()


def _number(handle: int, what: int) -> int:
    """A numeric fact of a device; 0 if the driver does not support it."""
    value = c_uint64()
    return 0 if library().clGetDeviceInfo(handle, what, c_size_t(8), byref(value), None) else value.value


def build_log(program: int, device: int) -> str:
    """The log of the driver's compiler."""
    size = c_size_t()
    library().clGetProgramBuildInfo(program, device, 0x1183, 0, None, byref(size))
    text = ctypes.create_string_buffer(max(size.value, 1))
    library().clGetProgramBuildInfo(program, device, 0x1183, size, text, None)
    return text.value.decode(errors="replace").strip()
