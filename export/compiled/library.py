"""One library of a model for one machine: all functions, the one that runs a call, compiled and linked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm
from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.errors import RuntimeUnavailable
from edgedec.export.compiled.blocks import emit_block, reserve_block
from edgedec.export.compiled.emitter import Emitter, Frame, ItemWork, Launch, Phase, branch, together
from edgedec.export.compiled.head import emit_ends, head_items
from edgedec.export.compiled.lanes import LANES, Expr, Ptr, bind, by_parts, part_of, pointer, put_part
from edgedec.export.compiled.machines import Processor
from edgedec.export.compiled.moves import emit_move
from edgedec.export.compiled.parts import BlockCode
from edgedec.export.compiled.ready import reserve_rows
from edgedec.export.compiled.schedules import Schedules
from edgedec.export.compiled.ssm import emit_advance
from edgedec.runtimes.tvm.frame import LANES as _LANES
from edgedec.runtimes.tvm.frame import ROWS, STRIP, table_width
from edgedec.spec import ModelSpec

assert _LANES == LANES
MOST_THREADS = 64
Progress = Callable[[str, int, int], None]


def emitted(
    spec: ModelSpec,
    tensors: dict[str, Tensor],
    machine: Processor,
    kv: tuple[str, ...],
    schedules: Schedules | None = None,
) -> Emitter:
    """All functions of a model: "run" runs a call on caches of one of the formats `kv`."""
    emit = Emitter(spec, tensors, machine, schedules)
    codes = [BlockCode(emit, f"{block.kind}_{b}", b, block, MOST_THREADS) for b, block in enumerate(spec.blocks)]
    _reserve(emit, codes)
    emit_ends(emit)
    kinds: dict[Any, int] = {}
    numbers = [kinds.setdefault((code.block, _formats(tensors, code.number)), code.number) for code in codes]
    _emit_keep(emit)
    phases = {first: emit_block(codes[first], kv) for first in sorted(set(numbers))}
    _emit_run(emit, [phases[first] for first in numbers])
    emit_move(emit)
    if spec.recurrent:
        emit_advance(emit)
    return emit


def _formats(tensors: dict[str, Tensor], b: int) -> tuple[tuple[str, str, int, bool], ...]:
    """The formats of a block's matrices; blocks with other formats get code of their own."""
    prefix = f"blocks.{b}."
    own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    return tuple((name, t.format, t.block, bool(t.zeros)) for name, t in own.items())


def _reserve(emit: Emitter, codes: list[BlockCode]) -> None:
    """Working memory that several blocks use is as large as the largest use."""
    widths = [t.shape[1] for t in emit.tensors.values() if len(t.shape) == 2]
    for name in ("hidden", "post", "normed"):
        emit.reserve(name, "float32", ROWS * max([emit.spec.hidden_size, *(widths if name == "normed" else [])]))
    for code in codes:
        reserve_block(code)
    for t in emit.tensors.values():
        reserve_rows(emit, t)


def _emit_keep(emit: Emitter) -> None:
    """Item: a row; copies its state to the requested address, which is passed in place of a table."""
    width = emit.spec.hidden_size
    with emit.function("keep") as work:
        x = emit.place(work.frame, "hidden", "float32", ROWS * width).at(work.item * width)
        to = Ptr(T.decl_buffer((T.int64(1 << 40),), "float32", data=work.table.buffer.data), work.item * width)
        by_parts(width, lambda at, count: put_part(to, at, part_of(x, at, count), count))


def _emit_run(emit: Emitter, phases: list[list[Phase]]) -> None:
    with emit.function("run", exported=True) as work:
        threads = bind(work.frame["threads"])

        def alone() -> None:
            _run(emit, work, phases, None)

        def by_all() -> None:
            with together():
                _run(emit, work, phases, threads)

        branch(threads == T.int64(1), alone, by_all)


