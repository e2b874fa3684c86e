"""Lossy: rows leave out the last of their experts where it weighs little beside the first (MC-MoE).

Huang et al., "MC-MoE: Mixture Compressor for Mixture-of-Experts LLMs Gains More"; from the authors' code
(Aaronhuang-778/MC-MoE, `models/wrapper.py`, `expert_weight.py`): in the least sensitive blocks a token drops its second
expert where w2 / w1 is below the block's median on calibration text, but for the 2% of tokens that score highest. Their
score is attention times the L1 norm of what the router reads, taken over a prompt, so that decoded tokens are never
protected; as released it is the norm alone over a number of the position. Here it is that norm, and the border that
norm of the calibration text which 2% exceed: so it depends on nothing but the row, while decoding too. Of more than two
experts a row's last one goes; no file of theirs has such models. Sensitive is a block whose dropping alone changes the
model's predictions most (KL divergence); theirs is a table of perplexities of Mixtral. The bundle's blocks carry both
borders (`Moe.drop_below`, `Moe.protect_from`); the CPU engine and the reference read them, the others refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._fitness import Fitness
from edgedec.export.passes._routing import Routed, routed, with_blocks
from edgedec.export.passes._statistics import Statistics
from edgedec.plugins import Opt
from edgedec.spec import Block, Moe

FACTS = PassFacts("additions")


def make(
    host: PassContext,
    blocks: Annotated[float, Opt("Part of the mixtures in which rows drop, the least sensitive.", above=0, high=1)],
    protect: Annotated[float, Opt("Part of the tokens that never drop.", 0, 1)] = 0.02,
    tokens: Annotated[int, Opt("Tokens that blocks are compared on.", 16)] = 1024,
) -> DropExperts:
    return DropExperts(host, blocks, protect, tokens)


@dataclass(frozen=True)
class DropExperts:
    """The pass with its options."""

    host: PassContext
    blocks: float
    protect: float
    tokens: int

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        spec = model.spec
        if not any(isinstance(block, Moe) and _several(block) for block in spec.blocks):
            raise UsageError(f"--passes drop_experts: {spec.architecture} has no rows of several experts")
        found: dict[int, Block] = {
            b: dropping(block, texts, self.protect)
            for b, block, texts in routed(statistics, spec, model.read)
            if _several(block)
        }
        some = statistics.first(self.tokens)
        fitness, costs, every = Fitness(spec, model.read, some), dict[int, float](), range(len(some.texts))
        for b, block in found.items():
            costs[b] = fitness(model.read, every, with_blocks(spec, {b: block}))
            self.host.progress("drop_experts", len(costs), len(found))
        least = sorted(found, key=costs.__getitem__)[: max(1, round(self.blocks * len(found)))]
        return replace(model, spec=with_blocks(spec, {b: found[b] for b in least}))


def _several(block: Moe) -> bool:
    """Whether rows have a last expert of several; by "relu" they have any number, none of which is drawn by rank."""
    return block.top_k > 1 and block.router != "relu"


def dropping(block: Moe, texts: list[Routed], protect: float) -> Moe:
    """The block with the borders of its rows."""
    shares = np.concatenate([text.shares for text in texts])
    sizes = np.concatenate([np.abs(text.read).sum(axis=1) for text in texts])
    below = float(np.median(shares[:, -1] / shares[:, 0]))
    return replace(
        block,
        drop_below=min(below, 1.0),
        protect_from=float(np.quantile(sizes, 1 - protect)) if protect else 0.0,
    )
