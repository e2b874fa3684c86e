"""Drafting with slices of the target's own stack, on the text's own cache.

Rows drafted lie in the cache behind what is committed. Verification writes their slots again, or goes on
where a slice ended: what the first blocks made of a row is the same whoever asked for it.

    pending rows ─┐ first blocks ── kept for verification ── rest of the slice ── head ── a token, how sure
    token       <─┘ (again, until the path is not likely enough to pay)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, isfinite

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.drafters import Draft, DrafterContext
from edgedec.runtime import Begun, Hidden, Runtime, Outputs, best
from edgedec.runtime.rows import Rows
from edgedec.spec import ModelSpec
from edgedec.speculation.heads import open_head

# More pending tokens than this: the prompt is being read, nothing is drafted yet.
READING = 32
# Of so many best tokens the softmax is taken: their mass stands for the whole.
_TOP = 16
_LEAST, _MOST = 0.02, 0.98

_DECAY = 0.97

Adapter = Callable[[Hidden], Hidden]
# A token, and how likely it is.
Guess = tuple[int, float]


@dataclass(frozen=True)
class Slice:
    """The blocks that draft: `shared` begin the stack and are handed over, `rest` are the draft's own."""

    shared: Sequence[int]
    rest: Sequence[int] = ()
    adapt: Adapter | None = None


@dataclass(frozen=True)
class Limits:
    """Stop after `length` tokens, at a guess less sure than `threshold`, or on a path less likely than `least`;
    what a guess says of itself counts `trust` times."""

    length: int
    least: float
    threshold: float = 0.0
    trust: float = 1.0


class Strand:
    """A chain of rows behind a cache's committed tokens: the pending ones, and what is drafted below them."""

    def __init__(self, runtime: Runtime, cache: Cache, tokens: Sequence[int]) -> None:
        self._runtime, self._cache, self._tokens = runtime, cache, list(tokens)
        self.rows = Rows.chain(self._tokens, cache.length)

    def add(self, token: int) -> None:
        """One more row, the only one that `begin` and `run` now compute."""
        self._tokens.append(token)
        n, start = len(self._tokens), self._cache.length
        ids = np.array(self._tokens, np.int64)
        self.rows = Rows(ids, np.arange(start, start + n), np.arange(-1, n - 1), first=n - 1)
        self.rows.__dict__["is_chain"] = True  # as `Rows.chain` does

    def begin(self, blocks: Sequence[int]) -> Hidden:
        """Embed and run: hidden [computed rows, hidden_size]."""
        return self.run(self._runtime.embed(self.rows.tokens[self.rows.first :]), blocks)

    def run(self, hidden: Hidden, blocks: Sequence[int]) -> Hidden:
        return self._runtime.run(hidden, self.rows, self._cache, blocks) if blocks else hidden

    def guess(self, hidden: Hidden) -> Guess:
        """The last row's likeliest token (-1: none) and how likely it is."""
        ids, scores = guesses(self._runtime, self._cache, hidden[-1:])
        assert scores is not None
        return int(ids[0, 0]), confidence(scores[0].tolist())


def guesses(
    runtime: Runtime, cache: Cache, hidden: Hidden, top: int = _TOP
) -> tuple[NDArray[np.int32], NDArray[np.float32] | None]:
    """hidden [n, hidden_size] -> the best tokens of each [n, top], and their logits if they are several.

    A call with no block left: the runtime's quick way to them, if it has one.
    """
    rows = Rows.chain(np.zeros(len(hidden), np.int64), cache.length)
    end = Begun(hidden, 2 * runtime.spec.n_layers)
    output = runtime.call(rows, cache, 0, Outputs(logits=False, top=top), end)
    if output is None or output.ids is None:
        return best(runtime.head(hidden), top)
    return output.ids, output.scores


def confidence(scores: Sequence[float]) -> float:
    """How likely the first of these logits' tokens is, descending; kept off 0 and 1."""
    top = scores[0]
    if not isfinite(top):
        return _LEAST
    return min(max(1.0 / sum([exp(score - top) for score in scores]), _LEAST), _MOST)


