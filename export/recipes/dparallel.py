"""Makes a model that fills masks sure of what it fills rightly, on texts of its own, so that more passes the threshold.

After the public code of dParallel (czg1225/dParallel, `llada_train.py`): a block is half masked, all behind it
is masked, and the complement is trained too; the loss is the mean cross entropy plus twice the mean entropy, at
temperature 0.5, of the masked tokens that are predicted rightly, of both. With causal or block context all blocks of a
row are trained at once, as none sees a later one; the loss of next tokens (`ar`), that such a model stays what it was,
is ours. Give texts that the model wrote (`--self-distill`). Decode with `schedule=threshold:p=0.5`.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.export.recipes import RecipeFacts
from edgedec.export.recipes._following import following_loss
from edgedec.export.recipes._net import FillingNet, RowReading, cross_entropy
from edgedec.export.recipes._rows import Draws, TextRow, blocks_of, fillable, noisy
from edgedec.plugins import Opt

FACTS = RecipeFacts(goes_on=True, paper="dParallel")
_ACTIVE = 32  # tokens of the block that is trained, of a canvas


def make(
    facts: DiffusionFacts,
    weight: Annotated[float, Opt("Weight of the entropy; 0 leaves it out.", 0)] = 2.0,
    temperature: Annotated[float, Opt("Of the distribution whose entropy it is.", 0.01)] = 0.5,
    ar: Annotated[float, Opt("Weight of the loss of next tokens.", 0)] = 0.5,
    keep: Annotated[float, Opt("Share of the next tokens' loss that follows the model as it was.", 0, 1)] = 0.0,
) -> Certainty:
    return Certainty(weight, temperature, ar, keep)


class Certainty:
    def __init__(self, weight: float, temperature: float, ar: float, keep: float) -> None:
        self._weight, self._temperature, self._ar, self.keep = weight, temperature, ar, keep

    def loss(self, net: FillingNet, row: TextRow, draws: Draws, progress: float) -> Tensor:
        facts, t = net.facts, len(row.tokens)
        block = blocks_of(facts, t, facts.block, draws)
        active, behind = self._active(fillable(row, block, facts.shift), facts, draws)
        half = draws.uniform(t) < 0.5
        views, total = [active & half, active & ~half], torch.zeros(())
        for masked in views:
            reading = net.read(row, noisy(row, masked | behind, block, facts, draws), block)
            total = total + self._view(net, reading, row, masked)
        return total + self._ar * following_loss(net, reading, row, block, self.keep)

    def _active(self, fill: Tensor, facts: DiffusionFacts, draws: Draws) -> tuple[Tensor, Tensor]:
        """The tokens of which half are masked and learned, and those behind, which are masked. Of a canvas: a block of
        the answer."""
        places = fill.nonzero()[:, 0]
        if facts.context != "full" or not len(places):
            return fill, torch.zeros_like(fill)
        count = max(1, len(places) // _ACTIVE)
        first = draws.whole.randrange(count)
        end = len(places) if first == count - 1 else (first + 1) * _ACTIVE
        active, behind = torch.zeros_like(fill), torch.zeros_like(fill)
        active[places[first * _ACTIVE : end]] = True
        behind[places[end:]] = True
        return active, behind

    def _view(self, net: FillingNet, reading: RowReading, row: TextRow, masked: Tensor) -> Tensor:
        if not masked.any():
            return torch.zeros(())
        target = row.tokens[masked]
        found = net.each(lambda logits, told: certainty(logits, told, self._temperature),
                         net.filling(reading, masked), target)  # fmt: skip
        nats, entropy, right = found.unbind(-1)
        return nats.mean() + self._weight * (entropy * right).sum() / right.sum().clamp(min=1)


def certainty(logits: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Of each token [n, 3]: nats, the entropy at the temperature, and 1 if the best token is the right one."""
    logs = functional.log_softmax(logits / temperature, -1)
    entropy = -(logs.exp() * logs).sum(-1)
    return torch.stack([cross_entropy(logits, target), entropy, (logits.argmax(-1) == target).float()], -1)
