"""Drafts with the model's own last call: Jacobi iterations with probabilistic acceptance (SJD), no draft model.

Teng et al. 2024 (rule read in the authors' code, github.com/tyshiwo1/Accelerating-T2I-AR-with-SJD). A window of guesses
follows the text and is run in one call, an iteration. p_j is what iteration j says at a place, given the guesses before
it. A guess that was drawn from p_(j-1) is accepted with min(1, p_j / p_(j-1)); the first one that is not is replaced by
a draw from (p_j - p_(j-1))+, which the text keeps; all places after it are drawn anew from p_j and are tested by the
next call. Places that are new to the window get a guess of any kind, here a random token or the one to its left: it
counts as drawn from a law that is sure of it, so it passes with its plain probability. The distribution is kept
exactly.

    text a b │ c d e      one call says p(.|b) p(.|bc) p(.|bcd) p(.|bcde)
             │ ok no        c stands, d does not: x comes from the residual, e from p(.|bcd), a fresh guess after it
    text a b c x │ e' f

Both laws are those of the settings (penalties, temperature, cuts). Greedily it is Jacobi decoding: a guess stands if it
is the likeliest token.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts, Sampled
from edgedec.drafters._models.reader import drawn_from
from edgedec.plugins import Opt
from edgedec.runtime import Outputs
from edgedec.sampling import Logits, Probs, draw
from edgedec.sampling.distributions import point

FACTS = DrafterFacts(paper="Speculative Jacobi Decoding")
_GREEDY, _DRAWN = Outputs(top=1), Outputs(logits=True)
# Of the rates of guesses: the latest counts so much. The rates before anything was seen: drawn once, fresh.
_SMOOTH, _HOPE = 0.05, (0.5, 0.2)


def make(
    host: DrafterContext,
    window: Annotated[int, Opt("Rows of a call: the last token and the guesses.", 2, 64)] = 16,
    fresh: Annotated[Literal["random", "left"], Opt("Guess of a new place: any token, or the one to its left.")] = (
        "random"
    ),
) -> Jacobi:
    return Jacobi(host.runtime.spec.vocab_size, window - 1, fresh)


class Jacobi(BaseDrafter):
    """guesses: in the window, behind the last token of the text."""

    def __init__(self, vocab: int, guesses: int, fresh: str = "random") -> None:
        self._vocab, self._guesses, self._fresh = vocab, guesses, fresh
        self.outputs = _DRAWN
        # What the last call said at the places after the text, the first one first.
        self._laws: list[Logits] | list[int] = []
        self._length = -1
        self._drafted = 0  # guesses of the last draft that were drawn, or were likeliest, before
        self._rates = [*_HOPE]

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        drawn = context.sampling.temperature > 0
        self.outputs = _DRAWN if drawn else _GREEDY
        if self._length != len(context.ids):
            self._laws = []
        self._length, n = len(context.ids), min(nodes, self._guesses)
        path, sources = list[int](), list[Probs]()
        for law in self._laws[:n]:
            source = point(law) if isinstance(law, int) else drawn_from(law, self._vocab, context, path)
            sources.append(source)
            path.append(draw(source, context.rng) if drawn else int(source.ids[0]))
        self._drafted = len(path)
        while len(path) < n:
            left = path[-1] if path else context.ids[-1]
            path.append(left if self._fresh == "left" else int(context.rng.integers(self._vocab)) if drawn else left)
            sources.append(point(path[-1]))
        claims = [self._rates[i >= self._drafted] for i in range(n)]
        chain = Draft.chain(path, claims)
        return Draft(chain.tokens, chain.parents, claims, sampled=Sampled("token", sources)) if drawn and n else chain

    def observe(self, step: StepResult) -> None:
        taken, rows = len(step.path) - 1, len(step.rows) - step.root - 1
        for i in range(min(taken + 1, rows)):
            kind = int(i >= self._drafted)
            self._rates[kind] += _SMOOTH * ((i < taken) - self._rates[kind])
        # Row r says what follows its token: the row of the first guess that did not stand says the next place's law.
        result = step.result
        if result.logits is not None:
            self._laws = list(result.logits[taken + 1 : rows + 1].copy())
        elif result.ids is not None:
            self._laws = result.ids[taken + 1 : rows + 1, 0].tolist()
        self._length += len(step.picked)

    def reset(self) -> None:
        self._laws, self._length, self._drafted = [], -1, 0

    def report(self) -> dict[str, Any]:
        return {"rates": {name: round(rate, 3) for name, rate in zip(("drawn", "fresh"), self._rates, strict=True)}}
