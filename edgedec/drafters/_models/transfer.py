"""Knowledge transfer at inference (RAPID): the target's distribution, shifted towards the draft model's.

Lossy: the text changes. With z the target's logits, p its distribution and q the draft model's, both at the temperature
T (1 if greedy), the next token comes from

    softmax(z' / T),  z' = z + eta T (q - p)

which is a step of gradient descent on the cross entropy to q, taken in the target's logits. This distribution depends
on the text alone: passages are chosen at fixed places of it, a draft ends where they are chosen again, and the draft
model also reads the last drafted token, so that the token after a fully accepted draft has the same distribution.
Drafting only decides how many tokens a call produces.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.context import Context
from edgedec.decoding.logits import BaseProcessor, Early, LogitsProcessor
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, Drafter, Proposal, Sampled
from edgedec.drafters._models.reader import ALL, Reading, drawn_from
from edgedec.errors import UsageError
from edgedec.runtime import Outputs
from edgedec.sampling import Logits, Probs, draw

Path = tuple[int, ...]


class Shift(BaseProcessor):
    """Logits shifted towards those of `guide`, by the tokens of a path; unchanged where it has none.

    Worked example, eta 2, T 1:  z 0 0, p .5 .5, q .75 .25 -> z' .5 -.5
    """

    def __init__(self, eta: float) -> None:
        self.eta, self.temperature = eta, 1.0
        self.guide: dict[Path, Logits] = {}

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        if not self.guide:
            return logits
        drafted = self.guide.get(tuple(path))
        if drafted is None:
            raise UsageError("drafter rapid: transfer: a drafted token that its own model has not read")
        t = self.temperature
        return (logits + self.eta * t * (shares(drafted, t) - shares(logits, t))).astype(np.float32)


def shares(logits: Logits, temperature: float) -> NDArray[np.float64]:
    """The distribution of logits at a temperature."""
    x = logits.astype(np.float64) / temperature
    x = np.exp(x - x.max())
    found: NDArray[np.float64] = x / x.sum()
    return found


class SettledReader(Protocol):
    """A reader of a text whose passages are chosen at fixed places."""

    vocab: int

    def settle(self, ids: Sequence[int], origin: int) -> int:
        """Choose the passages of this text, at places counted from `origin` -> how many more tokens may be read before
        they are chosen again."""

    def read(self, ids: Sequence[int], outputs: Outputs, room: int, settled: int | None = None) -> Reading:
        """Read the text -> the outputs of its last token."""

    def grow(self, tokens: Sequence[int], parents: Sequence[int], outputs: Outputs) -> Reading:
        """Read drafted tokens -> the outputs of each."""

    def reset(self) -> None:
        """Another text."""

    def inherit(self, other: Any) -> None:
        """Know what the reader of another text has worked out."""


class TransferDrafter(BaseDrafter):
    """A drafter of chains that shifts the target's distribution, from `least` tokens on. vocab: the target's; drawn:
    tokens are drawn from q and verified by rejection; else the likeliest ones are compared."""

    def __init__(self, reader: SettledReader, vocab: int, eta: float, gamma: int, least: int, drawn: bool) -> None:
        self._bent = Shift(eta)
        self.shift: LogitsProcessor | None = self._bent
        self._reader, self._vocab, self._gamma, self._least, self._drawn = reader, vocab, gamma, least, drawn
        self._origin = -1
        self._counts = {"proposed": 0, "accepted": 0, "seconds": 0.0}
        self._sizes: dict[int, int] = {}

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._bent.guide = {}
        if len(context.ids) < self._least:
            return Draft()
        self._origin = self._origin if self._origin >= 0 else max(context.n_prompt, self._least)
        self._bent.temperature = context.sampling.temperature or 1.0
        return self._chain(context, nodes)

    def _chain(self, context: Context, nodes: int) -> Generator[Request, Completed, Draft]:
        """A chain, with the draft model's outputs after each of its tokens, including the last."""
        began, path, laws = perf_counter(), list[int](), list[Probs]()
        left = self._reader.settle(context.ids, self._origin)
        limit, drawn = max(min(nodes, self._gamma, left), 0), self._drawn and context.sampling.temperature > 0
        result = yield from self._reader.read(context.ids, ALL, limit + 1)
        while True:
            assert result.logits is not None
            logits = self._whole(result.logits[-1])
            self._bent.guide[tuple(path)] = logits
            if len(path) == limit:
                break
            if drawn:
                laws.append(drawn_from(logits, self._vocab, context, path))
            path.append(draw(laws[-1], context.rng) if drawn else int(logits.argmax()))
            result = yield from self._reader.grow(path[-1:], [len(path) - 2], ALL)
        self._counts["seconds"] += perf_counter() - began
        self._counts["proposed"] += len(path)
        self._sizes[len(path)] = self._sizes.get(len(path), 0) + 1
        chain = Draft.chain(path)
        return Draft(chain.tokens, chain.parents, sampled=Sampled("token", laws)) if drawn and path else chain

    def _whole(self, logits: Logits) -> Logits:
        """Logits of the target's vocabulary."""
        found = np.full(self._vocab, -np.inf, np.float32)
        found[: min(self._vocab, len(logits))] = logits[: self._vocab]
        return found

    def observe(self, step: StepResult) -> None:
        self._counts["accepted"] += len(step.path) - 1

    def reset(self) -> None:
        self._origin, self._bent.guide = -1, {}
        self._reader.reset()

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, TransferDrafter):
            self._origin = other._origin
            self._reader.inherit(other._reader)

    def report(self) -> dict[str, Any]:
        """A report in the format of a governor's."""
        lossy = f"rapid transfer={self._bent.eta:g}: another text, bent towards what the short text says"
        sizes = {size: self._sizes[size] for size in sorted(self._sizes)}
        return {"lossy": lossy, "sizes": sizes, "silent": 0, "drafters": {"rapid": {**self._counts}}}
