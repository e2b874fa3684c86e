"""How well embeddings find the text that a sentence was taken from."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

_ENDS = re.compile(r"(?<=[.!?])\s+")


class Retrieval(NamedTuple):
    """Of `texts` texts: how often the right one came first, and the mean of 1 / its rank."""

    texts: int
    first: float
    mrr: float


def questions(texts: Sequence[str], seed: int) -> list[tuple[str, str]]:
    """Of each text of three sentences or more: one of them, and the text without it."""
    draw, found = random.Random(seed), []
    for text in texts:
        parts = [part for part in _ENDS.split(text) if part.strip()]
        if len(parts) > 2:
            asked = parts.pop(draw.randrange(len(parts)))
            found.append((asked, " ".join(parts)))
    return found


def retrieval(asked: Tensor, held: Tensor) -> Retrieval:
    """Vectors [n, width] of sentences and of their texts. A text as near as the right one counts before it."""
    scores = asked @ held.T
    ranks = (scores >= scores.diag()[:, None]).sum(1).double()
    return Retrieval(len(ranks), float((ranks == 1).double().mean()), float((1 / ranks).mean()))
