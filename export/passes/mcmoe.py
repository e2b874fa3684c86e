"""Bits by expert: those that are used most, with most weight, keep more (MC-MoE).

Huang et al., "MC-MoE: Mixture Compressor for Mixture-of-Experts LLMs Gains More"; from the authors' code
(Aaronhuang-778/MC-MoE, `precision_solver.py`): in each block the choice min sum phi w^1.5 eps of a format for every
expert, at a mean of so many bits, each format but the smallest for one expert at least. phi: how often the router
chooses the expert, w: the sum of the weights it gives it before they are normalized, both as parts of their sums over
the block; eps: the Frobenius norm of the change of the block's output when this expert alone is rounded to nearest,
text by text. (The paper squares eps; the released solver does not, and parses an exponent that it does not use.) They
choose among 1, 2 and 3 bits. An expert's two matrices have one format; those of a format lie in tensors of their own
(`Moe.levels`), which the CPU engine and the reference read. Attention and the rest keep `--weights`; `gptq` may follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from edgedec.bundle.integers import is_integer
from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._knapsack import choose_each
from edgedec.export.passes._routing import Routed, routed, with_blocks
from edgedec.export.passes._statistics import Float64, Statistics
from edgedec.export.passes.allocate import known_formats, rounded, stored_bytes
from edgedec.plugins import Opt
from edgedec.runtimes.reference.moe import through_expert
from edgedec.runtimes.reference.numeric import Array, BlockWeights, Weights
from edgedec.spec import Block, ModelSpec, Moe
from edgedec.spec.moe import MOST_LEVELS, level_name

FACTS = PassFacts("allocation")
_WEIGHT = 1.5


def make(
    host: PassContext,
    bits: Annotated[float, Opt("Bits a weight of the experts, scales included, at most.", above=2, high=8.5)],
    formats: Annotated[tuple[str, ...], Opt("Formats to choose from.")] = ("int2", "int3", "int4"),
    tokens: Annotated[int, Opt("Tokens that experts are measured on.", 16)] = 4096,
) -> McMoe:
    known = known_formats(formats, "mcmoe")
    if not 2 <= len(known) <= MOST_LEVELS:
        raise UsageError(f"--passes mcmoe: formats: from 2 to {MOST_LEVELS} of them")
    return McMoe(host, bits, known, tokens)


@dataclass(frozen=True)
class McMoe:
    """The pass with its options."""

    host: PassContext
    bits: float
    formats: tuple[str, ...]
    tokens: int

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        self._check(model)
        spec, blocks, formats = model.spec, dict[int, Block](), dict(model.formats)
        for b, block, texts in routed(statistics.first(self.tokens), spec, model.read):
            costs = importance(block, texts)[:, None] * self._errors(model, b, block, texts)
            picked = self._choice(block, spec.hidden_size, costs)
            used = sorted(set(picked))
            blocks[b] = own = replace(block, levels=tuple(used.index(j) for j in picked))
            for level, j in enumerate(used):
                for name in (own.up, "down"):
                    formats[f"blocks.{b}.{level_name(name, level)}"] = self.formats[j]  # type: ignore[assignment]
            self.host.progress("mcmoe", b + 1, spec.n_blocks)
        found = with_blocks(spec, blocks)
        return replace(model, spec=found, read=by_level(found, model.read), formats=formats)

    def _check(self, model: PassModel) -> None:
        mixtures = {b: block for b, block in enumerate(model.spec.blocks) if isinstance(block, Moe)}
        if not mixtures or any(block.levels or block.router == "relu" for block in mixtures.values()):
            raise UsageError(f"--passes mcmoe: {model.spec.architecture} has no experts to choose formats for")
        names = [f"blocks.{b}.{name}" for b, block in mixtures.items() for name in (block.up, "down")]
        fixed = self.host.fixed | set(model.rounded)
        if wrong := [name for name in names if name in fixed or not is_integer(self.host.format_of(model, name))]:
            raise UsageError(f"--passes mcmoe: {wrong[0]} is not to be rounded; give --weights int4")

    def _errors(self, model: PassModel, b: int, block: Moe, texts: list[Routed]) -> Float64:
        """[experts, formats]: how much the block's output changes when one expert is rounded."""
        plain, found = BlockWeights(model.spec, b, model.read), np.zeros((block.n_experts, len(self.formats)))
        low = [BlockWeights(model.spec, b, rounding(model.read, fmt, self.host.block)) for fmt in self.formats]
        for text in texts:
            for e in np.unique(text.experts).tolist():
                rows, place = np.nonzero(text.experts == e)
                x, weights = text.x[rows], text.weights[rows, place, None]
                floats = through_expert(block, plain, x, e)
                for j, w in enumerate(low):
                    found[e, j] += np.linalg.norm(weights * (through_expert(block, w, x, e) - floats))
        return found

    def _choice(self, block: Moe, hidden: int, costs: Float64) -> list[int]:
        """The format of each expert, by its place in `formats`."""
        shapes = ((block.up_rows, hidden), (hidden, block.inner_size))
        sizes = [sum(stored_bytes(shape, fmt, self.host.block) for shape in shapes) for fmt in self.formats]
        budget = int(self.bits * block.n_experts * sum(n * k for n, k in shapes) / 8)
        try:
            return choose_each(costs.tolist(), sizes, budget)
        except ValueError as error:
            raise UsageError(f"--passes mcmoe: bits={self.bits:g}: {error} bytes of a block's experts") from None


def importance(block: Moe, texts: list[Routed]) -> Float64:
    """phi w^1.5 of each expert."""
    experts = np.concatenate([text.experts.ravel() for text in texts])
    shares = np.concatenate([text.shares.ravel() for text in texts])
    phi = np.bincount(experts, minlength=block.n_experts)
    w = np.bincount(experts, weights=shares, minlength=block.n_experts)
    found: Float64 = phi / phi.sum() * (w / w.sum()) ** _WEIGHT
    return found


def rounding(read: Weights, fmt: str, block: int) -> Weights:
    """Matrices as nearest rounding stores them."""

    def low(name: str, start: int, stop: int) -> Array:
        found = read(name, start, stop)
        return rounded(found, fmt, block) if found.ndim == 2 else found

    return low


def by_level(spec: ModelSpec, read: Weights) -> Weights:
    """The tensors of experts by their levels, of a model that has them in one."""
    places = dict[str, tuple[str, int, tuple[int, ...]]]()  # the name there, the rows of an expert, which experts
    for b, block in enumerate(spec.blocks):
        if isinstance(block, Moe):
            for name, rows in ((f"blocks.{b}.{block.up}", block.up_rows), (f"blocks.{b}.down", spec.hidden_size)):
                for level in range(block.n_levels):
                    places[level_name(name, level)] = name, rows, block.members(level)

    def leveled(name: str, start: int, stop: int) -> Array:
        if name not in places:
            return read(name, start, stop)
        of, rows, experts = places[name]
        parts = []
        for at, e in enumerate(experts):
            first, last = max(start, at * rows), min(stop, (at + 1) * rows)
            if first < last:
                parts.append(read(of, first + (e - at) * rows, last + (e - at) * rows))
        return np.concatenate(parts)

    return leveled
