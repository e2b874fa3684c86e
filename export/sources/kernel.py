"""Emits kernels. Their inputs are arrays, an item and a tile of rows; equal kernels are written once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.words import Array, Expr

# Declared sizes of arrays and grids; they are not checked.
_ANY, _GROUPS = 1 << 30, 65535


@dataclass(frozen=True)
class GroupWork:
    """The inputs of a group of threads: the arrays by name, its item (the group's x), its tile of rows (y)."""

    arrays: Mapping[str, Array]
    item: Expr
    tile: Expr
    thread: Expr

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]


@dataclass(frozen=True)
class Kernel:
    """threads: of a group. arrays: the types of its arguments, in order."""

    name: str
    threads: int
    arrays: dict[str, str]


class Kernels:
    """Collects the kernels of one language. A kernel is written once for each name: check `has` first."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.made: dict[str, Kernel] = {}
        self.functions: dict[str, tvm.tirx.PrimFunc] = {}

    def has(self, name: str) -> bool:
        return name in self.made

    @contextmanager
    def kernel(self, name: str, threads: int, arrays: dict[str, str]) -> Iterator[GroupWork]:
        """Write a kernel. arrays: float32, int32 or uint32 each."""
        with IRBuilder() as builder:
            with T.prim_func():
                T.func_name(name)
                T.func_attr(
                    {
                        "global_symbol": name,
                        "calling_conv": 2,
                        "tirx.is_global_func": True,
                        "tirx.noalias": True,
                        "tirx.kernel_launch_params": ["blockIdx.x", "blockIdx.y", "threadIdx.x"],
                    }
                )
                given = {argument: T.arg(argument, T.ptr(dtype)) for argument, dtype in arrays.items()}
                held = {n: Array(T.decl_buffer((_ANY,), arrays[n], data=data)) for n, data in given.items()}
                with (
                    T.launch_thread("blockIdx.x", _GROUPS) as item,
                    T.launch_thread("blockIdx.y", _GROUPS) as tile,
                    T.launch_thread("threadIdx.x", threads) as thread,
                ):
                    yield GroupWork(held, item, tile, thread)
            self.functions[name] = builder.get()
        self.made[name] = Kernel(name, threads, arrays)
