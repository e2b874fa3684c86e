"""GPTQ of stacked experts: each expert's rows are rounded for the inputs that are routed to it.

Few rows say little of the inputs of an expert that is seldom chosen. Its second moments are mixed with those of all
experts of the block, which count as many rows as `_PRIOR` for each input: what MC-MoE and others do with more text
instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from edgedec.export.grids import Grid
from edgedec.export.passes._solve import solve
from edgedec.export.passes._statistics import CalibrationRun, Float64, Moments
from edgedec.export.quantize import Bytes, Half
from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import ModelSpec, Moe
from edgedec.spec.moe import level_name

_PRIOR = 0.25
# Numbers of second moments that are held at a time.
_MOST = 1 << 25


class ExpertStack(NamedTuple):
    """A matrix that holds experts. watched: the name by which their inputs are known; rows: of one expert."""

    name: str
    watched: str
    rows: int
    experts: tuple[int, ...]


def stacked(spec: ModelSpec, b: int) -> Iterator[ExpertStack]:
    """The matrices of block b that hold experts, in the order of use."""
    block = spec.blocks[b]
    if isinstance(block, Moe):
        for first, rows in ((f"blocks.{b}.{block.up}", block.up_rows), (f"blocks.{b}.down", spec.hidden_size)):
            for level in range(block.n_levels):
                yield ExpertStack(level_name(first, level), first, rows, block.members(level))


def rounded_experts(
    run: CalibrationRun, b: int, stack: ExpertStack, weights: Array, grid: Grid, block: int, damp: float, sweeps: int
) -> tuple[Bytes, Half]:
    """weights [experts * rows, k] -> codes [n, k], scales [n, blocks]."""
    rows, k = stack.rows, weights.shape[1]
    every, parts = _of_all(run, b, stack, k), []
    for at, known in enumerate(_each(run, b, stack, k)):
        moments = [own + _PRIOR * k / max(every.rows, 1) * all_ for own, all_ in _pairs(known, every)]
        part = weights[at * rows : (at + 1) * rows].astype(np.float64)
        parts.append(solve(part, moments, grid, block, damp, True, sweeps))
    codes, scales = zip(*parts, strict=True)
    return np.concatenate(codes), np.concatenate(scales)


def _of_all(run: CalibrationRun, b: int, stack: ExpertStack, k: int) -> Moments:
    total = Moments.of(k)
    for known in _each(run, b, stack, k):
        for whole, part in zip(total.diagonal, known.diagonal, strict=True):
            whole += part
        total.rows += known.rows
    return total


def _each(run: CalibrationRun, b: int, stack: ExpertStack, k: int) -> Iterator[Moments]:
    """Of each expert, as many at a time as memory allows."""
    step = max(1, _MOST // k**2)
    for first in range(0, len(stack.experts), step):
        experts = stack.experts[first : first + step]
        found = run.expert_moments(b, stack.watched, experts)
        for expert in experts:
            yield found.get(expert) or Moments.of(k)


def _pairs(known: Moments, every: Moments) -> Iterator[tuple[Float64, Float64]]:
    return zip(known.diagonal, every.diagonal, strict=True)
