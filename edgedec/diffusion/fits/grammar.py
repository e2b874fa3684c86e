"""A constraint holds though gaps are open: a token is filled if some text of the grammar fits all that is known.

Constrained decoding of diffusion models (after the text of arXiv:2508.10111): a canvas of tokens and gaps is
an automaton, and a token is kept if its intersection with the grammar is not empty, else the next best is tried. A gap
that no single token fills gets the shortest text of the grammar that fits it, with as many tokens as that needs: what
stands behind it moves. Our own: a gap of m masks has m bytes at least; and the text must be able to end
within the tokens that are left, a byte a token, if it could before.

The grammar is that of the constraint (`--grammar`, a JSON schema, …), read again by `edgedec.diffusion.grammars`, as
the matcher of constraints follows texts from the left only; what is not supported there is refused by name.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.config import GenerationConfig
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.fits.fixed import TEXT, TOKENS, FormFit, form_of
from edgedec.diffusion.grammars import GrammarPlace, grammar_of
from edgedec.diffusion.grammars.places import Part, shortest
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seams import Bridge
from edgedec.errors import UsageError

FACTS = MethodFacts(paper="arXiv:2508.10111")
Rest = tuple[list[Part], bool, int]


def make(
    host: DiffusionHost, text: Annotated[str, TEXT] = "", tokens: Annotated[tuple[int, ...], TOKENS] = ()
) -> GrammarFit:
    return GrammarFit(host, form_of(host, text, tokens, "grammar"))


class GrammarFit(FormFit):
    """`_place`: after the tokens that were delivered; `_timely`: whether the canvas can end in time as it
    is; `_before`: the place before the position that candidates were found for last."""

    _place: GrammarPlace
    _timely = False
    _before: GrammarPlace | None = None

    def __init__(self, host: DiffusionHost, form: tuple[int, ...]) -> None:
        super().__init__(form, host.facts.mask)
        self._bytes = host.token_bytes()

    def begin(self, config: GenerationConfig, ends: frozenset[int]) -> GenerationConfig:
        """The settings without the constraint, which this follows instead."""
        if config.constraint is None:
            raise UsageError(
                "--diffusion fits=grammar: needs a constraint: a grammar, a JSON schema, a pattern, choices"
            )
        self._ends, self._place = ends, GrammarPlace.start(grammar_of(config.constraint, self._bytes.alphabet))
        if self.form:
            start = len(self.form)
            parts, _, _ = self._rest(Canvas(self.masked(self.form, self._mask), self._mask, last=start), 0)
            if (end := self._place.after(parts)) is None or not end.accepts:
                raise UsageError("--diffusion fits=grammar: no text of the constraint has this form")
        return replace(config, constraint=None)

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self._place.done

    def accept(self, token: int) -> None:
        after = self._place.after([self._bytes.of[token]])
        assert after is not None
        self._place = after

    def candidates(self, canvas: Canvas, front: int, position: int, size: int) -> NDArray[np.bool_]:
        """The tokens whose first byte may stand there, and those that end the text if it may end there."""
        if self._over(canvas, front, position):
            return super().candidates(canvas, front, position, size)
        left, found = self._left(canvas, front, position), np.zeros(size, bool)
        parts, whole, room = self._rest(canvas, front)
        end = None if whole or room < 0 else self._place.after(parts)
        self._timely = end is not None and end.need <= room
        self._before = left
        if left is not None:
            allowed = np.array([left.allowed >> value & 1 for value in range(256)] + [0], bool)
            first = self._bytes.first
            found[: len(first)] = allowed[first]
            found[list(self._ends)] = left.accepts and not canvas.last
        return found

    def fits(self, canvas: Canvas, front: int, position: int, token: int) -> bool:
        if token in self._ends or self._over(canvas, front, position):
            return True
        after = None if self._before is None else self._before.after([self._bytes.of[token]])
        return after is not None and self._completes(canvas, position + 1, after)

    def bridge(self, canvas: Canvas, front: int) -> Bridge:
        """The first gap, and the tokens of the shortest text that fits it."""
        begin = next(at for at in range(front, len(canvas.tokens)) if not canvas.known(at))
        end = next((at for at in range(begin, len(canvas.tokens)) if canvas.known(at)), canvas.last)
        left = self._left(canvas, front, begin)
        ends = partial(self._completes, canvas, end) if end else _accepts
        data = None if left is None else shortest(left, ends)
        found = None if data is None else self._bytes.spell(data)
        if found is None:
            raise UsageError("--diffusion fits=grammar: no token of this vocabulary goes on as the grammar wants")
        return Bridge(begin, end or min(begin + len(found), len(canvas.tokens)), tuple(found))

    def _over(self, canvas: Canvas, front: int, position: int) -> bool:
        """Whether the text ends before a position, so that what stands there is not of it."""
        return not self._ends.isdisjoint(canvas.tokens[front:position])

    def _left(self, canvas: Canvas, front: int, position: int) -> GrammarPlace | None:
        """The place before a position."""
        parts, _, _ = self._rest(Canvas(canvas.tokens[:position], canvas.mask, last=position), front)
        return self._place.after(parts)

    def _completes(self, canvas: Canvas, begin: int, place: GrammarPlace) -> bool:
        """Whether a text goes on from a place as the canvas does from a position."""
        parts, whole, left = self._rest(canvas, begin)
        after = place.after(parts)
        if after is None or whole:
            return after is not None and after.accepts
        return not self._timely or after.need <= left

    def _rest(self, canvas: Canvas, begin: int) -> Rest:
        """What is known from a position on, up to the first end token; whether the text ends there; the tokens that may
        follow, -1: any number. A gap behind all that is known may be of any length."""
        parts, gap = list[Part](), 0
        limit = canvas.last or len(canvas.tokens)
        most = canvas.prompt + canvas.budget if canvas.budget else -1
        known = begin
        for at in range(begin, min(limit, len(canvas.tokens))):
            token = canvas.tokens[at]
            if token == canvas.mask:
                gap += 1
                continue
            parts += [gap] if gap else []
            gap, known = 0, at + 1
            if token in self._ends:
                return parts, True, 0
            parts.append(self._bytes.of[token])
        if canvas.last:
            return [*parts, gap] if gap else parts, True, 0
        return parts, False, -1 if most < 0 else max(most - known, 0)


def _accepts(place: GrammarPlace) -> bool:
    return place.accepts
