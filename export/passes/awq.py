"""Inputs that are large on calibration text are rounded more finely (AWQ, activation-aware weight quantization).

Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration"; from the authors' code
(mit-han-lab/llm-awq, `auto_scale.py`): the columns of a matrix are multiplied by s = m^a / sqrt(max * min), m the
mean |x| of each input, and what makes the inputs is divided by it: a norm's weight, the values for the output
projection, the up rows for the down projection. Of `grid` exponents a from 0 to 1 the one is taken whose rounded
matrix changes the output least. Ours: that error is taken from the second moments; 0 is always a candidate, so that a
matrix it does not help stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from edgedec.bundle.integers import is_integer
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._scaled import Scaled, readers
from edgedec.export.passes._statistics import Float64, Moments, MomentsOf, Statistics
from edgedec.export.quantize import codes_of, from_codes, quantize
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = PassFacts("equivalents")


def make(
    host: PassContext, grid: Annotated[int, Opt("Exponents tried for each group of matrices.", 2, 100)] = 20
) -> Awq:
    return Awq(host, grid)


@dataclass(frozen=True)
class ScaledGroup:
    """Matrices that read the same inputs, and the vectors and rows that make these: name -> the rows, None for all.
    share: so many inputs after one another, `repeats` times, have one factor (value heads that several query heads
    read)."""

    matrices: tuple[str, ...]
    makers: dict[str, slice | None]
    share: int = 0
    repeats: int = 1


@dataclass(frozen=True)
class Awq:
    """The pass with its options."""

    host: PassContext
    grid: int

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        scaled, spec = Scaled(model.read), model.spec
        for b, moments in statistics.blocks(spec, model.read):
            for group in groups(spec, b):
                if not set(group.matrices) & (self.host.fixed | set(model.rounded)):
                    self._scale(model, scaled, group, moments)
            self.host.progress("awq", b + 1, spec.n_blocks)
        return replace(model, read=scaled.read)

    def _scale(self, model: PassModel, scaled: Scaled, group: ScaledGroup, moments: MomentsOf) -> None:
        shapes = model.spec.tensors()
        known = next((moments[name] for name in group.matrices if name in moments), None)
        if known is None or not all(is_integer(self.host.format_of(model, n)) for n in group.matrices if n in moments):
            return
        weights = {name: scaled.read(name, 0, shapes[name][0]) for name in group.matrices if name in moments}
        factors = self._best(model, group, weights, known)
        for name in group.matrices:
            scaled.columns(name, factors)
        made = factors.reshape(-1, group.repeats, group.share)[:, 0].ravel() if group.share else factors
        for name, rows in group.makers.items():
            whole = np.ones(shapes[name][0])
            whole[rows or slice(None)] = 1 / made
            scaled.rows(name, whole)

    def _best(self, model: PassModel, group: ScaledGroup, weights: dict[str, Array], known: Moments) -> Float64:
        """The factors [k] of the exponent that leaves the least error."""
        found, least = np.ones(len(known.magnitude)), np.inf
        for i in range(self.grid):
            factors = scales(known, i / self.grid, group)
            error = sum(self._error(model, name, w, factors, known) for name, w in weights.items())
            if error < least:
                found, least = factors, error
        return found

    def _error(self, model: PassModel, name: str, weights: Array, factors: Float64, known: Moments) -> float:
        """What rounding to nearest changes in the output, squared."""
        fmt, block, k = self.host.format_of(model, name), self.host.block, weights.shape[1]
        assert is_integer(fmt)
        data, steps = quantize((weights * factors).astype(np.float32), fmt, block)
        change = from_codes(codes_of(data, fmt, k), steps, fmt, block) / factors - weights
        error, at = 0.0, 0
        for moment in known.diagonal:
            part = change[:, at : at + len(moment)]
            error += float(np.einsum("nk,nk->", part @ moment, part))
            at += len(moment)
        return error


def scales(known: Moments, exponent: float, group: ScaledGroup) -> Float64:
    """m^a / sqrt(max * min) of the mean magnitudes [k]; 1 where an input is always zero."""
    mean = known.magnitude / max(known.rows, 1)
    if group.share:
        shared = mean.reshape(-1, group.repeats, group.share).mean(axis=1, keepdims=True)
        mean = np.broadcast_to(shared, (len(shared), group.repeats, group.share)).ravel()
    found = np.where(mean > 0, np.maximum(mean, 1e-12) ** exponent, 1.0)
    return np.clip(found / np.sqrt(found.max() * found.min()), 1e-4, 1e4)


def groups(spec: ModelSpec, b: int) -> Iterator[ScaledGroup]:
    """What may be scaled in block b without changing the model."""
    block, norms = spec.blocks[b], readers(spec)
    norm = f"blocks.{b}.norm"
    if norm in norms:
        yield ScaledGroup(norms[norm], {norm: None})
    if isinstance(block, Attention | Mlp) and block.inner_norm != "none":
        return  # what it norms may not be scaled
    normed = isinstance(block, Attention) and (block.clip or block.v_norm or block.k_is_v or block.differential)
    read = any(other.slots_of == b for other in spec.shared.values())  # whose values another block weighs too
    if isinstance(block, Attention) and block.kind == "attention" and not normed and not read:
        values = slice(block.q_dim + block.kv_dim, block.q_dim + 2 * block.kv_dim)
        makers: dict[str, slice | None] = {f"blocks.{b}.qkv": values}
        if block.qkv_bias:
            makers[f"blocks.{b}.qkv_bias"] = values
        yield ScaledGroup((f"blocks.{b}.o",), makers, block.head_dim, block.n_heads // block.n_kv_heads)
    if isinstance(block, Mlp) and block.gated:
        rows = slice(block.inner_size, 2 * block.inner_size)
        makers = {f"blocks.{b}.gate_up": rows}
        if block.bias:
            makers[f"blocks.{b}.gate_up_bias"] = rows
        yield ScaledGroup((f"blocks.{b}.down",), makers)
