"""Parts of an answer that do not need each other, then a summary of them, on one canvas (NAP).

After the public training code by notes (its inference is not released): texts are a prompt, m parts and a
summary (`{"prompt": …, "parts": […], "answer": …}`). Masks of a share t of the row, each masked token weighed by what
is known near it (Dream's CART: half of p(1 - p)^(d - 1) for each known token at distance d, p 0.1). Staged: parts are
masked at 0.9t, and the summary wholly while more than a tenth is masked, so that it is written last. Decode with
`schedule=spread:parts=N`.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.export.recipes import RecipeFacts
from edgedec.export.recipes._net import FillingNet, cross_entropy
from edgedec.export.recipes._rows import Draws, TextRow, blocks_of, fillable, noisy
from edgedec.plugins import Opt

FACTS = RecipeFacts(contexts=("full",), paper="NAP")
_PARTS, _LATE = 0.9, 0.1


def make(
    facts: DiffusionFacts,
    p: Annotated[float, Opt("How fast the weight of what is known falls with its distance.", 0.001, 1)] = 0.1,
    staged: Annotated[bool, Opt("Write the summary last.")] = True,
) -> IndependentParts:
    return IndependentParts(p, staged)


class IndependentParts:
    keep = 0.0

    def __init__(self, p: float, staged: bool) -> None:
        self._p, self._staged = p, staged

    def loss(self, net: FillingNet, row: TextRow, draws: Draws, progress: float) -> Tensor:
        block = blocks_of(net.facts, len(row.tokens), net.facts.block, draws)
        fill = fillable(row, block, net.facts.shift)
        masked = fill & (draws.uniform(len(fill)) < self.shares(row, draws.share()))
        reading = net.read(row, noisy(row, masked, block, net.facts, draws), block)
        each = net.each(cross_entropy, net.filling(reading, masked), row.tokens[masked])
        return (each * nearness(masked, self._p)[masked]).sum() / max(1, int(fill.sum()))

    def shares(self, row: TextRow, t: float) -> Tensor:
        """How often each token is masked. t 0.5 staged: parts 0.45, the summary always; t 0.05: 0.045 and half."""
        found = torch.full(row.part.shape, t)
        last = int(row.part.max())
        if not self._staged or last < 2:
            return found
        summary = row.part == last
        return torch.where(summary, torch.tensor(min(1.0, t / _LATE)), _PARTS * found)


def nearness(masked: Tensor, p: float) -> Tensor:
    """The weight of each token by the known ones about it. p 0.5, [known, masked]: [0, 0.25] and 0 for itself."""
    at = torch.arange(len(masked))
    far = (at[:, None] - at[None]).abs()
    near = torch.where(far > 0, 0.5 * p * (1 - p) ** (far - 1).clamp(min=0).float(), torch.zeros(()))
    return near @ (~masked).float()
