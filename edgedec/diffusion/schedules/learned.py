"""A small trained net says which positions hold their final token already.

Learn2PD (from its public code): a two-layer net takes the probabilities of a block's positions (1 where a
token is known) and gives a logit for each; positions with sigma above 0.96 are filled, and the surest one. It was
trained on runs of the same model, with the label "the best token is the final one" and binary cross-entropy: `python
-m edgedec.bench.fill_schedule` does that. Our own: the net reads log-odds; reading probabilities, which crowd near 1,
it was worse than a threshold. Its end-of-text prediction is `ends=cut`. For a model and the texts that it was trained
on; docs/diffusion.md has what it brings to nano-block.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.errors import UsageError
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="Learn2PD")
Floats = NDArray[np.float64]
_NAMES = "w1", "b1", "w2", "b2"


def make(
    host: DiffusionHost,
    file: Annotated[str, Opt("The trained net, an .npz file of `python -m edgedec.bench.fill_schedule`.")],
    p: Annotated[float, Opt("Value above which a position is filled.", 0, 1)] = 0.96,
) -> LearnedSchedule:
    net = FillNet.load(Path(file))
    if net.size != host.facts.block:
        raise UsageError(
            f"--diffusion schedule learned: file={file}: is for blocks of {net.size}; this model has {host.facts.block}"
        )
    return LearnedSchedule(net, p)


class FillNet:
    """w1 [size, hidden], b1 [hidden], w2 [hidden, size], b2 [size]."""

    def __init__(self, w1: Floats, b1: Floats, w2: Floats, b2: Floats) -> None:
        self.w1, self.b1, self.w2, self.b2 = w1, b1, w2, b2

    @property
    def size(self) -> int:
        """The positions of a block."""
        return len(self.w1)

    def __call__(self, p: Floats) -> Floats:
        """The chance that each position has its final token [n, size], from probabilities [n, size]."""
        logits = np.maximum(log_odds(p) @ self.w1 + self.b1, 0) @ self.w2 + self.b2
        found: Floats = (1 + np.tanh(logits / 2)) / 2
        return found

    @classmethod
    def load(cls, path: Path) -> FillNet:
        """The net of a file; UsageError for anything else."""
        try:
            with np.load(path, allow_pickle=False) as data:
                arrays = [np.asarray(data[name], np.float64) for name in _NAMES]
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise UsageError(
                f"--diffusion schedule learned: file={path}: no such net ({type(error).__name__})"
            ) from None
        w1, b1, w2, b2 = arrays
        fits = (
            w1.ndim == w2.ndim == 2
            and w1.shape == w2.shape[::-1]
            and (b1.shape, b2.shape) == (w2.shape[:1], w1.shape[:1])
        )
        if not fits or not all(np.isfinite(array).all() for array in arrays):
            raise UsageError(f"--diffusion schedule learned: file={path}: its arrays do not fit together")
        return cls(w1, b1, w2, b2)

    def save(self, path: Path) -> None:
        np.savez(path, **{name: getattr(self, name).astype(np.float32) for name in _NAMES})


def log_odds(p: Floats) -> Floats:
    """What the net reads of probabilities: 0.97 and 0.99 are as far apart as 0.5 and 0.75."""
    found: Floats = np.log((p + 1e-4) / (1 - p + 1e-4)) / 4
    return found


def features(seen: SeenBlock, canvas: Canvas, size: int) -> Floats:
    """The probabilities of the first `size` positions of the block [size], 1 where nothing is to be filled."""
    found = np.ones(size)
    at = seen.positions - canvas.start
    inside = at < size
    found[at[inside]] = seen.sure[inside]
    return found


class LearnedSchedule:
    def __init__(self, net: FillNet, p: float) -> None:
        self._net, self._p = net, p

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        size = self._net.size
        final = self._net(features(seen, canvas, size)[None])[0]
        at = seen.positions - canvas.start
        chosen = [int(i) for i, k in zip(seen.positions, at, strict=True) if k < size and final[k] > self._p]
        return sorted({*chosen, *seen.surest()})
