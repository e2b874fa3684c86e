"""The text ends at its first end token, once everything before it is filled."""

from __future__ import annotations

from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts

FACTS = MethodFacts(exact=True)


def make(host: DiffusionHost) -> First:
    return First()


class First:
    def factor(self, canvas: Canvas) -> float:
        return 1.0

    def cuts(self, canvas: Canvas, position: int) -> bool:
        return False
