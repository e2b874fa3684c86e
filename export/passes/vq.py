"""A head of few codes: tokens that share a code tie (VQ-Logits); lossy.

Shao and Wang, "VQ-Logits: Compressing the Output Bottleneck of Large Language Models via Vector Quantized Logits";
only a summary of it was at hand: logits = h C^T of the codes, and a token has the logit of its code M(i). There C is
learned in training; here the rows of a trained head are clustered by k-means, which is ours, as is weighing each row by
nothing. They report 99% fewer head weights at 4% more perplexity; after training it costs far more (docs). The head is
stored whole, so this shows what the method does to a model and saves no bytes. `Codes.most` is the exact use of the
same codes: the k largest logits, computing only the rows that a bound cannot exclude, w.h <= c.h + |w - c| |h|.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassFacts, PassModel
from edgedec.export.passes._statistics import Statistics
from edgedec.plugins import Opt
from edgedec.runtimes.reference.numeric import Array

FACTS = PassFacts("structure")
_ROUNDS = 20


def make(
    host: PassContext,
    codes: Annotated[int, Opt("Rows that the head is clustered into.", 1)] = 256,
    seed: Annotated[int, Opt("Of the first codes.", 0)] = 0,
) -> Vq:
    return Vq(host, codes, seed)


@dataclass(frozen=True)
class Vq:
    """The pass with its options."""

    host: PassContext
    codes: int
    seed: int

    def __call__(self, model: PassModel, statistics: Statistics) -> PassModel:
        if model.spec.tied:
            raise UsageError("--passes vq: head and embedding are one matrix; give --head and --embed other formats")
        if "head" in self.host.fixed:
            raise UsageError("--passes vq: the checkpoint's own integers of the head are kept; give --head f16")
        found = clustered(model.read("head", 0, model.spec.vocab_size), self.codes, self.seed)

        def read(name: str, start: int, stop: int) -> Array:
            return found.rows[found.of[start:stop]] if name == "head" else model.read(name, start, stop)

        return replace(model, read=read)


@dataclass(frozen=True)
class Codes:
    """rows [codes, k]; of [n]: the code of each row; far [n]: the row's distance from it."""

    rows: Array
    of: NDArray[np.int64]
    far: Array

    def most(self, head: Array, h: Array, count: int) -> tuple[NDArray[np.int64], int]:
        """The places of the `count` largest of head @ h, largest first, and how many rows of the head were read."""
        bounds = self.rows @ h + self._radius * np.float32(np.linalg.norm(h)) * np.float32(1 + 1e-5)
        best, places, read = np.zeros(0, np.float32), np.zeros(0, np.int64), 0
        for code in np.argsort(-bounds, kind="stable"):
            if len(best) == count and bounds[code] < best[-1]:
                break
            inside = self._members[code]
            read += len(inside)
            best, places = np.concatenate([best, head[inside] @ h]), np.concatenate([places, inside])
            order = np.lexsort((places, -best))[:count]
            best, places = best[order], places[order]
        return places, read

    @cached_property
    def _radius(self) -> Array:
        """Of each code the largest distance of its rows; of one without rows less than any bound."""
        found = np.full(len(self.rows), -np.inf, np.float32)
        np.maximum.at(found, self.of, self.far)
        return found

    @cached_property
    def _members(self) -> list[NDArray[np.int64]]:
        order = np.argsort(self.of, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.of, minlength=len(self.rows)))[:-1])


def clustered(head: Array, count: int, seed: int = 0) -> Codes:
    """k-means of the rows [n, k] (Lloyd's rounds from random rows); at most as many codes as rows."""
    rng, count = np.random.default_rng(seed), min(count, len(head))
    rows = head[np.sort(rng.choice(len(head), count, replace=False))].astype(np.float64)
    of = np.zeros(len(head), np.int64)
    for _ in range(_ROUNDS):
        of = _nearest(head, rows)
        sums = np.zeros_like(rows)
        np.add.at(sums, of, head)
        sizes = np.bincount(of, minlength=count)
        rows = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], rows)
    of = _nearest(head, rows)
    kept = rows.astype(np.float32)
    return Codes(kept, of, np.linalg.norm(head - kept[of], axis=1).astype(np.float32))


def _nearest(head: Array, rows: NDArray[np.float64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = (np.square(rows).sum(axis=1) - 2 * (head @ rows.T)).argmin(axis=1)
    return found
