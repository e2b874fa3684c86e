"""Bits where they matter: each matrix gets its own format, so that the whole has at most so many bits a weight.

What a format costs a matrix is measured one matrix at a time: the KL divergence of the model with this matrix alone
rounded to nearest, on calibration text. The choice is the integer program min sum(cost), sum(bytes) <= budget, solved
by dynamic programming. That costs add up is an assumption; a plain one, and what the released allocators make too
(MC-MoE, LQ-LoRA).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, get_args

import numpy as np

from edgedec.bundle.integers import BITS, Integers, is_integer
from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._knapsack import choose
from edgedec.export.passes._statistics import CalibrationRun, Statistics
from edgedec.export.quantize import codes_of, from_codes, quantize
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import WEIGHT_FORMATS

FACTS = PassFacts("allocation")


def make(
    host: PassContext,
    bits: Annotated[float, Opt("Bits a weight of the layers' matrices, scales included, at most.", above=2, high=8.5)],
    formats: Annotated[tuple[str, ...], Opt("Formats to choose from; all integers by default.")] = (),
    tokens: Annotated[int, Opt("Tokens that each choice is measured on.", 16)] = 1024,
) -> Allocate:
    known = tuple(fmt for fmt in get_args(Integers) if fmt in WEIGHT_FORMATS)
    wrong = [fmt for fmt in formats if fmt not in known]
    if wrong:
        raise UsageError(f"--passes allocate: formats={wrong[0]}: must be of {', '.join(known)}")
    return Allocate(host, bits, formats or known, tokens)


@dataclass(frozen=True)
class Allocate:
    """The pass with its options."""

    host: PassContext
    bits: float
    formats: tuple[str, ...]
    tokens: int

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        names, shapes = self._names(model), model.spec.tensors()
        sizes = [[stored_bytes(shapes[name], fmt, self.host.block) for fmt in self.formats] for name in names]
        budget = int(self.bits * sum(shapes[name][0] * shapes[name][1] for name in names) / 8)
        if sum(map(min, sizes)) > budget:
            least = min(self.formats, key=BITS.__getitem__)
            raise UsageError(f"--passes allocate: bits={self.bits:g}: {least} in blocks of {self.host.block} has more")
        picked = choose(self._costs(model, statistics, names), sizes, budget)
        own = {name: self.formats[j] for name, j in zip(names, picked, strict=True)}
        return replace(model, formats={**model.formats, **own})  # type: ignore[dict-item]

    def _names(self, model: PassModel) -> list[str]:
        """The layers' matrices that are rounded and whose format is open."""
        spec = model.spec
        inner = sorted(spec.matrices - {"embed", "head"} - self.host.fixed - set(model.rounded))
        return [name for name in inner if is_integer(self.host.format_of(model, name))]

    def _costs(self, model: PassModel, statistics: Statistics, names: list[str]) -> list[list[float]]:
        """The KL divergence of each choice, of `tokens` tokens."""
        swapped = dict[str, Array]()

        def read(name: str, start: int, stop: int) -> Array:
            return swapped[name][start:stop] if name in swapped else model.read(name, start, stop)

        texts, spec = statistics.first(self.tokens), model.spec
        plain, run = texts.run(spec, model.read), texts.run(spec, read)
        states = []
        for b in range(spec.n_blocks):
            states.append(plain.state())
            plain.advance(b)
        floats, found = _probabilities(plain, len(texts.texts)), list[list[float]]()
        for i, name in enumerate(names):
            first, weights = int(name.split(".")[1]), model.read(name, 0, spec.tensors()[name][0])
            found.append([])
            for fmt in self.formats:
                swapped[name] = rounded(weights, fmt, self.host.block)
                run.resume(states[first])
                for b in range(first, spec.n_blocks):
                    run.advance(b)
                found[-1].append(_divergence(floats, _probabilities(run, len(texts.texts))))
            del swapped[name]
            self.host.progress("allocate", i + 1, len(names))
        return found


def stored_bytes(shape: tuple[int, ...], fmt: str, block: int) -> int:
    """Bytes of a matrix and its scales."""
    blocks = -(-shape[1] // block)
    return shape[0] * blocks * (block * BITS[fmt] // 8 + 2)


def rounded(weights: Array, fmt: str, block: int) -> Array:
    """The matrix as nearest rounding stores it."""
    assert is_integer(fmt)
    data, scales = quantize(weights, fmt, block)
    return from_codes(codes_of(data, fmt, weights.shape[1]), scales, fmt, block)


def _probabilities(run: CalibrationRun, n: int) -> list[Array]:
    """Log-probabilities [rows, vocab_size] of each text."""
    found = []
    for i in range(n):
        logits = run.logits(i)
        logits -= logits.max(axis=1, keepdims=True)
        found.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    return found


def _divergence(floats: list[Array], others: list[Array]) -> float:
    """Nats a token."""
    total = sum(float((np.exp(p) * (p - q)).sum()) for p, q in zip(floats, others, strict=True))
    return total / sum(len(p) for p in floats)
