"""Contrastive decoding: what the model says more than a weaker one, adapter or prompt does (lossy).

Li et al. 2022, arXiv:2210.15097; the form with a weight is O'Brien and Lewis 2023, arXiv:2309.09117, and rests on its
text: tokens below `alpha` of the likeliest one's probability are left out; of the others the logits are
(1 + weight) z - weight z'. With a prompt in place of the weaker model this is context-aware decoding (Shi et al. 2023,
arXiv:2305.14739), there with alpha 0. Log-probabilities stand for logits: that adds a constant to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from edgedec.decoding.logits import Early
from edgedec.errors import UsageError
from edgedec.fusion._base import WithCompanion, log_softmax, mixed
from edgedec.fusion._companion import Companion
from edgedec.fusion._facts import FusionFacts
from edgedec.fusion._source import source_of
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.sampling import Logits

FACTS = FusionFacts(paper="arXiv:2309.09117", rests="the paper's text")


def make(
    host: OpenedModel,
    bundle: Annotated[str, Opt("A weaker model with the same tokens.")] = "",
    adapter: Annotated[str, Opt("A weaker adapter: a file, or none for the model without one.")] = "",
    prompt: Annotated[str, Opt("A weaker prompt.")] = "",
    weight: Annotated[float, Opt("How much of the weaker one is subtracted; 0: nothing.", 0)] = 0.5,
    alpha: Annotated[
        float, Opt("Tokens below this share of the likeliest one's probability are left out; 0: none.", 0, 1)
    ] = 0.1,
    temperature: Annotated[float, Opt("Of the weaker one.", above=0)] = 1.0,
) -> Contrast:
    if not (bundle or adapter or prompt):
        raise UsageError("fuse contrast: needs bundle=, adapter= or prompt=: what to contrast with")
    source = source_of(host, "fuse contrast", bundle, adapter, prompt)
    return Contrast(Companion(source, "fuse contrast"), weight, alpha, temperature)


class Contrast(WithCompanion):
    """Worked example, p .5 .45 .05, p' .8 .1 .1, weight 1, alpha .2: log .25/.8, log .2025/.1, -; the second wins"""

    def __init__(self, companion: Companion, weight: float, alpha: float, temperature: float) -> None:
        super().__init__(companion)
        self._weight, self._alpha, self._temperature = weight, alpha, temperature
        self.idle = weight == 0 and alpha == 0

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        if self.idle:
            return logits
        own, other = log_softmax(logits), log_softmax(self.companion.logits(path), self._temperature)
        found = mixed(own, other, 1 + self._weight, -self._weight)
        if self._alpha > 0:
            found[own < own.max() + np.log(self._alpha)] = -np.inf
        return found
