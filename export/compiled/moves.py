"""Moves rows of a cache to other slots, for commits of some rows of a tree."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.export.compiled.emitter import Emitter
from edgedec.export.compiled.lanes import Ptr, bind, pointer


def emit_move(emit: Emitter) -> None:
    """Write "move_slots": given [moves, runs, n, count], as `MoveArgs` of kernels/cuda/args.h; all runs, move by
    move."""
    with emit.function("move_slots", exported=True) as work:
        words = work.frame.words
        moves, runs = pointer(bind(words[0]), "int64"), pointer(bind(words[1]), "int64")
        with T.serial(bind(words[3])) as run:
            offset, size = bind(runs[2 * run]), bind(runs[2 * run + 1])
            with T.serial(bind(words[2])) as i:
                source, to = (_row(moves, 4 * i + j, offset, size) for j in (0, 2))
                with T.serial(size // 4) as word:
                    to.put(word, source[word])


def _row(moves: Ptr, at: object, offset: object, size: object) -> Ptr:
    return pointer(bind(moves[at] + offset + moves[at + 1] * size), "int32")  # type: ignore[operator]
