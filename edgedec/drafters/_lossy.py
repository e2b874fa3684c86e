"""Shared by lossy drafters: other laws in place of the target's distributions, and their report.

A token whose law is replaced is drawn from that law as the target's would be: with penalties, under a constraint, by
the temperature and by the seed's random number. So the text does not depend on how much of it was drafted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgedec.decoding.logits import BaseProcessor, Early
from edgedec.sampling import Logits

Path = tuple[int, ...]


class Replaced(BaseProcessor):
    """The logits of a token: those of `laws`, by the path to it; elsewhere the target's, which are kept in `own`."""

    def __init__(self) -> None:
        self.laws: dict[Path, Logits] = {}
        self.own: dict[Path, Logits] = {}

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        place = tuple(path)
        if place in self.laws:
            return self.laws[place]
        self.own[place] = logits
        return logits

    def clear(self) -> None:
        """Forget the last call."""
        self.laws, self.own = {}, {}


def of_vocabulary(logits: Logits, vocab: int) -> Logits:
    """Logits of a vocabulary of this size: longer ones are cut, tokens that are missing cannot be drawn."""
    found = np.full(vocab, -np.inf, np.float32)
    found[: min(vocab, len(logits))] = logits[:vocab]
    return found


def probability(logits: Logits, token: int) -> float:
    """The probability of a token at temperature 1.

    equal logits of two tokens -> 0.5
    """
    x = logits.astype(np.float64) - float(logits.max())
    return float(np.exp(x[token]) / np.exp(x).sum())


def lossy_report(name: str, why: str, counts: Mapping[str, Any], sizes: Mapping[int, int]) -> dict[str, Any]:
    """A report in the format of a governor's: why the text is another one, figures, and calls by drafted tokens."""
    return {
        "lossy": f"{name}: {why}",
        "sizes": dict(sorted(sizes.items())),
        "silent": 0,
        "drafters": {name: {**counts}},
    }
