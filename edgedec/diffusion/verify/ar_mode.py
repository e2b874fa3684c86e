"""Self-speculation: the model as an autoregressive one verifies what it filled as a diffusion model.

S2D2 (after its public code). A pass drafts the first run of masked positions; the same model with blocks of
one token, which reads a chain of the drafts, says how likely each is: a draft is accepted with probability
min(1, q / p), and at the first that is not, a token is drawn from the positive part of q - p, and the run ends. So
every verified token has the law of blocks of one token, whatever was drafted: greedy and always on, the text is that of
`blocks=fixed:size=1` (not that of `schedule=static`), and in one call for several tokens.

A model with shift predicts by the row of the token before; one without by a masked row after each draft (chain and
masks are one call). Whether a run is worth a verifying call, `route` says: always; `span`, if it has so many positions;
`score`, if the drafts expected to be accepted, sum over k of the product of alpha to k with alpha = exp(-H / log V),
exceed the call's `cost` by `least`; `hysteresis`, from a score of `on` until it falls below `off`. Else the schedule
fills. Lossy beside a schedule only where it is not always on.
"""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from edgedec.decoding.messages import Token
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost, MethodFacts
from edgedec.diffusion.seams import PassPlan
from edgedec.diffusion.seen import Line, SeenBlock, see
from edgedec.diffusion.verify.none import PassByPass
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Rows
from edgedec.sampling import Probs, draw_at
from edgedec.sampling.distributions import residual

if TYPE_CHECKING:
    from edgedec.diffusion.loop import DiffusionText

FACTS = MethodFacts(contexts=("causal", "block"), entropy=True, needs="keep=block", final=True, paper="S2D2")
Route = Literal["always", "span", "score", "hysteresis"]


def make(
    host: DiffusionHost,
    route: Annotated[Route, Opt("Which runs of drafts are verified.")] = "score",
    span: Annotated[int, Opt("route=span: the fewest positions of a run.", 1)] = 8,
    cost: Annotated[float, Opt("The cost of a verifying call, in tokens.", 0)] = 1.0,
    least: Annotated[float, Opt("route=score: the gain from which a run is verified.")] = 0.0,
    on: Annotated[float, Opt("route=hysteresis: the gain that begins verification.")] = 1.0,
    off: Annotated[float, Opt("route=hysteresis: the gain below which it ends.")] = -5.0,
) -> ArMode:
    if on < off:
        raise UsageError(f"--diffusion verify ar_mode: on={on:g}: must be at least off={off:g}")
    size, most = host.facts.block, host.capabilities.largest_call
    if 2 * size > most:
        raise UsageError(f"--diffusion verify ar_mode: blocks of {size} make {2 * size} rows, and a call takes {most}")
    return ArMode(host, route, span, cost, least, (on, off))


