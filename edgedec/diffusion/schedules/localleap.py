"""Anchors: near a position that is very sure, less suffices.

LocalLeap (after its public code): positions of at least 0.9 are anchors; within 4 positions of one, 0.75
suffices; else the surest position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seen import SeenBlock
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="LocalLeap")


def make(
    host: DiffusionHost,
    anchor: Annotated[float, Opt("Probability of an anchor.", 0, 1)] = 0.9,
    near: Annotated[float, Opt("Probability that suffices near one.", 0, 1)] = 0.75,
    radius: Annotated[int, Opt("Positions to each side that are near.", 0)] = 4,
) -> LocalLeap:
    return LocalLeap(anchor, near, radius)


class LocalLeap:
    def __init__(self, anchor: float, near: float, radius: int) -> None:
        self._anchor, self._near, self._radius = anchor, near, radius

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        anchors = seen.sure >= self._anchor
        far = np.abs(seen.positions[:, None] - seen.positions[anchors][None, :])
        close = (far <= self._radius).any(axis=1)
        return seen.where(anchors | (close & (seen.sure >= self._near)))
