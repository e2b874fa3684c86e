"""Several states of a block in one call, each the guess of the one before; exact.

FreeDave (after its public code): one prediction gives the states s_1 … s_d in which its 1 … d surest positions
are filled. All of them run as branches of the next call. s_1 is what one token a pass would have done; s_2 is accepted
if it is what the prediction of s_1 does, and so on; the prediction of the last accepted state begins the next round.
The text is that of `schedule=static`, in fewer passes; each costs the rows of d blocks.
"""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from edgedec.decoding.messages import Token
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seams import PassPlan
from edgedec.diffusion.seen import Line, SeenBlock
from edgedec.diffusion.verify.none import PassByPass
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Rows

if TYPE_CHECKING:
    from edgedec.diffusion.loop import DiffusionText

FACTS = MethodFacts(contexts=("causal", "block"), exact=True, needs="schedule=static", final=True, paper="FreeDave")
# What a pass fills: positions with their tokens.
Fill = dict[int, int]
Lines = dict[int, Line]


def make(host: DiffusionHost, states: Annotated[int, Opt("States of a call.", 2, 64)] = 4) -> Branches:
    size, most = host.facts.block, host.capabilities.largest_call
    if states * size > most:
        raise UsageError(
            f"--diffusion verify branches: states={states}: blocks of {size} make {states * size} rows, and a call "
            f"takes {most}"
        )
    return Branches(host, states)


class Branches(PassByPass):
    def __init__(self, host: DiffusionHost, states: int) -> None:
        self._shift, self._states = int(host.facts.shift), states

    def passes(self, text: DiffusionText) -> Generator[Any, Any, None]:
        # What is drawn or tested cannot be foreseen.
        if not text.picker.plain or text.methods.steps or text.methods.fits.strict:
            yield from super().passes(text)
            return
        lines: Lines = yield from text.run()
        while True:
            fills = self._foreseen(text, text.see(lines))
            if (yield from self._filled(text, fills[:1])):
                return
            lines, accepted = yield from self._verified(text, fills)
            if (yield from self._filled(text, accepted)):
                return

    def _filled(self, text: DiffusionText, fills: list[Fill]) -> Generator[Any, Any, bool]:
        """Fill what so many passes fill, and deliver tokens; whether the block is done."""
        for fill in fills:
            for position, token in fill.items():
                text.put(position, Token(token))
            text.canvas.step += 1
        yield from text.deliver()
        return not text.open

    def _foreseen(self, text: DiffusionText, seen: SeenBlock) -> list[Fill]:
        """What passes would fill if the prediction stayed as it is; the first is certain."""
        cache, canvas, found = text.context.cache, text.canvas, list[Fill]()
        room = (cache.capacity - cache.length) // (canvas.end - canvas.start)
        while len(seen.positions) and len(found) < max(min(self._states, room), 1):
            found.append(_chosen(text, seen))
            seen = seen.only(~np.isin(seen.positions, list(found[-1])))
        return found

    def _verified(self, text: DiffusionText, fills: list[Fill]) -> Generator[Any, Any, tuple[Lines, list[Fill]]]:
        """Run the states; the prediction of the last accepted one, and what is filled besides the first."""
        began, canvas = perf_counter(), text.canvas
        states, accepted, lines = _states(canvas, fills), list[Fill](), Lines()
        done = yield from text.call(_plan(canvas, states))
        text.count(perf_counter() - began, done.seconds)
        for i, state in enumerate(states):
            first = i * len(state) - self._shift
            masked = [at for at, token in enumerate(state) if token == canvas.mask]
            lines = {canvas.start + at: Line(done.result, first + at) for at in masked}
            if i + 1 >= len(fills) or _chosen(text, text.see(lines)) != fills[i + 1]:
                break
            accepted.append(fills[i + 1])
        return lines, accepted


def _chosen(text: DiffusionText, seen: SeenBlock) -> Fill:
    """What a pass fills after a prediction."""
    best = dict(zip(seen.positions.tolist(), seen.tokens[:, 0].tolist(), strict=True))
    return {position: best[position] for position in text.chosen(seen)}


def _states(canvas: Canvas, fills: list[Fill]) -> list[list[int]]:
    """The block after the first fill, which it has already, after two, …; not the one without a mask left."""
    found = [canvas.tokens[canvas.start : canvas.end]]
    for fill in fills[1:]:
        state = [fill.get(canvas.start + at, token) for at, token in enumerate(found[-1])]
        if canvas.mask in state:
            found.append(state)
    return found


def _plan(canvas: Canvas, states: list[list[int]]) -> PassPlan:
    """A group of rows for each state, side by side after the text that is cached.

    two states of three tokens -> parents -1 0 1 -1 3 4, groups 0 0 0 1 1 1
    """
    size, count = canvas.end - canvas.start, len(states)
    at, group = np.arange(size * count), np.repeat(np.arange(count), size)
    rows = Rows(np.array(states).ravel(), at % size + canvas.start, np.where(at % size, at - 1, -1), groups=group)
    return PassPlan(rows, (), 0, tuple(rows.positions.tolist()))
