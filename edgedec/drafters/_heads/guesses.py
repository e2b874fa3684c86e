"""A head's predictions of the next tokens, as tokens of the target."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.drafters import DrafterContext
from edgedec.errors import BundleCorrupt
from edgedec.runtime import CallResult

Tokens = NDArray[np.int32]


def tokens_of(host: DrafterContext, file: str) -> Tokens | None:
    """The target's token of each token of the draft vocabulary; None if they are the same (no file)."""
    if not file:
        return None
    path = host.bundle.file(file)
    found = np.fromfile(path, "<i4")
    if not len(found) or found.min() < 0 or found.max() >= host.runtime.spec.vocab_size:
        raise BundleCorrupt(f"{path}: leads outside the vocabulary of {host.runtime.spec.vocab_size}")
    return found


def guesses(result: CallResult, tokens: Tokens | None) -> tuple[list[list[int]], list[list[float]]]:
    """The target's tokens that may follow each row, with probabilities."""
    assert result.ids is not None
    assert result.scores is not None
    assert result.logsum is not None
    ids = result.ids if tokens is None else tokens[result.ids]
    probs = np.exp(result.scores - result.logsum[:, None])
    probs[result.ids < 0] = 0.0
    return ids.tolist(), probs.tolist()
