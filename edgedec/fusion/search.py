"""Contrastive search: of the likeliest tokens, one whose state is unlike those of the text so far (lossy).

Su et al. 2022, arXiv:2202.06417. The rule rests on transformers' code (`penalty_alpha` and `top_k` of its generate): of
the `top_k` likeliest tokens v that of the largest (1 - alpha) p(v) - alpha max_j cos(h_v, h_j), where h are the states
after the last norm, of v run after the text, and of every token of the text. Made for a temperature of 0. The text is
read a second time, for its states, and each token costs `top_k` rows more; no drafts are used. alpha 0 is plain
decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.gathering import Gathering, GatheringStep
from edgedec.drafters._heads.states import LastNorm
from edgedec.errors import RuntimeUnavailable
from edgedec.fusion._base import OfCandidates, likeliest, log_softmax
from edgedec.fusion._companion import Companion
from edgedec.fusion._facts import FusionFacts
from edgedec.fusion._source import Source
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.runtime import CallResult, Hidden, Outputs

FACTS = FusionFacts(paper="arXiv:2202.06417", rests="transformers' code")
Units = NDArray[np.float32]


def make(
    host: OpenedModel,
    alpha: Annotated[float, Opt("How much likeness to the text counts against a token; 0: not at all.", 0, 1)] = 0.6,
    top_k: Annotated[int, Opt("Candidates.", 1, 64)] = 4,
) -> Unlike:
    if not host.runtime.capabilities.hidden:
        raise RuntimeUnavailable(f"fuse search: the engine {host.runtime.name} returns no states; use --engine native")
    companion = Companion(Source(host.runtime, extra=top_k), "fuse search")
    return Unlike(companion, alpha, top_k, host.spec.n_blocks - 1, LastNorm(host.bundle))


class Unlike(OfCandidates):
    """last: the block whose states count, after `norm`."""

    def __init__(
        self, companion: Companion, alpha: float, top_k: int, last: int, norm: Callable[[Hidden], Hidden]
    ) -> None:
        super().__init__(companion)
        self._alpha, self._k, self._last, self._norm = alpha, top_k, last, norm
        self._states: Units = np.zeros((0, 0), np.float32)
        self.idle = alpha == 0

    def gather(self, step: GatheringStep) -> Gathering:
        """Read what is new of the text, then run the candidates below it."""
        if self.idle:
            return
        wanted = Outputs(hidden=(self._last,))
        yield from self.companion.read(step, wanted, self._keep)
        assert step.logits is not None
        tokens = likeliest(step.logits[0], self._k)
        p = np.exp(log_softmax(step.logits[0]))[tokens]
        result = yield from self.companion.grow(tokens, [-1] * len(tokens), wanted, step.context)
        like = (self._units(result) @ self._states.T).max(axis=1)
        self.choose(tokens, (1 - self._alpha) * p - self._alpha * like)

    def _keep(self, start: int, result: CallResult) -> None:
        """The states of tokens of the text from a place on."""
        new = self._units(result)
        self._states = np.concatenate([self._states[:start], new]) if start else new

    def _units(self, result: CallResult) -> Units:
        """States of length 1."""
        states = self._norm(result.hidden[self._last])
        found: Units = states / np.linalg.norm(states, axis=1, keepdims=True)
        return found
