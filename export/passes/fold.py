"""The weights of norms are multiplied into the matrices that read them; the norms become ones.

An equivalent model: rms norms (and layer norms without bias) are scaled by their weight before every matrix that reads
them, so the weight may as well be in that matrix. Blocks of weights then have the scale of what they multiply, which
nearest rounding and AWQ see; GPTQ knows the inputs anyhow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._scaled import Scaled, readers
from edgedec.export.passes._statistics import Statistics

FACTS = PassFacts("equivalents")


def make(host: PassContext) -> Fold:
    return Fold(host)


@dataclass(frozen=True)
class Fold:
    """The pass."""

    host: PassContext

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        scaled, spec = Scaled(model.read), model.spec
        for norm, matrices in readers(spec).items():
            if self.host.fixed & set(matrices):
                continue
            weight = model.read(norm, 0, spec.hidden_size).astype(np.float64)
            scaled.set(norm, np.ones(len(weight)))
            for name in matrices:
                scaled.columns(name, weight)
        return replace(model, read=scaled.read)
