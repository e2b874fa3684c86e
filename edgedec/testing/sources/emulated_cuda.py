"""CUDA's kernels on the CPU, by the emulation of the CUDA engine's tests (`kernels/cuda/emulate.h`): each thread of a
group is a fiber. Results only."""

from __future__ import annotations

import ctypes
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.cuda import build
from edgedec.kernels.cuda.sources import CudaBuildFailed, cache_folder
from edgedec.runtimes.tvm.plans import KernelFacts, LaunchPlan
from edgedec.testing.sources.machine import MachineMissing

_TYPES = {"float32": "float", "int32": "int", "uint32": "unsigned"}
_HEAD = """
#include "emulate.h"
#include <cmath>
#define __global__ static
#define __shared__ static thread_local
#define alignas(n)
#define __launch_bounds__(n)
#define __restrict__
#define __syncthreads() emulated::wait_for_block(__LINE__)
namespace {
struct Block { int x, y; };
struct Index { int x; };
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int __dp4a(int a, int b, int c) { return dp4a((uint32_t)a, (uint32_t)b, c); }
inline int __float_as_int(float x) { return (int)as_bits(x); }
inline float __int_as_float(int x) { return as_float((uint32_t)x); }
}
#define blockIdx (Block{BLOCK_X, BLOCK_Y})
#define threadIdx (Index{THREAD})
"""


def open(source: str, plan: LaunchPlan) -> EmulatedCuda:  # noqa: A001
    """The kernels compiled for this processor, once."""
    text = _HEAD + source.replace('extern "C" ', "") + "".join(_export(name, k) for name, k in plan.kernels.items())
    out = cache_folder() / f"cuda-sources-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    try:
        if not out.is_file():
            out.parent.mkdir(parents=True, exist_ok=True)
            path = out.with_suffix(f".{os.getpid()}.cpp")
            path.write_text(text, "utf-8")
            try:
                build.compile_emulation(out, sources=(path,))
            finally:
                path.unlink()
    except CudaBuildFailed as error:
        raise MachineMissing(f"--language cuda: cannot be emulated here: {error}") from None
    return EmulatedCuda(out, plan)


def _export(name: str, kernel: KernelFacts) -> str:
    """What makes a kernel known to the emulation."""
    fields = "".join(f"{_TYPES[t]}* a{i};" for i, t in enumerate(kernel.arrays))
    given = ", ".join(f"a.a{i}" for i in range(len(kernel.arrays)))
    run = f"KERNEL(run_{name}, Args_{name}, {kernel.threads}) {{ {name}({given}); }}"
    return f"struct Args_{name} {{ {fields} }};\n{run}\n"


class EmulatedCuda:
    """The emulation as a machine."""

    name = "emulated CUDA"

    def __init__(self, library: Path, plan: LaunchPlan, reverse: bool = False) -> None:
        from edgedec.kernels.cuda.emulated import Emulated

        self._device, self._plan, self._library = Emulated(reverse, library), plan, library
        self._arrays: dict[str, NDArray[np.uint8]] = {}

    def reversed(self) -> EmulatedCuda:
        """The same with the threads of a group in the opposite order, which shows a missing barrier."""
        return EmulatedCuda(self._library, self._plan, reverse=True)

    def allocate(self, name: str, size: int) -> None:
        self._arrays[name] = np.zeros(size, np.uint8)

    def write(self, name: str, array: NDArray[Any]) -> None:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._arrays[name][: raw.size] = raw

    def read(self, name: str, array: NDArray[Any]) -> None:
        array.reshape(-1).view(np.uint8)[:] = self._arrays[name][: array.nbytes]

    def launch(self, kernel: str, groups: tuple[int, int], arrays: tuple[str, ...]) -> None:
        given = (ctypes.c_void_p * len(arrays))(*(self._arrays[name].ctypes.data for name in arrays))
        threads = self._plan.kernels[kernel].threads
        self._device.launch(f"run_{kernel}", (*groups, 1), threads, 0, bytes(given))
