"""Fills the positions that a schedule chose, each with a token that may stand there."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedec.decoding.logits import MaskPending
from edgedec.decoding.messages import Token, Waiting
from edgedec.diffusion.editing import replacements
from edgedec.diffusion.seams import Bridge
from edgedec.diffusion.seen import Line, SeenBlock
from edgedec.runtime import CallResult

if TYPE_CHECKING:
    from edgedec.diffusion.loop import DiffusionText

# Tokens that are tested at a position behind the first masked one.
_TRIES = 32


def fill(text: DiffusionText, lines: dict[int, Line], seen: SeenBlock | None = None) -> Generator[Waiting]:
    """Fill the positions that the schedule chooses, with tokens that fit, and replace filled ones. seen: what
    `DiffusionText.see` said of the lines."""
    canvas = text.canvas
    masked = {position: line for position, line in lines.items() if not canvas.known(position)}
    replaced = replacements(text, {position: lines[position] for position in lines if position not in masked})
    if masked:
        seen = text.see(masked) if seen is None else seen
        filled = yield from _filled(text, masked, seen)
        if filled:
            canvas.least = float(seen.sure[np.isin(seen.positions, filled)].min())
        text.passed(seen)
    for position, token in replaced.items():
        text.put(position, token)
    text.edits.passed(canvas, bool(masked), bool(replaced))


def _filled(text: DiffusionText, lines: dict[int, Line], seen: SeenBlock) -> Generator[Waiting, Any, list[int]]:
    """Fill the positions that the schedule chooses, and return them. Where no token fits one of them, it is left for a
    later pass; where none fits any, the first masked position is tried, and at last the first gap is bridged."""
    canvas, methods, filled = text.canvas, text.methods, list[int]()
    masked, best = seen.positions.tolist(), dict(zip(seen.positions.tolist(), seen.tokens[:, 0].tolist(), strict=True))
    chosen = text.picker.allowed(text.chosen(seen), masked)
    for position in chosen if masked[0] in chosen else [*chosen, masked[0]]:
        if filled and position not in chosen:
            break
        token = yield from _fitting(text, lines[position], best[position], position)
        if token is None:
            if text.picker.in_order:
                break
            continue
        text.put(position, token)
        filled.append(position)
        if int(token) in text.ends and methods.ends.cuts(canvas, position):
            canvas.cut(position + 1)
            break
    if not filled:
        _bridge(text, methods.fits.bridge(canvas, len(text.context.ids)))
    return filled


def _bridge(text: DiffusionText, bridge: Bridge) -> None:
    """Put the tokens of a bridge into a gap; what is behind it may move."""
    begin, end, tokens = bridge
    moved = text.canvas.replace(begin, end, tokens)
    text.made = {i + moved if i >= end else i: token for i, token in text.made.items()}
    text.made |= {begin + i: Token(token) for i, token in enumerate(tokens)}
    text.counts.filled += len(tokens)
    text.tape.moved(bridge)
    if text.facts.context == "full":
        text.context.cache.truncate(0)


def _fitting(text: DiffusionText, line: Line, best: int, position: int) -> Generator[Waiting, Any, Token | None]:
    """The token of a row; with a rule that tests tokens the first that fits, in the order in which they are chosen;
    None if none of the first few does. At the first masked position all are tested."""
    canvas, fits, n = text.canvas, text.methods.fits, len(text.context.ids)
    path = canvas.tokens[n:position]
    if not fits.strict:
        return (yield from _pick(text, line, best, path))
    assert line.result.logits is not None
    logits = line.result.logits[line.at].copy()
    logits[~fits.candidates(canvas, n, position, len(logits))] = -np.inf
    tries = len(logits) if position == canvas.masked()[0] else _TRIES
    while tries and logits.max() > -np.inf:
        row = Line(CallResult(logits=logits[None]), 0)
        token = yield from _pick(text, row, int(logits.argmax()), path)
        if fits.fits(canvas, n, position, int(token)):
            return text.picker.with_logprobs(token, line)
        logits[int(token)], tries = -np.inf, tries - 1
    return None


def _pick(text: DiffusionText, line: Line, best: int, path: list[int]) -> Generator[Waiting, Any, Token]:
    """The token of a row, once the constraint's mask is computed."""
    context = text.context
    while True:
        state = context.rng.bit_generator.state
        try:
            return text.picker.pick(line, best, path)
        except MaskPending:
            context.rng.bit_generator.state = state
            yield Waiting(context.hooks.ready)
