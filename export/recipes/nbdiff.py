"""From next tokens to blocks: the row with masks beside the row as it is, blocks that grow, the AR loss kept (NBDiff).

After the whole text and the public decoding code of "From Next-Token to Next-Block" (training code is not
public): [noised | clean] with causal clean context, one noise level t a row, each masked token's loss over t, plus half
of the autoregressive loss; blocks double from 1 to the largest over the first 2,500 of 4,000 updates; logits shifted.
Blocks that begin anywhere, and first tokens that are masked half of the time, are ours. Of blocks of one token the
masks have nothing to predict, so that the training begins with next tokens alone.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.export.recipes import RecipeFacts
from edgedec.export.recipes._following import following_loss
from edgedec.export.recipes._net import FillingNet, cross_entropy
from edgedec.export.recipes._rows import Draws, TextRow, blocks_of, fillable, grown, noisy
from edgedec.plugins import Opt

FACTS = RecipeFacts(contexts=("causal", "block"), paper="NBDiff")


def make(
    facts: DiffusionFacts,
    ar: Annotated[float, Opt("Weight of the loss of next tokens.", 0)] = 0.5,
    grow: Annotated[float, Opt("Share of the training in which blocks grow.", 0, 1)] = 0.625,
    keep: Annotated[float, Opt("Share of the next tokens' loss that follows the model as it was.", 0, 1)] = 0.0,
) -> NextBlock:
    return NextBlock(ar, grow, keep)


class NextBlock:
    def __init__(self, ar: float, grow: float, keep: float) -> None:
        self._ar, self._grow, self.keep = ar, grow, keep

    def loss(self, net: FillingNet, row: TextRow, draws: Draws, progress: float) -> Tensor:
        facts, t = net.facts, len(row.tokens)
        block = blocks_of(facts, t, grown(progress, facts.block, self._grow), draws)
        fill, share = fillable(row, block, facts.shift), draws.share()
        masked = fill & (draws.uniform(t) < share)
        reading = net.read(row, noisy(row, masked, block, facts, draws), block)
        each = net.each(cross_entropy, net.filling(reading, masked), row.tokens[masked])
        filled = each.sum() / share / max(1, int(fill.sum()))
        return filled + self._ar * following_loss(net, reading, row, block, self.keep)
