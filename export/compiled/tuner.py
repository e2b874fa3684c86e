"""Measures schedules of products on this machine: each product alone, on weights of its real size.

Candidates run in turns, so that other load on the machine affects all of them; the least processor time of each counts.
The weights exceed the caches, as in a model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.compiled.database import TuningDatabase, TuningRecord, processor_here
from edgedec.export.compiled.emitter import Emitter
from edgedec.export.compiled.lanes import LANES, bind, int64, pointer
from edgedec.export.compiled.library import compiled
from edgedec.export.compiled.machines import Processor
from edgedec.export.compiled.product import Epilogue, MatrixProduct, items_of, product_item
from edgedec.export.compiled.ready import ReadyRows, row_bytes, step_of, steps_of
from edgedec.export.compiled.schedules import MOST_ROWS, ProductShape, Schedule
from edgedec.export.compiled.tiles import Words
from edgedec.runtimes.tvm.host import Library, aligned
from edgedec.spec import Mlp, ModelSpec

Progress = Callable[[str, int, int], None]
_ROWS = (1, 2, 4, 8)
_AHEAD = (0, 1024, 2048)
_VECTORS = {16: (1, 2), 8: (1, 2, 4), 4: (1, 2, 4)}  # by a native vector's lanes
_WEIGHTS, _ROUNDS = 64 << 20, 4  # bytes of weights that a round goes through, at most; rounds
_FRAME = ("data", "scales", "zeros", "ready", "out", "rows", "items")


def tune(
    machine: Processor, products: Sequence[ProductShape], database: TuningDatabase, progress: Progress = lambda *_: None
) -> None:
    """Measure the products without a record of this processor, and add the records to the database."""
    processor = processor_here()
    lacking = database.lacking(machine.name, processor, products)
    for i, product in enumerate(lacking):
        progress("tuning", i, len(lacking))
        schedule, ns = best(machine, product)
        times = {str(rows): float(round(time)) for rows, time in ns.items()}
        record = TuningRecord(machine.name, processor, str(product), schedule.vectors, schedule.ahead, times)
        database.add(record)
    progress("tuning", len(lacking), len(lacking))


def best(machine: Processor, product: ProductShape) -> tuple[Schedule, dict[int, float]]:
    """The fastest schedule of a product, and its nanoseconds by rows."""
    wide = [Schedule((v,) * MOST_ROWS) for v in _VECTORS[machine.width]]
    small = [Schedule((v,) * (MOST_ROWS // 2)) for v in _VECTORS[machine.width]]
    times = measured(machine, product, [*wide, *small])
    chosen = _composed(times)
    times = measured(machine, product, [replace(chosen, ahead=ahead) for ahead in _AHEAD])
    schedule = min(times, key=lambda one: sum(times[one][rows] / times[chosen][rows] for rows in _ROWS))
    return schedule, times[schedule]


def _composed(times: dict[Schedule, dict[int, float]]) -> Schedule:
    """The fastest numbers of vectors by rows, up to the tile size that is fastest for eight rows."""
    most = min(times, key=lambda one: times[one][_ROWS[-1]]).rows
    own = [one for one in times if one.rows == most]
    measured_rows = [next(rows for rows in _ROWS if rows >= m) for m in range(1, most + 1)]
    return Schedule(tuple(min(own, key=lambda one: times[one][rows]).vectors[0] for rows in measured_rows))


def measured(
    machine: Processor, product: ProductShape, candidates: Sequence[Schedule]
) -> dict[Schedule, dict[int, float]]:
    """Nanoseconds of a product by candidate and rows."""
    t = Tensor(product.format, (product.n, product.k), 0, 0, product.block, "interleave16", int(product.zeros))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(prefix="edgedec-") as folder:
        path = Path(folder) / "products.so"
        items = _write(machine, product, t, candidates, path)
        library, problem = Library(path, 1), _Problem(t, product)
        runs = [library.function(f"product_{i}") for i in range(len(candidates))]
        times = {schedule: dict.fromkeys(_ROWS, inf) for schedule in candidates}
        for _ in range(_ROUNDS):
            for schedule, run, count in zip(candidates, runs, items, strict=True):
                for rows in _ROWS:
                    times[schedule][rows] = min(times[schedule][rows], problem.time(run, count, rows))
        return times


def _write(
    machine: Processor, product: ProductShape, t: Tensor, candidates: Sequence[Schedule], path: Path
) -> list[int]:
    """A library of the product by each schedule; how many items each has."""
    spec, items = ModelSpec("tuning", LANES, LANES, 1, ((Mlp(LANES),),), 1e-5, True, ()), list[int]()
    emit = Emitter(spec, {}, machine)
    for i, schedule in enumerate(candidates):
        emit.products[product] = schedule
        items.append(items_of(emit, t, product.n, product.glu))
        _write_one(emit, product, t, f"product_{i}")
    compiled(emit, path)
    return items


def _write_one(emit: Emitter, product: ProductShape, t: Tensor, name: str) -> None:
    epilogue = Epilogue(glu=True, activation="silu") if product.glu else Epilogue()
    with emit.function(name, exported=True) as work:
        words = work.frame.words
        data, scales, zeros = (pointer(bind(words[i]), of) for i, of in enumerate(("int32", "uint16", "uint8")))
        ready, out = ReadyRows.at(bind(words[3]), t), pointer(bind(words[4]), "float32")
        outputs = product.n // 2 if product.glu else product.n
        p = MatrixProduct(
            t, product.n, bind(words[5]), out, outputs, Words(data, scales, zeros if product.zeros else None), ready,
            None, None, epilogue, T.int64(0),
        )  # fmt: skip
        with T.serial(bind(words[6])) as i:
            product_item(emit, p, bind(int64(i)))


@dataclass(frozen=True)
class _Copy:
    """The weights of one of several alike matrices."""

    data: Any
    scales: Any
    zeros: Any


class _Problem:
    """Weights and rows of a product, in enough copies to exceed the caches."""

    def __init__(self, t: Tensor, product: ProductShape) -> None:
        lanes = t.groups * LANES
        sizes = lanes * t.blocks * t.block_bytes, lanes * t.blocks
        self._copies = [
            _Copy(
                _filled(sizes[0], np.uint8, 0x37),
                _filled(sizes[1], np.uint16, 0x1C00),
                _filled(sizes[1], np.uint8, 0x88),
            )
            for _ in range(max(1, min(64, _WEIGHTS // max(sizes[0], 1))))
        ]
        ready = MOST_ROWS * row_bytes(step_of(t), steps_of(t))
        self._ready, self._out = _filled(ready, np.uint8, 0x11), _filled(MOST_ROWS * product.n, np.float32, 0)
        self._frame = aligned(len(_FRAME), np.int64)

    def time(self, run: Callable[[int], None], items: int, rows: int) -> float:
        """Nanoseconds of the product, the mean of all copies."""
        self._frame[3:] = [self._ready.ctypes.data, self._out.ctypes.data, rows, items]
        began = thread_time_ns()
        for copy in self._copies:
            self._frame[:3] = [array.ctypes.data for array in (copy.data, copy.scales, copy.zeros)]
            run(self._frame.ctypes.data)
        return (thread_time_ns() - began) / len(self._copies)


def _filled(count: int, dtype: Any, value: float) -> Any:
    array = aligned(count, dtype)
    array[:] = value
    return array