def _run(emit: Emitter, work: ItemWork, phases: list[list[Phase]], threads: Expr | None) -> None:
    """The whole of a call: embedding, blocks, head."""
    frame, width, spec = work.frame, table_width(emit.spec), emit.spec
    at = bind(T.reinterpret("int64", frame.words.buffer.data))
    tables, run, keep = bind(frame["blocks"]), pointer(frame["run"], "int32"), pointer(frame["keep"], "int64")
    ends = Launch(frame, at, bind(tables + 8 * width * spec.n_blocks), threads)

    def kept(place: Expr) -> None:
        address = bind(keep[place])
        branch(address != T.int64(0), lambda: emit.phase(Phase("keep", each=1), ends.of(address)))

    emit.phase(Phase("embed", each=1), ends)
    kept(spec.n_blocks)
    period = _period(phases)
    with T.serial(len(phases) // period) as turn:
        for i, of_block in enumerate(phases[:period]):
            b = bind(T.Cast("int64", turn) * period + i)

            def block(b: Expr = b, of_block: list[Phase] = of_block) -> None:
                launch = ends.of(bind(tables + b * (8 * width)))
                for phase in of_block:
                    emit.phase(phase, launch)
                kept(b)

            branch(run[b] != 0, block)
    branch(frame["logits"] != T.int64(0), lambda: _run_head(emit, frame, ends))


def _period(phases: list[list[Phase]]) -> int:
    """The period of the sequence of blocks: 2 for alternating attention and mlp. Code is written once for each block of
    a period.

    a b a b a b -> 2; a b c -> 3
    """
    n = len(phases)
    return next(p for p in range(1, n + 1) if n % p == 0 and all(phases[i] == phases[i % p] for i in range(n)))


def _run_head(emit: Emitter, frame: Frame, ends: Launch) -> None:
    vocab = emit.spec.vocab_size
    launch = replace(ends, rows=bind(frame.number("n_head")))
    emit.phase(Phase("head_ready", each=1), launch)
    emit.phase(Phase("head", groups=head_items(emit)), launch)
    strips = Phase("strip_sums", each=-(-vocab // STRIP))
    branch(frame["sums"] != T.int64(0), lambda: emit.phase(strips, launch))
    branch(frame["top"] != T.int64(0), lambda: emit.phase(Phase("best", each=1), launch))


# ---- to machine code ---------------------------------------------------------------------------------


def compiled(emit: Emitter, path: Path) -> None:
    """Compile and link a library."""
    machine = emit.machine
    linker = _linker(machine)
    target: dict[str, Any] = {"kind": "llvm", "mtriple": machine.triple, "mcpu": machine.cpu, "opt-level": 3}
    if machine.features:
        target["mattr"] = list(machine.features)
    built = _built(emit.module(), tvm.target.Target(target))

    def link(output: str, objects: list[str], options: object = None) -> None:
        del options
        done = subprocess.run([*linker, "-shared", "-fPIC", "-o", output, *objects], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeUnavailable(f"--for tvm:{machine.name}: {linker[0]} failed: {done.stderr.strip()[-300:]}")

    link.output_format = "so"  # type: ignore[attr-defined]
    built.export_library(str(path), fcompile=link)


def _linker(machine: Processor) -> list[str]:
    """The first command that can link for a machine here."""
    for name in machine.linker:
        program, *words = name.split()
        if program == "zig" and find_spec("ziglang"):
            return [sys.executable, "-m", "ziglang", *words]
        if shutil.which(program):
            return name.split()
    names = ", ".join("the package ziglang" if name.startswith("zig ") else name for name in machine.linker)
    raise RuntimeUnavailable(f"--for tvm:{machine.name}: needs a linker for it: one of {names}")


def _built(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Compile to machine code. The functions need no optimization by TVM, so only the passes required for code
    generation are run."""
    passes = tvm.tirx.transform
    steps = [
        passes.BindTarget(target.with_host(target)), passes.FlattenBuffer(), passes.AnnotateEntryFunc(),
        passes.MakePackedAPI(), passes.LowerIntrin(),
    ]  # fmt: skip
    return import_module("tvm.tirx.build").tir_to_runtime(tvm.ir.transform.Sequential(steps)(module), {}, target)
