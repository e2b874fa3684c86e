"""Rounding of one matrix so that its output on given inputs changes least.

The rule of GPTQ (Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers";
from the authors' code, IST-DASLab/gptq): inputs are rounded one after another, the largest second moment first
(act-order), and what an input's rounding changes in the output is put right by the inputs that are still to come.
With H = X^T X + damp * mean(diag H) and U the upper Cholesky factor of H^-1, rounding column i by e changes columns j
> i by -e * U[i, j] / U[i, i]. Of their code: lazy batches of 128 columns. Ours: scales in blocks of stored order are
chosen before (their "static groups"), weighed by the inputs' second moments, as float16 holds them; inputs that are
always zero keep the nearest multiple, since other texts may use them; and sweeps afterwards, which take each column
again to the best multiple given all others (coordinate descent on the same quadratic form; a naive one is the oracle
in the tests).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import CheckpointError
from edgedec.export.grids import Grid, as_halves, inverse
from edgedec.export.passes._statistics import WIDEST, Float64

_BATCH = 128


def solve(
    weights: Float64, moments: list[Float64], grid: Grid, block: int, damp: float, order: bool, sweeps: int
) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """weights [n, k], moments: of their inputs in diagonal blocks -> codes [n, k], scales [n, blocks]."""
    parts = [
        _part(weights[:, at : at + WIDEST], moment, grid, block, damp, order, sweeps)
        for at, moment in zip(range(0, weights.shape[1], WIDEST), moments, strict=True)
    ]
    codes, scales = (np.concatenate(found, axis=1) for found in zip(*parts, strict=True))
    return grid.codes(codes), scales.astype(np.float16)


def _part(
    weights: Float64, moment: Float64, grid: Grid, block: int, damp: float, order: bool, sweeps: int
) -> tuple[Float64, Float64]:
    """One diagonal block -> multiples [n, w], scales [n, blocks]."""
    h = damped(moment, damp)
    places = np.argsort(-np.diag(h), kind="stable") if order else np.arange(len(h))
    scales = block_scales(weights, np.diag(moment), grid, block)
    steps = np.repeat(scales, block, axis=1)[:, : len(h)].T  # [w, n]
    columns = np.ascontiguousarray(weights.T[places])
    rounded = np.empty_like(columns)
    rounded[places] = _columns(columns, steps[places], factor(h[np.ix_(places, places)]), grid)
    if sweeps:
        scales, steps = _refit(weights.T, rounded, scales, h, block)
    for _ in range(sweeps):
        _sweep(weights.T, rounded, steps, h, grid)
    return rounded.T, scales


def damped(moment: Float64, damp: float) -> Float64:
    """Second moments that can be inverted; CheckpointError if they are not numbers."""
    if not np.isfinite(moment).all():
        raise CheckpointError("the model's states on the calibration text are not finite")
    diagonal = np.diag(moment)
    mean = float(diagonal.mean())
    added = np.where(diagonal == 0, mean or 1.0, 0.0) + damp * mean
    found: Float64 = moment + np.diag(added)
    return found


def factor(h: Float64) -> Float64:
    """The upper U with U^T U = h^-1."""
    found: Float64 = np.linalg.cholesky(np.linalg.inv(h)).T
    return found


def block_scales(weights: Float64, squares: Float64, grid: Grid, block: int) -> Float64:
    """The scale of each block of each row [n, blocks], errors weighed by the inputs' mean square."""
    mean = float(squares.mean()) or 1.0
    n, k = weights.shape
    found = np.empty((n, -(-k // block)))
    for b in range(found.shape[1]):
        part = slice(b * block, (b + 1) * block)
        found[:, b] = grid.scales(weights[:, part], squares[part] + 0.01 * mean)
    return found


def _columns(columns: Float64, steps: Float64, u: Float64, grid: Grid) -> Float64:
    """columns [w, n], changed on the way; steps [w, n]: their scales -> the multiples [w, n]."""
    found = np.empty_like(columns)
    for first in range(0, len(columns), _BATCH):
        stop = min(first + _BATCH, len(columns))
        errors = np.empty((stop - first, columns.shape[1]))
        for i in range(first, stop):
            found[i] = grid.multiples(columns[i] * inverse(steps[i]))
            errors[i - first] = (columns[i] - found[i] * steps[i]) / u[i, i]
            columns[i + 1 : stop] -= u[i, i + 1 : stop, None] * errors[i - first]
        columns[stop:] -= u[first:stop, stop:].T @ errors
    return found


def _refit(columns: Float64, rounded: Float64, scales: Float64, h: Float64, block: int) -> tuple[Float64, Float64]:
    """Each block's scale, one after another, as is best for the multiples [w, n] and all other blocks -> scales, and
    steps [w, n]."""
    scales = scales.copy()
    steps = np.repeat(scales, block, axis=1)[:, : len(h)].T.copy()
    slope = h @ (columns - rounded * steps)  # [w, n]
    for b in range(scales.shape[1]):
        part = slice(b * block, min((b + 1) * block, len(h)))
        q = rounded[part]
        curve = ((h[part, part] @ q) * q).sum(axis=0)
        change = np.divide((slope[part] * q).sum(axis=0), curve, out=np.zeros_like(curve), where=curve > 0)
        new = as_halves(scales[:, b] + change)
        slope -= h[:, part] @ (q * (new - scales[:, b]))
        scales[:, b] = new
        steps[part] = new
    return scales, steps


def _sweep(columns: Float64, rounded: Float64, steps: Float64, h: Float64, grid: Grid) -> None:
    """Each column again: `rounded` [w, n] changes to the multiple that is best given all others."""
    slope = h @ (columns - rounded * steps)
    for first in range(0, len(h), _BATCH):
        stop = min(first + _BATCH, len(h))
        changes = np.empty((stop - first, columns.shape[1]))
        for i in range(first, stop):
            behind = h[i, first:i] @ changes[: i - first]
            wanted = rounded[i] * steps[i] + (slope[i] - behind) / h[i, i]
            best = np.where(steps[i] == 0, rounded[i], grid.multiples(wanted * inverse(steps[i])))
            changes[i - first] = (best - rounded[i]) * steps[i]
            rounded[i] = best
        slope[stop:] -= h[stop:, first:stop] @ changes
