"""Bits by an evolutionary search: what no sum over single matrices sees, errors that add up or cancel, decides.

Sieberling et al., "EvoPress: Accurate Dynamic Model Compression via Evolutionary Search"; from the authors' code
(IST-DASLab/EvoPress, `evo_quant_search.py`). One parent; a generation's children are copies of it in which some
matrices have a level less and others of the same size a level more: the lesser of two draws from 1 to 3 such switches.
Stages select the survivors by KL divergence on more and more text, drawn anew each time; the parent takes part in the
last stage, so that no generation is worse there. Ours: the parent begins as `allocate`'s choice (theirs at random);
where levels are not one bit apart (int4 and int8) a child that exceeds the budget is drawn again. Their run: 128
children, survivors 16, 4, 1 on 2, 16 and 131 thousand tokens, 150 generations. Dropping whole blocks is not built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

import numpy as np

from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._fitness import Fitness
from edgedec.export.passes._levels import By, RoundedLevels
from edgedec.export.passes._statistics import Statistics
from edgedec.export.passes.allocate import Allocate, known_formats
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array

FACTS = PassFacts("allocation")
_SWITCHES = 3
_TRIES = 100
Choice = tuple[int, ...]


def make(
    host: PassContext,
    bits: Annotated[float, Opt("Bits a weight of the layers' matrices, scales included, at most.", above=2, high=8.5)],
    formats: Annotated[tuple[str, ...], Opt("Formats to choose from; all integers by default.")] = (),
    by: Annotated[By, Opt("How the matrices that are measured are rounded.")] = "gptq",
    generations: Annotated[int, Opt("Times that children are made of the best choice so far.", 0)] = 30,
    children: Annotated[int, Opt("Choices of a generation.", 1)] = 24,
    survivors: Annotated[tuple[int, ...], Opt("How many of them each stage leaves, 1 at last.")] = (4, 1),
    stages: Annotated[tuple[int, ...], Opt("Tokens that each stage measures on.")] = (2048, 16384),
    seed: Annotated[int, Opt("Of the random draws.", 0)] = 0,
) -> EvoPress:
    if not survivors or len(survivors) != len(stages) or survivors[-1] != 1:
        raise UsageError("--passes evopress: survivors and stages need one number for each stage, survivors 1 at last")
    if any(a <= b for a, b in pairwise(survivors)) or min(stages) < 1:
        raise UsageError("--passes evopress: survivors must become fewer, stages have 1 token or more")
    first = Allocate(host, bits, known_formats(formats, "evopress"), min(stages), by)
    return EvoPress(first, generations, children, tuple(zip(survivors, stages, strict=True)), seed)


@dataclass(frozen=True)
class EvoPress:
    """The pass with its options. first: what it starts from; stages: (survivors, tokens) of each."""

    first: Allocate
    generations: int
    children: int
    stages: tuple[tuple[int, int], ...]
    seed: int

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        host, names, formats = self.first.host, self.first.names(model), self.first.formats
        levels = RoundedLevels(host, model, formats, self.first.by).make(names, statistics)
        parent = tuple(self.first.choice(model, statistics, names, levels))
        fitness, rng = Fitness(model.spec, model.read, statistics), np.random.default_rng(self.seed)
        sizes, budget = self.first.sizes(model, names)

        def measured(choice: Choice, texts: Sequence[int]) -> float:
            own = dict(zip(names, choice, strict=True))

            def read(name: str, start: int, stop: int) -> Array:
                if name in own:
                    return levels.get(name, formats[own[name]])[start:stop]
                return model.read(name, start, stop)

            return fitness(read, texts)

        for generation in range(self.generations):
            born = offspring(parent, sizes, budget, self.children, rng)
            parent = select(parent, born, self.stages, lambda n: fitness.picked(n, rng), measured)
            host.progress("evopress", generation + 1, self.generations)
        own = {name: formats[j] for name, j in zip(names, parent, strict=True)}
        return replace(model, formats={**model.formats, **own})  # type: ignore[dict-item]


def select(
    parent: Choice,
    born: Sequence[Choice],
    stages: Sequence[tuple[int, int]],
    picked: Callable[[int], Sequence[int]],
    measured: Callable[[Choice, Sequence[int]], float],
) -> Choice:
    """The best of the children and their parent, in stages of (survivors, tokens)."""
    left = list(born)
    for i, (survivors, tokens) in enumerate(stages):
        if i == len(stages) - 1:
            left = [parent, *left]  # first: of equals the parent stays
        texts = picked(tokens)
        left = sorted(left, key=lambda choice: measured(choice, texts))[:survivors]
    return left[0]


def offspring(
    parent: Choice, sizes: Sequence[Sequence[int]], budget: int, count: int, rng: np.random.Generator
) -> list[Choice]:
    """At most so many different children."""
    found = dict[Choice, None]()
    for _ in range(_TRIES * count):
        child = mutated(parent, sizes, rng)
        total = sum(size[j] for size, j in zip(sizes, child, strict=True))
        if child != parent and total <= budget:
            found[child] = None
        if len(found) == count:
            break
    return list(found)


def mutated(parent: Choice, sizes: Sequence[Sequence[int]], rng: np.random.Generator) -> Choice:
    """A copy with levels switched, each between two matrices of one size."""
    child = list(parent)
    for _ in range(min(rng.integers(1, _SWITCHES + 1, 2))):
        down = int(rng.integers(len(child)))
        alike = [i for i, size in enumerate(sizes) if i != down and size == sizes[down]]
        alike = [i for i in alike if child[i] + 1 < len(sizes[i])]
        if child[down] and alike:
            child[down] -= 1
            child[alike[int(rng.integers(len(alike)))]] += 1
    return tuple(child)
