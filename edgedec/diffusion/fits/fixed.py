"""The text has a given form: some tokens are given anywhere on the canvas, the others are filled.

Dimple's structure priors (from its public code), which fix tokens of the answer before the first pass. With
`text`, `[[5]]` stands for five tokens that the model fills; with `tokens`, -1 for one. The text ends where its form
does. A model with full context sees all of it at once, others what is in the block that is being filled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.config import GenerationConfig
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.fits.front import Front
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.errors import UsageError
from edgedec.plugins import Opt

FACTS = MethodFacts(paper="Dimple")
TEXT = Opt("The text's form: [[5]] stands for five tokens to fill; quotes around it keep commas.")
TOKENS = Opt("The same as a JSON list of tokens, -1 where one is to be filled.", -1)
_FREE = re.compile(r"\[\[(\d{1,6})\]\]")
# Tokens of a form at most.
_MOST = 1 << 20


def make(
    host: DiffusionHost, text: Annotated[str, TEXT] = "", tokens: Annotated[tuple[int, ...], TOKENS] = ()
) -> FormFit:
    form = form_of(host, text, tokens, "fixed")
    if not form:
        raise UsageError("--diffusion fits=fixed: needs text=… or tokens=…: the form that the text has")
    return FormFit(form, host.facts.mask)


def form_of(host: DiffusionHost, text: str, tokens: Sequence[int], name: str) -> tuple[int, ...]:
    """The token of each position, -1 where any may stand; empty for no form."""
    if text and tokens:
        raise UsageError(f"--diffusion fits={name}: text and tokens are one form; give one of them")
    found = list(tokens)
    for at, part in enumerate(_FREE.split(text)):
        found += [-1] * min(int(part), _MOST) if at % 2 else host.encode(part) if part else []
        if len(found) > _MOST:
            raise UsageError(f"--diffusion fits={name}: a form of more than {_MOST:,} tokens")
    wrong = [token for token in found if token == host.facts.mask or not -1 <= token < host.vocab]
    if wrong:
        raise UsageError(f"--diffusion fits={name}: token {wrong[0]} is no token of a text (-1: one to be filled)")
    return tuple(found)


class FormFit(Front):
    strict = True

    def __init__(self, form: tuple[int, ...], mask: int) -> None:
        self.form, self._mask = form, mask
        self._ends = frozenset[int]()

    def begin(self, config: GenerationConfig, ends: frozenset[int]) -> GenerationConfig:
        self._ends = ends
        return config

    def candidates(self, canvas: Canvas, front: int, position: int, size: int) -> NDArray[np.bool_]:
        """All tokens but those that end a text: its form does."""
        found = np.ones(size, bool)
        found[[self._mask, *self._ends]] = False
        return found
