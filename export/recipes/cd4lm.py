"""A student that sees more masks learns what the model as it was says with fewer (CD4LM: consistency distillation).

Training half, after the public code (yihao-liang/CDLM, `consistency_loss.py`, `collator.py`): of the answer a
share from U(0.4, 0.9) is masked for the student, of those a share x U(0.3, 0.7), clipped to 0.1 to 0.6, for the frozen
teacher; λT²KL(teacher | student) + (1 - λ)CE over the student's masks, T 2, λ 0.9 for the first tenth, then to 0.5 in a
cosine. Short answers as there: under 20 tokens at most half, up to 10 two and one. Left out: its clamps of both terms
to 5 nats, which stop a small model from learning at all. Decode with `schedule=cad`.
"""

from __future__ import annotations

from math import ceil, cos, pi
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.export.recipes import RecipeFacts
from edgedec.export.recipes._following import following_loss
from edgedec.export.recipes._net import FillingNet, cross_entropy
from edgedec.export.recipes._rows import Draws, TextRow, blocks_of, fillable, noisy
from edgedec.plugins import Opt

FACTS = RecipeFacts(goes_on=True, teacher=True, paper="CD4LM")
_STEADY = 0.1  # of the training


def make(
    facts: DiffusionFacts,
    first: Annotated[float, Opt("Weight of the teacher at first.", 0, 1)] = 0.9,
    last: Annotated[float, Opt("Weight of the teacher at the end.", 0, 1)] = 0.5,
    temperature: Annotated[float, Opt("Of both distributions.", 0.01)] = 2.0,
    ar: Annotated[float, Opt("Weight of the loss of next tokens.", 0)] = 0.5,
) -> Consistency:
    return Consistency(first, last, temperature, ar)


class Consistency:
    keep = 0.0

    def __init__(self, first: float, last: float, temperature: float, ar: float) -> None:
        self._first, self._last, self._temperature, self._ar = first, last, temperature, ar

    def loss(self, net: FillingNet, row: TextRow, draws: Draws, progress: float) -> Tensor:
        facts, teacher = net.facts, net.frozen
        assert teacher is not None
        block = blocks_of(facts, len(row.tokens), facts.block, draws)
        masked, fewer = nested(fillable(row, block, facts.shift), draws)
        seen = noisy(row, masked, block, facts, draws)
        reading = net.read(row, seen, block)
        # A first token that is masked for the student is for the teacher too: nothing is learned of it.
        known = torch.where(masked & ~fewer, row.tokens, seen)
        with torch.no_grad():
            told = teacher.filling(teacher.read(row, known, block), masked)
        pair = net.each(lambda logits, target, states: self._pair(logits, target, teacher.logits(states)),
                        net.filling(reading, masked), row.tokens[masked], told)  # fmt: skip
        far, text = pair.mean(0) if len(pair) else torch.zeros(2)
        share = weight(progress, self._first, self._last)
        return share * far + (1 - share) * text + self._ar * following_loss(net, reading, row, block, self.keep)

    def _pair(self, logits: Tensor, target: Tensor, told: Tensor) -> Tensor:
        """[n, 2]: T²KL(teacher | student), and nats of the text."""
        t = self._temperature
        logs, other = functional.log_softmax(logits / t, -1), functional.log_softmax(told.detach() / t, -1)
        far = (other.exp() * (other - logs)).sum(-1) * t * t
        return torch.stack([far, cross_entropy(logits, target)], -1)


def weight(progress: float, first: float, last: float) -> float:
    """λ: steady for a tenth of the training, then half a cosine. 0.9 to 0.5: 0.9 at 0.1, 0.7 at 0.55, 0.5 at 1."""
    done = max(0.0, (progress - _STEADY) / (1 - _STEADY))
    return first + (last - first) * (1 - cos(pi * done)) / 2


def nested(fill: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """The student's masks, and the teacher's, which are some of them."""
    places = fill.nonzero()[:, 0]
    n = len(places)
    student = draws.whole.uniform(0.4, 0.9)
    teacher = min(0.6, max(0.1, student * draws.whole.uniform(0.3, 0.7)))
    student = min(student, 0.5) if n < 20 else student
    most, few = max(int(n * student), 2, ceil(0.1 * n)), int(n * teacher)
    if n <= 10:
        most, few = 2, 1
    order = places[draws.order(n)]
    masked, fewer = torch.zeros_like(fill), torch.zeros_like(fill)
    masked[order[:most]] = True
    fewer[order[: min(few, most)]] = True
    return masked, fewer