def draft_chain(strand: Strand, part: Slice, limits: Limits) -> tuple[Draft, list[Guess]]:
    """Token after token, and every guess made: one more than the draft if the last was not sure enough.

    The last token drafted runs through the shared blocks only; what it would be followed by nobody asks.
    """
    states = [strand.begin(part.shared)]
    tokens: list[int] = []
    claims: list[float] = []
    guessed: list[Guess] = []
    path = 1.0
    while len(tokens) < limits.length:
        hidden = strand.run(states[-1], part.rest)
        token, sure = strand.guess(part.adapt(hidden[-1:]) if part.adapt else hidden)
        guessed.append((token, sure))
        likely = min(sure * limits.trust, _MOST)
        path *= likely
        if token < 0 or likely < limits.threshold or path < limits.least:
            break
        tokens.append(token)
        claims.append(sure)
        strand.add(token)
        states.append(strand.begin(part.shared))
    hidden = np.concatenate(states) if tokens else states[0]
    parents = tuple(range(-1, len(tokens) - 1))
    return Draft(tuple(tokens), parents, tuple(claims), Begun(hidden, len(part.shared))), guessed


def judged(guessed: Sequence[Guess], picked: Sequence[int]) -> list[tuple[bool, float]]:
    """Which guesses came true, and how sure each was, up to the first that did not: what was guessed behind it
    stood on nothing.

    guessed 5 6 7, picked 5 8 -> True False
    """
    found: list[tuple[bool, float]] = []
    for (guess, sure), token in zip(guessed, picked, strict=False):
        found.append((guess == token, sure))
        if guess != token:
            break
    return found


class Record:
    """How often guesses came true of late, with exponential decay: `right` of `asked`; they said `claimed`."""

    def __init__(self, right: float = 0.0, asked: float = 0.0, claimed: float = 0.0) -> None:
        self.right, self.asked, self.claimed = right, asked, claimed

    def saw(self, hit: bool, sure: float) -> None:
        self.right = self.right * _DECAY + hit
        self.asked = self.asked * _DECAY + 1.0
        self.claimed = self.claimed * _DECAY + sure

    @property
    def rate(self) -> float:
        """One in two of a guess never made."""
        return (self.right + 0.5) / (self.asked + 1.0)

    @property
    def trust(self) -> float:
        """What came true over what was claimed."""
        return (self.right + 1.0) / (self.claimed + 1.0)


def block_costs(spec: ModelSpec) -> tuple[list[float], float]:
    """The share of a one-row call that each block takes, and the head: by multiply-adds of their matrices."""
    attention = spec.hidden_size * 2 * (spec.q_dim + spec.kv_dim)
    mlp = spec.hidden_size * 3 * spec.intermediate_size
    head = spec.hidden_size * spec.vocab_size
    total = spec.n_layers * (attention + mlp) + head
    return [attention / total, mlp / total] * spec.n_layers, head / total


def payoff(rate: float, cost: float, length: int) -> tuple[float, int]:
    """Tokens for the time of a plain call, at its best, and the length (from 1 on) that gives it.

    rate: of a guess to come true; cost: of drafting a token, in plain calls. A chain of n guesses brings
    1 + rate + ... + rate^n tokens and costs 1 + n * cost.

        rate 0.8, cost 0.2, length 3 -> 1.8/1.2, 2.44/1.4, 2.952/1.6 -> (1.845, 3)
    """
    found, best_length, tokens, power = 0.0, 1, 1.0, 1.0
    for n in range(1, length + 1):
        power *= rate
        tokens += power
        worth = tokens / (1 + n * cost)
        if worth > found:
            found, best_length = worth, n
    return found, best_length


def adapted_layer(host: DrafterContext) -> int:
    """Behind so many layers stands the exit that the bundle trained an adapter for; 0: it has none."""
    head = host.bundle.manifest.heads.get("exit")
    return head.layer if head else 0


def adapter(host: DrafterContext, layer: int) -> Adapter | None:
    """What makes hidden states behind `layer` layers fit the head, if the bundle has it."""
    return open_head(host.bundle, "exit").exit if layer and layer == adapted_layer(host) else None
