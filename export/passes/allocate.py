"""Bits where they matter: each matrix gets its own format, so that the whole has at most so many bits a weight.

What a format costs a matrix is measured one matrix at a time: the KL divergence of the model with this matrix alone
rounded (to nearest, or by GPTQ), on calibration text. The choice is the integer program min sum(cost), sum(bytes) <=
budget, solved by dynamic programming. That costs add up is an assumption; a plain one, and what the released
allocators make too (MC-MoE, LQ-LoRA).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, get_args

import numpy as np

from edgedec.bundle.integers import BITS, Integers, is_integer
from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._knapsack import choose
from edgedec.export.passes._levels import By, RoundedLevels
from edgedec.export.passes._statistics import CalibrationRun, Statistics
from edgedec.export.quantize import codes_of, from_codes, quantize
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import OUTER, WEIGHT_FORMATS

FACTS = PassFacts("allocation")


def make(
    host: PassContext,
    bits: Annotated[float, Opt("Bits a weight of the layers' matrices, scales included, at most.", above=2, high=8.5)],
    formats: Annotated[tuple[str, ...], Opt("Formats to choose from; all integers by default.")] = (),
    tokens: Annotated[int, Opt("Tokens that each choice is measured on.", 16)] = 1024,
    by: Annotated[By, Opt("How the matrices that are measured are rounded.")] = "nearest",
) -> Allocate:
    return Allocate(host, bits, known_formats(formats, "allocate"), tokens, by)


def known_formats(formats: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The formats to choose from, the fewest bits first; all integers for none."""
    known = tuple(fmt for fmt in get_args(Integers) if fmt in WEIGHT_FORMATS)
    wrong = [fmt for fmt in formats if fmt not in known]
    if wrong:
        raise UsageError(f"--passes {name}: formats={wrong[0]}: must be of {', '.join(known)}")
    return tuple(sorted(formats or known, key=BITS.__getitem__))


@dataclass(frozen=True)
class Allocate:
    """The pass with its options."""

    host: PassContext
    bits: float
    formats: tuple[str, ...]
    tokens: int
    by: By

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        names = self.names(model)
        levels = RoundedLevels(self.host, model, self.formats, self.by).make(names, statistics)
        picked = self.choice(model, statistics, names, levels)
        own = {name: self.formats[j] for name, j in zip(names, picked, strict=True)}
        return replace(model, formats={**model.formats, **own})  # type: ignore[dict-item]

    def choice(self, model: PassModel, statistics: Statistics, names: list[str], levels: RoundedLevels) -> list[int]:
        """The place of each matrix's format in `formats`."""
        sizes, budget = self.sizes(model, names)
        return choose(self._costs(model, statistics, names, levels), sizes, budget)

    def sizes(self, model: PassModel, names: list[str]) -> tuple[list[list[int]], int]:
        """Bytes of each matrix in each format, and how many there may be."""
        shapes = model.spec.tensors()
        sizes = [[stored_bytes(shapes[name], fmt, self.host.block) for fmt in self.formats] for name in names]
        budget = int(self.bits * sum(shapes[name][0] * shapes[name][1] for name in names) / 8)
        if sum(map(min, sizes)) > budget:
            least = self.formats[0]
            raise UsageError(f"--passes: bits={self.bits:g}: {least} in blocks of {self.host.block} has more")
        return sizes, budget

    def names(self, model: PassModel) -> list[str]:
        """The layers' matrices that are rounded and whose format is open."""
        spec = model.spec
        inner = sorted(spec.matrices - OUTER - self.host.fixed - set(model.rounded))
        return [name for name in inner if is_integer(self.host.format_of(model, name))]

    def _costs(
        self, model: PassModel, statistics: Statistics, names: list[str], levels: RoundedLevels
    ) -> list[list[float]]:
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
            first = int(name.split(".")[1])
            found.append([])
            for fmt in self.formats:
                swapped[name] = levels.get(name, fmt)
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
