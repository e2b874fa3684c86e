"""GPTQ of stacked experts: each expert's rows are rounded for the inputs that are routed to it.

Few rows say little of the inputs of an expert that is seldom chosen. Its second moments are mixed with those of all
experts of the block, which count as many rows as `_PRIOR` for each input: what MC-MoE and others do with more text
instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgedec.export.grids import Grid
from edgedec.export.passes._solve import solve
from edgedec.export.passes._statistics import CalibrationRun, Float64, Moments
from edgedec.export.quantize import Bytes, Half
from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import ModelSpec, Moe

_PRIOR = 0.25
# Numbers of second moments that are held at a time.
_MOST = 1 << 25


def stacked(spec: ModelSpec, b: int) -> Iterator[tuple[str, int]]:
    """The matrices of block b that hold all experts, in the order of use, with the rows of one expert."""
    block = spec.blocks[b]
    if isinstance(block, Moe):
        yield f"blocks.{b}.{block.up}", block.up_rows
        yield f"blocks.{b}.down", spec.hidden_size


def rounded_experts(
    run: CalibrationRun, b: int, name: str, weights: Array, rows: int, grid: Grid, block: int, damp: float, sweeps: int
) -> tuple[Bytes, Half]:
    """weights [experts * rows, k] -> codes [n, k], scales [n, blocks]."""
    count, k = len(weights) // rows, weights.shape[1]
    every, parts = _of_all(run, b, name, count, k), []
    for expert, known in _each(run, b, name, count, k):
        moments = [own + _PRIOR * k / max(every.rows, 1) * all_ for own, all_ in _pairs(known, every)]
        part = weights[expert * rows : (expert + 1) * rows].astype(np.float64)
        parts.append(solve(part, moments, grid, block, damp, True, sweeps))
    codes, scales = zip(*parts, strict=True)
    return np.concatenate(codes), np.concatenate(scales)


def _of_all(run: CalibrationRun, b: int, name: str, count: int, k: int) -> Moments:
    total = Moments.of(k)
    for _, known in _each(run, b, name, count, k):
        for whole, part in zip(total.diagonal, known.diagonal, strict=True):
            whole += part
        total.rows += known.rows
    return total


def _each(run: CalibrationRun, b: int, name: str, count: int, k: int) -> Iterator[tuple[int, Moments]]:
    """(expert, its moments), of as many experts at a time as memory allows."""
    step = max(1, _MOST // k**2)
    for first in range(0, count, step):
        experts = range(first, min(first + step, count))
        found = run.expert_moments(b, name, experts)
        for expert in experts:
            yield expert, found.get(expert) or Moments.of(k)


def _pairs(known: Moments, every: Moments) -> Iterator[tuple[Float64, Float64]]:
    return zip(known.diagonal, every.diagonal, strict=True)
