"""Uncertainty-aware fusion: a second model counts where the first one is unsure (lossy).

UADF (Chen et al. 2024, arXiv:2402.05457), there for a language model that corrects a speech recogniser. The rule rests
on the authors' code: with p the model's distribution at its temperature, H its entropy in nats, and q the second
model's, the token is the largest of p + (sigmoid(H) - 1/2) q, without normalising. Where H is 0 only p counts. Each
model's temperature, from .1 to 10, is such that the mean probability of its likeliest token equals how often that token
is right on held-out text: `edgedec.fusion.calibrated_temperature`. Drawing normalises the sum. weight scales the second
term (ours; 0 is plain decoding).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from edgedec.decoding.logits import Early
from edgedec.errors import UsageError
from edgedec.fusion._base import WithCompanion, log_softmax
from edgedec.fusion._companion import Companion
from edgedec.fusion._facts import FusionFacts
from edgedec.fusion._source import source_of
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.sampling import Logits

FACTS = FusionFacts(paper="arXiv:2402.05457", rests="the authors' code")


def make(
    host: OpenedModel,
    bundle: Annotated[str, Opt("The second model, with the same tokens.")] = "",
    adapter: Annotated[str, Opt("The second adapter: a file, or none for the model without one.")] = "",
    prompt: Annotated[str, Opt("The prompt of the second text.")] = "",
    own: Annotated[float, Opt("The calibrated temperature of the model.", 0.1, 10)] = 1.0,
    other: Annotated[float, Opt("The calibrated temperature of the second one.", 0.1, 10)] = 1.0,
    weight: Annotated[float, Opt("How much the second one counts; 0: not at all.", 0)] = 1.0,
) -> Late:
    if not (bundle or adapter or prompt):
        raise UsageError("fuse late: needs bundle=, adapter= or prompt=: the second one")
    return Late(Companion(source_of(host, "fuse late", bundle, adapter, prompt), "fuse late"), own, other, weight)


class Late(WithCompanion):
    """Worked example, p .5 .5 (H = log 2, sigmoid 2/3), q 0 1:  .5, .5 + 1/6; the second wins"""

    def __init__(self, companion: Companion, own: float, other: float, weight: float) -> None:
        super().__init__(companion)
        self._own, self._other, self._weight, self.idle = own, other, weight, weight == 0

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        if self.idle:
            return logits
        known = log_softmax(logits, self._own)
        p, q = np.exp(known), np.exp(log_softmax(self.companion.logits(path), self._other))
        entropy = -float((p[p > 0] * known[p > 0]).sum())
        unsure = 1 / (1 + np.exp(-entropy)) - 0.5
        with np.errstate(divide="ignore"):
            return np.log(p + self._weight * unsure * q).astype(np.float32)
