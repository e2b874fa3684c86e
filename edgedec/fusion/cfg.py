"""Guidance without a classifier: away from what the model says to another prompt (lossy).

Ho and Salimans 2022, arXiv:2207.12598; for text Sanchez et al. 2023, arXiv:2306.17806. The rule rests on transformers'
`UnbatchedClassifierFreeGuidanceLogitsProcessor`, with which it is compared: with log-probabilities c after the prompt
and u after the other prompt, the logits are u + scale (c - u). Without a negative prompt the other text begins with the
last token of the prompt, as there. Scale 1 is plain decoding, and runs nothing besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from edgedec.decoding.logits import Early
from edgedec.fusion._base import WithCompanion, log_softmax, mixed
from edgedec.fusion._companion import Companion
from edgedec.fusion._facts import FusionFacts
from edgedec.fusion._source import source_of
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.sampling import Logits

FACTS = FusionFacts(paper="arXiv:2306.17806", rests="transformers' code")


def make(
    host: OpenedModel,
    scale: Annotated[float, Opt("How far from the other prompt: 1 is plain decoding.", 0)] = 1.5,
    negative: Annotated[str, Opt("The other prompt; empty: the last token of the prompt.")] = "",
) -> Guidance:
    source = source_of(host, "fuse cfg", prompt=negative)
    return Guidance(Companion(source if negative else replace(source, last=1), "fuse cfg"), scale)


class Guidance(WithCompanion):
    """Worked example, scale 2:  c log .5 log .5, u log .8 log .2 -> u + 2 (c - u) = log .25/.8 and log .25/.2"""

    def __init__(self, companion: Companion, scale: float) -> None:
        super().__init__(companion)
        self._scale, self.idle = scale, scale == 1

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        if self.idle:
            return logits
        s = self._scale
        return mixed(log_softmax(logits), log_softmax(self.companion.logits(path)), s, 1 - s)
