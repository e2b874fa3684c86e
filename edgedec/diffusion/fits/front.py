"""Any token fits; a constraint holds from the left: with one only positions without a gap before them are filled.

A constraint means what it means elsewhere, whatever makes it; several tokens a pass are filled from the front only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.config import GenerationConfig
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seams import Bridge
from edgedec.diffusion.seen import SeenBlock

FACTS = MethodFacts(exact=True)


def make(host: DiffusionHost) -> Front:
    return Front()


class Front:
    """What every way of fitting does unless it does more."""

    strict, form, done, edits = False, tuple[int, ...](), False, -1

    def begin(self, config: GenerationConfig, ends: frozenset[int]) -> GenerationConfig:
        return config

    def candidates(self, canvas: Canvas, front: int, position: int, size: int) -> NDArray[np.bool_]:
        return np.ones(size, bool)

    def fits(self, canvas: Canvas, front: int, position: int, token: int) -> bool:
        return True

    def replaced(self, canvas: Canvas, seen: SeenBlock) -> list[int]:
        return []

    def bridge(self, canvas: Canvas, front: int) -> Bridge:
        return Bridge(front, front, ())

    def accept(self, token: int) -> None:
        """Nothing is followed."""

    @staticmethod
    def masked(form: Sequence[int], mask: int) -> list[int]:
        """The tokens of a form, with the mask where any may stand."""
        return [mask if token < 0 else token for token in form]
