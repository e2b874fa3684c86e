"""Drops rows of images from upper layers and cache; rows of text stay (MustDrop, Dynamic-LLaVA).

An image is hundreds of rows, of which few matter. Three places, each by itself:

    encoding   neighbours that are alike become one row (`merge_neighbours`), before any block runs
    prefill    above `layer` only the image rows go on that the text after them looks at (`read_rows`): the share `rate`
    decoding   of the image rows cached, the share `budget` stays; with `text` below 1 also of the text, every `every`

`mark` sets an image's rows, by their positions; they may be given as embeddings (`Rows.embedded`). Without a mark
nothing is dropped, so that a text without images has no use for it: `make` refuses unless `PolicyHost.images`.

From the abstracts of MustDrop (Liu et al. 2024) and Dynamic-LLaVA (Huang et al. 2025): the three places and what guides
each. MustDrop's set of key rows that are never dropped, and Dynamic-LLaVA's trained predictors, are left out.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost, PolicyState, TextSize
from edgedec.policies._admission import whole_peak
from edgedec.policies._budget import LEAST, CacheBudget, Floats, Ints, dropped, pooled
from edgedec.policies._eviction import Eviction, Looks, looks_of
from edgedec.policies._images import Marks, check_images, marked, marks_state, of_images, restored_marks
from edgedec.policies._options import Every, Observe, Window
from edgedec.policies._pruned import Stage
from edgedec.runtime import Adapter, Call, Hidden, Rows

_DEPTH = 0.25

FACTS = PolicyFacts(
    ("drop", "attention_sums", "slices", "selections", "hidden", "embeddings"),
    kinds=("attention", "mlp", "moe"),
    paper="MustDrop; Dynamic-LLaVA",
)


def make(
    host: PolicyHost,
    budget: Annotated[float, Opt("Share of the image rows that stays cached.", above=0, high=1)] = 0.2,
    rate: Annotated[float, Opt("Share of them that goes through the upper layers.", above=0, high=1)] = 0.5,
    text: Annotated[float, Opt("Share of the text that stays; 1: it is not pruned.", above=0, high=1)] = 1.0,
    layer: Annotated[int, Opt("Layers that all rows go through; 0: a quarter.", 0)] = 0,
    window: Window = 16,
    every: Every = 0,
    observe: Observe = 8,
) -> Vision:
    check_images("vision", host.images)
    looks = looks_of("vision", Looks(window, every, observe))
    layers = host.spec.n_layers
    layer = layer or max(1, round(_DEPTH * layers))
    if not layer < layers:
        raise UsageError(f"--cache vision: layer={layer}: must be from 1 to {layers - 1}")
    return Vision(host, CacheBudget(budget), rate, text, layer, looks)


class Vision(Eviction):
    def __init__(
        self, host: PolicyHost, budget: CacheBudget, rate: float, text: float, layer: int, looks: Looks
    ) -> None:
        super().__init__(host, budget, looks)
        self._rate, self._text, self._cut = rate, text, host.spec.span(0, layer)[-1] + 1
        self._images: Marks = ()

    def mark(self, start: int, stop: int) -> None:
        """Mark the rows at positions from `start` to before `stop` as an image."""
        self._images = marked("vision", self._images, start, stop)

    def read_rows(
        self, cache: Cache, rows: Rows, most: int, adapter: Adapter | None = None
    ) -> Generator[Call, Any, None]:
        """Read a prompt given as rows, fewer of them above the layer; commits them and decides."""
        n, image = len(rows), of_images(self._images, rows.positions)
        keep = n - int(image.sum()) + int(np.ceil(self._rate * image.sum()))
        lower = Stage(range(self._cut), rows, None)
        yield from lower.run(cache, most, self.window, True, adapter)
        assert lower.last is not None
        paid = pooled(lower.last.attention[max(lower.last.attention)], 1)[-n:]
        gone = dropped(np.where(image, paid, np.inf).astype(np.float32), keep, 0, 0)
        upper = lower.above(range(self._cut, self.spec.n_blocks), np.setdiff1d(np.arange(n), gone))
        yield from upper.run(cache, most, self.window, False, adapter)
        cache.commit(range(n))
        for stage in (lower, upper):
            assert stage.last is not None
            self.read(cache, stage.last)
        self.decide(cache)

    def decide(self, cache: Cache) -> None:
        for b in self.spec.attention:
            image = of_images(self._images, cache.positions(b))
            total = sum(min(stop, cache.length) - start for start, stop in self._images if start < cache.length)
            scores, gone = self.score(cache, b), [self._least(b, cache, image, self.budget.value * total, 0)]
            if self._text < 1:
                gone.append(self._least(b, cache, ~image, self._text * (cache.length - total), self.window))
            drop = np.unique(np.concatenate(gone))
            if len(drop):
                cache.drop(b, drop)
                self._scores[b] = np.delete(scores, drop)
        self.decided()

    def peak(self, text: TextSize) -> int:
        return whole_peak(text)

    def _least(self, block: int, cache: Cache, these: NDArray[np.bool_], keep: float, recent: int) -> Ints:
        """The slots to drop of these so that `keep` stay."""
        at = np.flatnonzero(these)
        return at[dropped(self.score(cache, block)[at], max(LEAST, int(np.ceil(keep))), 0, recent)]

    def reset(self) -> None:
        super().reset()
        self._images = ()

    def state(self) -> PolicyState:
        return {**super().state(), **marks_state(self._images)}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        marks, rest = restored_marks("vision", state)
        super().restore(rest, cache)
        self._images = marks


def merge_neighbours(embeddings: Hidden, alike: float) -> tuple[Hidden, Floats]:
    """Rows of an image, each run of neighbours whose cosine to the one before is at least `alike` as its mean; and how
    many rows each stands for.

    a a b b b c, alike 0.9 -> a b c, 2 3 1
    """
    norms = np.linalg.norm(embeddings, axis=1)
    cosines = (embeddings[1:] * embeddings[:-1]).sum(axis=1) / np.maximum(norms[1:] * norms[:-1], 1e-12)
    starts = np.concatenate([[0], np.flatnonzero(cosines < alike) + 1]) if len(embeddings) else np.zeros(0, np.int64)
    counts = np.diff([*starts, len(embeddings)])
    sums = np.add.reduceat(embeddings, starts, axis=0) if len(starts) else embeddings
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32), counts.astype(np.float32)
