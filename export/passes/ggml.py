"""Weights as llama.cpp's types keep them, stored as floats: to measure those types beside the formats of bundles.

llama.cpp's own library rounds each matrix and reads it back, so `bench formats` compares what its types cost in
quality on the same weights, the same text and the same engine. Types in blocks of 256 take rows of whole 256s: where
a row is shorter, several of the matrix's rows follow one another in a block. llama.cpp itself would fall back to
another type there, with more bits. `imatrix` weighs each input by its mean square on the calibration text, as
`llama-imatrix` does; of the types of 2 bits and fewer some need it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import lcm
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.export.gguf.types import PEER_TYPES, GgmlType
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._statistics import Float64, Statistics
from edgedec.extras import install_command
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import ModelSpec

FACTS = PassFacts("rounding")
_ENDS = ("embed", "head")


def make(
    host: PassContext,
    matrices: Annotated[str, Opt("llama.cpp's type of the layers' matrices, such as Q3_K.")],
    ends: Annotated[str, Opt("Its type of head and embedding; that of the layers by default.")] = "",
    imatrix: Annotated[bool, Opt("Weigh inputs by their mean square on the calibration text.")] = False,
) -> Ggml:
    for name in filter(None, (matrices, ends)):
        if name not in PEER_TYPES:
            raise UsageError(f"--passes ggml: {name}: must be one of {', '.join(PEER_TYPES)}")
    if host.parts["body"] != "f32":
        raise UsageError("--passes ggml: makes floats to measure; give --weights f32")
    return Ggml(host, PEER_TYPES[matrices], PEER_TYPES[ends or matrices], imatrix)


@dataclass(frozen=True)
class Ggml:
    """The pass with its options."""

    host: PassContext
    matrices: GgmlType
    ends: GgmlType
    imatrix: bool

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        spec, found = model.spec, dict[str, Array]()
        squares = _squares(model, statistics) if self.imatrix else {}
        names = sorted(spec.matrices & set(spec.tensors()))
        for i, name in enumerate(names):
            weights = model.read(name, 0, spec.tensors()[name][0])
            kind = self.ends if name in _ENDS else self.matrices
            found[name] = read_back(weights, kind, squares.get(name))
            self.host.progress("ggml", i + 1, len(names))

        def read(name: str, start: int, stop: int) -> Array:
            return found[name][start:stop] if name in found else model.read(name, start, stop)

        return replace(model, read=read)


def stored_bits(spec: ModelSpec, matrices: str, ends: str) -> float:
    """Bits a weight of a model in these types, as `bits_per_weight` counts those of a bundle."""
    size, count = 0.0, 0
    for name, shape in spec.tensors().items():
        n = int(np.prod(shape))
        kind = PEER_TYPES[(ends or matrices) if name in _ENDS else matrices]
        size += n * (8 * kind.size / kind.block if name in spec.matrices else 32)
        count += n
    return round(size / count, 3)


def _squares(model: PassModel, statistics: Statistics) -> dict[str, Float64]:
    """The mean square of each input of each matrix."""
    run, found = statistics.run(model.spec, model.read), dict[str, Float64]()
    for b in range(model.spec.n_blocks):
        found |= {name: known.squares / max(known.rows, 1) for name, known in run.moments(b).items()}
        run.advance(b)
    known = run.head_moments()
    found["embed" if model.spec.tied else "head"] = known.squares / max(known.rows, 1)
    return found


def read_back(weights: Array, kind: GgmlType, squares: Float64 | None = None) -> Array:
    """The values [n, k] that the type makes of a matrix; squares [k]: the weight of each input's error."""
    lib, width = library(), lcm(weights.shape[1], kind.block)
    if weights.size % width:
        raise UsageError(f"--passes ggml: {kind.name} needs blocks of {kind.block}; a matrix is {weights.shape}")
    if squares is None and lib.ggml_quantize_requires_imatrix(kind.number):
        raise UsageError(f"--passes ggml: {kind.name} needs imatrix=true")
    rows = np.ascontiguousarray(weights, np.float32).reshape(-1, width)
    stored = np.empty(rows.size // kind.block * kind.size, np.uint8)
    weighed = None if squares is None else np.tile(squares.astype(np.float32), width // len(squares))
    pointer = ctypes.c_void_p(None if weighed is None else weighed.ctypes.data)
    lib.ggml_quantize_init(kind.number)
    lib.ggml_quantize_chunk(kind.number, rows.ctypes.data, stored.ctypes.data, 0, len(rows), width, pointer)
    found = np.empty_like(rows)
    _Traits.of(lib, kind).to_float(stored.ctypes.data, found.ctypes.data, found.size)
    return found.reshape(weights.shape)


class _Traits(ctypes.Structure):
    """The beginning of ggml's `ggml_type_traits`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )

    @classmethod
    def of(cls, lib: Any, kind: GgmlType) -> Any:
        """Those of a type; RuntimeUnavailable if the library numbers or lays out its types in another way."""
        found = lib.ggml_get_type_traits(kind.number).contents
        if (found.block, found.size) != (kind.block, kind.size):
            raise RuntimeUnavailable(f"llama.cpp's library has no {kind.name} of {kind.size} bytes a block")
        return found


@cache
def library() -> Any:
    """ggml of an installed llama-cpp-python."""
    if find_spec("llama_cpp") is None:
        raise RuntimeUnavailable(f"llama.cpp's types need llama-cpp-python: {install_command('peers')}")
    folder = Path(str(import_module("llama_cpp").__file__)).parent / "lib"
    path = next((p for p in sorted(folder.glob("*ggml-base*")) if p.is_file()), None)
    if path is None:
        raise RuntimeUnavailable(f"{folder}: has no ggml-base library of llama.cpp")
    lib: Any = ctypes.CDLL(str(path))
    lib.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    lib.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    size, address = ctypes.c_int64, ctypes.c_void_p
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, address, address, size, size, size, address]
    return lib
