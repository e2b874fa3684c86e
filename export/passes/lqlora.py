"""A matrix in few bits and, beside it, the low rank that its rounding lost most of (LQ-LoRA).

Guo et al., "LQ-LoRA: Low-rank Plus Quantized Matrix Decomposition for Efficient Language Model Finetuning"; from the
authors' code (HanGuo97/lq-lora, `models/lq_utils.py`): L = the best rank r of W - Q, Q = W - L rounded, in turns until
the error grows, both weighed by rows and columns: scales sqrt(row mean F) and sqrt(column mean F) before the singular
value decomposition (randomised, oversampling 10), whose values are split between both factors. Where their release
keeps the last turn, which is worse, the best is kept, as they say. Ours: Q is in a format of bundles, not NormalFloat;
F is the mean square of each input, which is the Fisher information of a matrix but for the gradients at its outputs,
so that rows weigh the same; the budget is `allocate`'s. L is written as `low_rank.adapter` into the bundle's folder, to
be opened as any adapter: the bundle alone is the model without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from edgedec.bundle.adapter import LowRank, adaptable
from edgedec.bundle.integers import is_integer
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._rounded import Rounded
from edgedec.export.passes._statistics import Float64, Moments, Statistics
from edgedec.export.quantize import Format, codes_of, from_codes, quantize
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array

FACTS = PassFacts("rounding")
_OVERSAMPLING, _POWER = 10, 2
# Matrices with fewer rows or columns are decomposed exactly.
_EXACT = 512


def make(
    host: PassContext,
    rank: Annotated[int, Opt("Of what is added to each matrix.", 1)] = 64,
    turns: Annotated[int, Opt("Most turns of decomposing and rounding.", 1)] = 20,
) -> LqLora:
    return LqLora(host, rank, turns)


@dataclass(frozen=True)
class LqLora:
    """The pass with its options."""

    host: PassContext
    rank: int
    turns: int

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        spec, found, pairs = model.spec, dict(model.rounded), dict[str, LowRank]()
        wanted = {name for name in adaptable(spec) if self._wanted(model, name)}
        for b, moments in statistics.blocks(spec, model.read):
            for name, known in moments.items():
                if name in wanted:
                    found[name], pairs[name] = self._matrix(model, name, known)
            self.host.progress("lqlora", b + 1, spec.n_blocks)

        def read(name: str, start: int, stop: int) -> Array:
            if name not in pairs:
                return model.read(name, start, stop)
            added: Array = pairs[name].b[start:stop] @ pairs[name].a
            return found[name].floats(start, stop) + added

        return replace(model, read=read, rounded=found, low_rank=pairs)

    def _wanted(self, model: PassModel, name: str) -> bool:
        free = name in model.spec.tensors() and name not in model.rounded and name not in self.host.fixed
        return free and is_integer(self.host.format_of(model, name))

    def _matrix(self, model: PassModel, name: str, known: Moments) -> tuple[Rounded, LowRank]:
        fmt, block, store = self.host.format_of(model, name), self.host.block, self.host.store
        assert is_integer(fmt)
        there, pair = store.get(name, fmt, block), store.pair(name)
        if there is not None and pair is not None:
            return there, pair
        weights = model.read(name, 0, model.spec.tensors()[name][0])
        columns = np.sqrt(known.squares / max(known.rows, 1))
        pair = decomposed(weights, columns, fmt, block, self.rank, self.turns)
        data, scales = quantize(weights - pair.b @ pair.a, fmt, block)
        store.keep(name, pair)
        return store.put(name, fmt, block, codes_of(data, fmt, weights.shape[1]), scales), pair


def decomposed(weights: Array, columns: Float64, fmt: Format, block: int, rank: int, turns: int) -> LowRank:
    """The low rank to be added to the rounded rest of a matrix [n, k]; columns [k]: the weights of its inputs."""
    mean = float(columns.mean()) or 1.0
    weigh = np.maximum(columns, 1e-3 * mean).astype(np.float32)  # of inputs that are always zero too
    best, least = LowRank(np.zeros((0, weights.shape[1]), np.float32), np.zeros((len(weights), 0), np.float32)), np.inf
    low = np.zeros_like(weights)
    for _ in range(turns):
        pair = _top((weights - _stored(weights - low, fmt, block)) * weigh, rank)
        pair = LowRank(pair.a / weigh, pair.b)
        low = pair.b @ pair.a
        error = float(np.square((weights - low - _stored(weights - low, fmt, block)) * weigh).sum())
        if error >= least:
            break
        best, least = pair, error
    return best


def _stored(weights: Array, fmt: Format, block: int) -> Array:
    data, scales = quantize(weights.astype(np.float32), fmt, block)
    return from_codes(codes_of(data, fmt, weights.shape[1]), scales, fmt, block)


def _top(x: Array, rank: int) -> LowRank:
    """The best approximation of x [n, k] of this rank, the roots of its singular values in both factors."""
    rank = min(rank, *x.shape)
    if min(x.shape) > _EXACT:
        sketch = x @ np.random.default_rng(0).standard_normal((x.shape[1], rank + _OVERSAMPLING)).astype(np.float32)
        for _ in range(_POWER):
            sketch = x @ (x.T @ np.linalg.qr(sketch)[0])
        basis = np.linalg.qr(sketch)[0]
        u, s, v = np.linalg.svd(basis.T @ x, full_matrices=False)
        u = basis @ u
    else:
        u, s, v = np.linalg.svd(x, full_matrices=False)
    roots = np.sqrt(s[:rank])
    a, b = roots[:, None] * v[:rank], u[:, :rank] * roots
    return LowRank(np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32))
