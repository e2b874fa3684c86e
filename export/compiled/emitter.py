"""Emits the functions of a library. Their arguments are a frame, a block's table, an item of work and a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.compiled.lanes import Expr, Ptr, bind, int64, pointer
from edgedec.export.compiled.machines import Processor
from edgedec.export.compiled.schedules import ProductShape, Schedule, Schedules
from edgedec.runtimes.tvm import frame as f
from edgedec.spec import KV_FORMATS, ModelSpec

ALIGN = 64


@dataclass(frozen=True)
class Frame:
    """The table of a call, and the memory that it points to."""

    words: Ptr

    def __getitem__(self, name: str) -> Expr:
        return self.words[f.FRAME.index(name)]

    def array(self, name: str, dtype: str = "int32") -> Ptr:
        """An array of the step."""
        step = pointer(bind(self["step"]), "int64")
        return pointer(bind(step[f.STEP_POINTERS.index(name)]), dtype)

    def number(self, name: str) -> Expr:
        """A number of the step."""
        numbers = pointer(bind(self["step"]), "int32")
        return bind(int64(numbers[2 * len(f.STEP_POINTERS) + f.STEP_NUMBERS.index(name)]))


@dataclass(frozen=True)
class ItemWork:
    """The arguments of an item's function."""

    frame: Frame
    table: Ptr
    item: Expr
    thread: Expr


@dataclass(frozen=True)
class BlockTable:
    """A block's table by the names of its fields."""

    words: Ptr
    fields: dict[str, int]

    def address(self, name: str) -> Expr:
        return bind(self.words[self.fields[name]])

    def pointer(self, name: str, dtype: str = "float32") -> Ptr:
        return pointer(self.address(name), dtype)


@dataclass(frozen=True)
class Phase:
    """A function and how many items it has: `each` for every row (or what `per` counts), or `groups`; counted: a place
    whose first number is a factor of `groups`; by_kv: there is one function for each of these cache formats, with the
    format in its name."""

    name: str
    each: int = 0
    groups: int = 0
    per: str = "rows"
    counted: str = ""
    by_kv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """The context of running phases: the call's frame and its address, the address of a block's table; rows: instead of
    the call's; threads: inside of `together`, how many take part; None: this one alone."""

    frame: Frame
    at: Expr
    table: Expr
    threads: Expr | None
    rows: Expr | None = None

    def of(self, table: Expr) -> Launch:
        """The same with another table."""
        return replace(self, table=table)


def together() -> Any:
    """A scope that all threads run at once; inside, `Emitter.phase` shares out items."""
    return T.attr(T.int32(0), "pragma_parallel_launch_point", T.int32(1))


class Emitter:
    """Collects the functions of one library. A function is written once for each name: check `has` first."""

    def __init__(
        self,
        spec: ModelSpec,
        tensors: dict[str, Tensor],
        machine: Processor,
        schedules: Schedules | None = None,
    ) -> None:
        self.spec, self.tensors, self.machine = spec, tensors, machine
        self.schedules = schedules or Schedules(machine.name)
        self._functions: dict[str, tvm.tirx.PrimFunc] = {}
        self._names: dict[str, tvm.ir.GlobalVar] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._wanted: dict[str, int] = {}
        self.scratch_bytes = 0
        self.products = dict[ProductShape, Schedule]()

    def schedule(self, product: ProductShape) -> Schedule:
        """The schedule of a product, which is noted in `products`."""
        return self.products.setdefault(product, self.schedules.of(product))

    # ---- working memory ----

    def reserve(self, name: str, dtype: str, count: int) -> None:
        """Reserve at least `count` elements for a place, before code that uses it is written."""
        assert name not in self._places
        self._wanted[name] = max(self._wanted.get(name, 0), count * _bytes(dtype))

    def place(self, frame: Frame, name: str, dtype: str, count: int) -> Ptr:
        """Named working memory for `count` elements; the same name is the same memory, as large as its largest use."""
        self._give(name, count * _bytes(dtype))
        return pointer(bind(frame["scratch"] + T.int64(self._places[name][0])), dtype)

    def _give(self, name: str, size: int) -> None:
        """Give a place its room."""
        if name not in self._places:
            room = -(-max(size, self._wanted.get(name, 0)) // ALIGN) * ALIGN
            self._places[name] = self.scratch_bytes, room
            self.scratch_bytes += room
        assert size <= self._places[name][1], f"{name}: reserve {size} bytes"

    # ---- functions ----

    def has(self, name: str) -> bool:
        return name in self._functions

    @contextmanager
    def function(self, name: str, exported: bool = False) -> Iterator[ItemWork]:
        """Write a function; exported ones are called from outside with a frame alone."""
        with IRBuilder() as builder:
            with T.prim_func(private=not exported):
                T.func_name(name)
                if exported:
                    T.func_attr({"global_symbol": name})
                else:
                    T.func_ret(tvm.ir.PrimType("int32"))
                names = ("frame",) if exported else ("frame", "table", "item", "thread")
                arguments = [T.arg(argument, T.int64()) for argument in names]
                words = pointer(arguments[0], "int64")
                if exported:
                    yield ItemWork(Frame(words), words, T.int64(0), T.int64(0))
                else:
                    yield ItemWork(Frame(words), pointer(arguments[1], "int64"), *arguments[2:])
                    T.Return(T.int32(0))
            self._functions[name] = builder.get()
        self._names.setdefault(name, tvm.ir.GlobalVar(name))

    def call(self, name: str, frame: Expr, table: Expr, item: Expr, thread: Expr) -> None:
        """Call a function; frame and table are addresses."""
        variable = self._names.setdefault(name, tvm.ir.GlobalVar(name))
        T.evaluate(tvm.ir.Call(variable, [frame, table, int64(item), int64(thread)]))

    def phase(self, phase: Phase, launch: Launch) -> None:
        """Run a phase and wait for all of it."""
        for kv in phase.by_kv:
            own = replace(phase, name=f"{phase.name}_{kv}", by_kv=())
            branch(launch.frame["kv"] == T.int64(KV_FORMATS.index(kv)), lambda own=own: self.phase(own, launch))  # type: ignore[misc]
        if phase.by_kv:
            return
        count, at, table, threads = self._count(phase, launch), launch.at, launch.table, launch.threads
        if threads is None:
            with T.serial(count) as i:
                self.call(phase.name, at, table, i, T.int64(0))
            return
        with T.attr(T.int32(0), "pragma_parallel_barrier_when_finish", T.int32(1)), T.parallel(threads) as thread:
            begin = bind(count * thread // threads)
            with T.serial(bind(count * (thread + 1) // threads) - begin) as i:
                self.call(phase.name, at, table, begin + i, thread)

    def _count(self, phase: Phase, launch: Launch) -> Expr:
        """How many items a phase has."""
        if phase.counted:
            return bind(int64(self.place(launch.frame, phase.counted, "int32", 1)[0]) * phase.groups)
        if not phase.each:
            return T.int64(phase.groups)
        counted = launch.rows if launch.rows is not None else launch.frame.number(phase.per)
        return bind(counted * phase.each)

    def module(self) -> tvm.IRModule:
        """All functions that were written."""
        return tvm.IRModule({self._names[name]: function for name, function in self._functions.items()})


def branch(condition: Expr, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
    """If, and else."""
    with T.If(condition):
        with T.Then():
            then()
        if otherwise is not None:
            with T.Else():
                otherwise()


def _bytes(dtype: str) -> int:
    return {"float32": 4, "int32": 4, "int8": 1, "int64": 8}[dtype]