class ArMode(PassByPass):
    def __init__(
        self, host: DiffusionHost, route: Route, span: int, cost: float, least: float, turns: tuple[float, float]
    ) -> None:
        self._shift, self._mask = host.facts.shift, host.facts.mask
        self._route, self._span, self._cost, self._least, self._turns = route, span, cost, least, turns
        self._on = False

    def passes(self, text: DiffusionText) -> Generator[Any, Any, None]:
        # What depends on the text before, or is tested, is filled from one prediction at a time.
        if text.picker.in_order or text.methods.fits.strict:
            yield from super().passes(text)
            return
        while text.open:
            lines = yield from text.run()
            seen = text.see(lines)
            run = _first_run(seen.positions.tolist())
            if self._worth(seen, len(run), text.picker.vocab):
                yield from self._verified(text, seen, lines, run)
            else:
                yield from text.fill(lines, seen)
            yield from text.deliver()

    def _worth(self, seen: SeenBlock, size: int, vocab: int) -> bool:
        """Whether a run of drafts is verified."""
        if self._route == "always":
            return True
        if self._route == "span":
            return size >= self._span
        gain = expected(seen, size, vocab) - self._cost
        if self._route == "score":
            return gain >= self._least
        self._on = gain >= self._turns[int(self._on)]
        return self._on

    def _verified(
        self, text: DiffusionText, seen: SeenBlock, lines: dict[int, Line], run: list[int]
    ) -> Generator[Any, Any, None]:
        """Draft a run of positions, verify it, and fill what was accepted and one more."""
        drafts = [_Draft.of(text, seen, lines[position], position) for position in run]
        judges = yield from self._judges(text, [draft.token for draft in drafts], run, lines[run[0]])
        for draft, position, judge in zip(drafts, run, judges, strict=True):
            token, accepted = draft.judged(text, judge)
            text.put(position, Token(token, *text.picker.chooser.logprobs(judge.result, judge.at, token)))
            if not accepted:
                break
        text.passed(seen)

    def _judges(
        self, text: DiffusionText, drafts: list[int], run: list[int], first: Line
    ) -> Generator[Any, Any, list[Line]]:
        """For each position of a run the row that predicts it from known tokens and the drafts before it alone."""
        canvas, known = text.canvas, run[0] - text.context.cache.length
        own = [first] if self._shift and not known else []  # that row sees nothing of the block
        if len(own) == len(run):
            return own
        plan = _plan(canvas, known, drafts[:-1], 0 if self._shift else len(run))
        began = perf_counter()
        done = yield from text.call(plan)
        text.count(perf_counter() - began, done.seconds)
        return [*own, *(Line(done.result, at) for at in range(len(run) - len(own)))]


class _Draft:
    """A drafted token, with the distribution that it was drawn from, None if it is the best one."""

    def __init__(self, token: int, p: Probs | None) -> None:
        self.token, self.p = token, p

    @classmethod
    def of(cls, text: DiffusionText, seen: SeenBlock, line: Line, position: int) -> _Draft:
        if text.picker.plain:
            return cls(int(seen.tokens[np.searchsorted(seen.positions, position), 0]), None)
        p = text.picker.distribution(line)
        return cls(draw_at(p, text.context.rng.random()), p)

    def judged(self, text: DiffusionText, judge: Line) -> tuple[int, bool]:
        """The token of the position by the verifying row, and whether it is the drafted one."""
        if self.p is None:
            best = int(see({0: judge}, text.canvas.mask, False, None).tokens[0, 0])
            return best, best == self.token
        q, rng = text.picker.distribution(judge), text.context.rng
        if rng.random() * self.p.of(self.token) < q.of(self.token):
            return self.token, True
        return draw_at(residual(q, self.p), rng.random()), False


def expected(seen: SeenBlock, size: int, vocab: int) -> float:
    """The drafts of a run that are expected to be accepted.

    entropies 0 and log(V) / 2 -> alpha 1 and 0.61, so 1 + 0.61
    """
    assert seen.entropy is not None
    return float(np.cumprod(np.exp(-seen.entropy[:size] / np.log(vocab))).sum())


def _first_run(positions: list[int]) -> list[int]:
    """Positions without a gap, from the first on."""
    return [position for at, position in enumerate(positions) if position == positions[0] + at]


def _plan(canvas: Canvas, known: int, drafts: list[int], masks: int) -> PassPlan:
    """A chain of what is known of the block and the drafts, and so many masked rows, each after a token of it.

    one known token a, drafts b c, and three masks: a b c M M M -> parents -1 0 1 0 1 2, positions 0 1 2 1 2 3
    """
    start = canvas.start
    tokens, chain = [*canvas.tokens[start : start + known], *drafts], known + len(drafts)
    parents = [*range(-1, chain - 1), *range(known - 1, known - 1 + masks)]
    positions = [*range(start, start + chain), *range(start + known, start + known + masks)]
    rows = Rows(np.array([*tokens, *[canvas.mask] * masks]), np.array(positions), np.array(parents))
    first = chain if masks else max(known - 1, 0)
    return PassPlan(rows, (), first, tuple(positions[first:]))
