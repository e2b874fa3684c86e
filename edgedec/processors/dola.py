"""Contrast between layers (DoLa): what the late layers of the model add to an early one decides the token.

Chuang et al. 2023, arXiv:2309.03883. By default the candidates are those of the paper's lower bucket: the layers of
even number in the first half of the model, of its first 20 layers if it is deeper than 40. The paper chooses the bucket
on a few examples of a task; the lower one was best for reasoning. Layer 0 there, the embedding, is left out: models
that tie it to their head have no contrast in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.logits import BaseProcessor
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.processors._facts import ProcessorFacts
from edgedec.sampling import Logits

FACTS = ProcessorFacts(lossy=True, layers=True, paper="arXiv:2309.03883")
Logprobs = NDArray[np.float64]
# Of layers in one bucket of candidates.
_BUCKET = 20


def make(
    host: OpenedModel,
    early: Annotated[
        tuple[int, ...],
        Opt("Layers to contrast with, counted from 1; by default the even ones of the first half, as in the paper."),
    ] = (),
    share: Annotated[
        float, Opt("Tokens below this share of the likeliest one's probability are left out.", above=0, high=1)
    ] = 0.1,
) -> LayerContrast:
    spec = host.spec
    if spec.n_layers < 2:
        raise UsageError("dola: the model has one layer, and none before it to contrast with")
    layers = early or default_layers(spec.n_layers)
    for layer in layers:
        if not 1 <= layer < spec.n_layers:
            raise UsageError(f"dola: early={layer}: must be from 1 to {spec.n_layers - 1}, below the last layer")
    return LayerContrast([spec.span(layer - 1, layer)[-1] for layer in layers], share)


def default_layers(n: int) -> tuple[int, ...]:
    """The early layers, counted from 1, of a model of n layers.

    >>> default_layers(12), default_layers(3)
    ((2, 4), (1,))
    """
    return tuple(range(2, min(n // 2, _BUCKET), 2)) or (1,)


class LayerContrast(BaseProcessor):
    """What the model learns in its late layers counts: log p of the last layer less log p of an early one.

    Of the early blocks the one whose distribution is farthest from the last one's (Jensen-Shannon) is taken at each
    token. Tokens below `share` of the likeliest one's probability are not considered. The text is another than the
    model's own: this changes the distribution by intent.

    Worked example, p 0.5 0.4 0.1, early 0.5 0.1 0.4, share 0.3:  log p - log early = 0, log 4, -; the second wins
    """

    def __init__(self, early: Sequence[int], share: float = 0.1) -> None:
        if not early or not 0 < share <= 1:
            raise UsageError(f"layer contrast: {list(early)} and share {share}: needs a block and a share from (0, 1]")
        self.early, self._share = tuple(sorted(set(early))), share

    def process(self, logits: Logits, path: Sequence[int], early: Mapping[int, Logits]) -> Logits:
        last = log_softmax(logits)
        others = [log_softmax(early[block]) for block in self.early]
        other = max(others, key=lambda candidate: jensen_shannon(last, candidate))
        with np.errstate(invalid="ignore"):  # -inf less -inf, of what no layer allows
            contrast = np.where(last >= last.max() + np.log(self._share), last - other, -np.inf)
        return contrast.astype(np.float32)


def log_softmax(logits: Logits) -> Logprobs:
    """Log-probabilities, float64. logits [vocab]."""
    x = logits.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    return x


def jensen_shannon(a: Logprobs, b: Logprobs) -> float:
    """The Jensen-Shannon divergence of two distributions given by log-probabilities [vocab]."""
    p, q = np.exp(a), np.exp(b)
    middle = np.log(np.maximum((p + q) / 2, np.finfo(np.float64).tiny))
    with np.errstate(invalid="ignore"):
        parts = np.where(p > 0, p * (a - middle), 0), np.where(q > 0, q * (b - middle), 0)
    return float((parts[0].sum() + parts[1].sum()) / 2)
