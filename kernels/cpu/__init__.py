"""The native CPU engine: C++ kernels (`kernels.h`), the stack of layers over them (`engine.h`), and
this door to them. It knows addresses and numbers only; `edgedec.runtimes.native` makes them of a bundle."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_uint64, c_void_p
from functools import cache
from typing import Any

from edgedec.kernels.cpu.loader import library as _library

FORMATS = {"f32": 1, "f16": 2, "int8": 3, "int4": 4}
LAYOUTS = {"rows": 0, "lanes16": 1}
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
QK_NORMS = {"none": 0, "head": 1, "full": 2}
# What `ed_run` says of a call that it refuses.
ERRORS = {
    -1: "not enough memory",
    1: "a number of rows that cannot be",
    2: "a token outside the vocabulary",
    3: "a position outside the model's context",
    4: "a block that the model does not have",
    5: "sequences that do not cover the rows",
    6: "rows that do not fit the cache",
    7: "a parent that does not come before its row",
    8: "a cache of no known format",
}


def _fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Fields in order, from (type, names) groups."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class _Struct(ctypes.Structure):
    """Checked against `api.h` by a test: same names, same order."""


class Tensor(_Struct):
    _fields_ = _fields((c_int32, "format layout n k block reserved"), (c_void_p, "data scales"))


class Layer(_Struct):
    MATRICES = "qkv o gate_up down"
    VECTORS = "attn_norm mlp_norm attn_post_norm mlp_post_norm q_norm k_norm qkv_bias o_bias gate_up_bias down_bias"
    _fields_ = _fields((Tensor, MATRICES), (c_void_p, VECTORS), (c_int32, "rope window"))


class Rope(_Struct):
    _fields_ = _fields((c_void_p, "cos sin"), (c_int32, "pairs positions"))


class Model(_Struct):
    _fields_ = _fields(
        (c_int32, "vocab hidden intermediate heads kv_heads head_dim n_layers n_ropes qk_norm activation"),
        (c_float, "norm_eps attn_scale attn_softcap final_softcap embed_scale"),
        (c_int32, "sinks"),
        (Tensor, "embed head"),
        (c_void_p, "final_norm"),
        (POINTER(Layer), "layers"),
        (POINTER(Rope), "ropes"),
    )


class Sequence(_Struct):
    _fields_ = _fields(
        (c_int32, "row rows length first allocated kv shared shared_allocated"),
        (c_void_p, "cache shared_cache parents mass"),
    )


class Call(_Struct):
    _fields_ = _fields(
        (c_int32, "rows n_sequences n_blocks head_from"),
        (c_void_p, "tokens hidden positions"),
        (POINTER(Sequence), "sequences"),
        (c_void_p, "blocks logits"),
        (c_int32, "top reserved"),
        (c_void_p, "top_ids top_logits"),
    )


class Engine:
    """A model opened on a team of threads. `keep`: what owns the memory that `model` points to."""

    def __init__(self, model: Model, threads: int, isa: str | None, keep: Any) -> None:
        self._lib, self._model, self._keep, self._pid = library(), model, keep, os.getpid()
        self._engine = self._lib.ed_open(ctypes.byref(model), threads, isa.encode() if isa else None)
        if not self._engine:
            raise OSError(f"instruction set {isa}: not for this CPU" if isa else "not enough memory")

    @property
    def isa(self) -> str:
        name: bytes = self._lib.ed_engine_isa(self._engine)
        return name.decode()

    def run(self, call: Call) -> None:
        """ValueError if the engine refuses the call. The GIL is free meanwhile."""
        wrong = self._lib.ed_run(self._engine, ctypes.byref(call))
        if wrong:
            raise MemoryError(ERRORS[wrong]) if wrong < 0 else ValueError(ERRORS[wrong])

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # A forked process has the memory and none of the threads: waiting for their end would have none.
        if getattr(self, "_engine", None) and getpid() == self._pid:
            self._lib.ed_close(self._engine)
            self._engine = None


@cache
def kv_row_bytes(dim: int, kv: str) -> int:
    """Bytes of one key or value of a head in a cache."""
    return int(library().ed_kv_row_bytes(dim, FORMATS[kv]))


def probe_read(size: int, threads: int) -> float:
    """GB/s that `threads` threads read from memory."""
    return float(library().ed_probe_read(size, threads))


def probe_int8(threads: int, isa: str | None = None) -> float:
    """10^9 int8 multiply-adds a second, from registers."""
    return float(library().ed_probe_int8(isa.encode() if isa else None, threads))


@cache
def library() -> ctypes.CDLL:
    """The library with its functions' types; ImportError with the reason if there is none."""
    lib = _library()
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ed_open": (c_void_p, [POINTER(Model), c_int, c_char_p]),
        "ed_close": (None, [c_void_p]),
        "ed_engine_isa": (c_char_p, [c_void_p]),
        "ed_run": (c_int, [c_void_p, POINTER(Call)]),
        "ed_kv_row_bytes": (c_uint64, [c_int, c_int]),
        "ed_probe_read": (c_double, [c_uint64, c_int]),
        "ed_probe_int8": (c_double, [c_char_p, c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


__all__ = ["Call", "Engine", "Layer", "Model", "Rope", "Sequence", "Tensor", "kv_row_bytes", "library"]
