"""Drafting with slices of the target's own stack, on the cache of the text.

Drafted rows are pending rows of the cache. Verification continues where the shared blocks ended: what the first
blocks made of a row is the same whoever ran them.

    pending rows ─┐ shared blocks ── states kept for verification ── rest of the slice ── head ── a token, how sure
    token       <─┘ (again, until the path is not likely enough to pay)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import exp, isfinite

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.step import Completed, Request
from edgedec.drafters import Draft, DrafterContext
from edgedec.drafters._calls import EdgeCalls
from edgedec.errors import UsageError
from edgedec.runtime import Call, Hidden, Outputs, Rows
from edgedec.spec import ModelSpec
from edgedec.speculation.rowcost import block_macs

# More pending tokens than this: the prompt is being read, nothing is drafted yet.
READING = 32
# Of so many best tokens the softmax is taken: their mass stands for the whole.
TOP = 16
_LEAST, _MOST = 0.02, 0.98

_DECAY = 0.97

Adapter = Callable[[Hidden], Hidden]
# A token (-1: none), and how likely it is.
Guess = tuple[int, float]


@dataclass(frozen=True)
class Slice:
    """The blocks that draft: `shared` begin the stack and their states are handed to verification; `rest` are the
    draft's own. adapt: makes the last state fit the head."""

    shared: range
    rest: Sequence[int] = ()
    adapt: Adapter | None = None

    @property
    def blocks(self) -> Sequence[int]:
        """All of them."""
        return [*self.shared, *self.rest] if self.rest else self.shared


@dataclass(frozen=True)
class Limits:
    """Stop after `length` tokens, at a guess less sure than `threshold`, or on a path less likely than `least`; the
    claim of a guess is multiplied by `trust`."""

    length: int
    least: float
    threshold: float = 0.0
    trust: float = 1.0


class SliceCalls:
    """The calls that run a slice on one text's rows."""

    def __init__(self, context: Context, part: Slice, edge: EdgeCalls) -> None:
        self._context, self._part, self._edge = context, part, edge
        self._last = part.shared[-1]

    def shared(self, rows: Rows) -> Generator[Request, Completed, Hidden]:
        """The states of the computed rows after the shared blocks."""
        return (yield from self._run(rows, self._part.shared, Outputs(hidden=(self._last,))))[0]

    def guess(self, rows: Rows) -> Generator[Request, Completed, tuple[Hidden, Guess]]:
        """These states, and the guess after the last row."""
        part = self._part
        if part.adapt is None:
            outputs = Outputs(top=TOP, hidden=(self._last,), logits_from=rows.count - 1)
            return (yield from self._run(rows, part.blocks, outputs))
        hidden = yield from self.shared(rows)
        best = yield from self._edge.best(part.adapt(hidden[-1:]), TOP)
        assert best.ids is not None
        assert best.scores is not None
        return hidden, (int(best.ids[0, 0]), confidence(best.scores[0].tolist()))

    def _run(
        self, rows: Rows, blocks: Sequence[int], outputs: Outputs
    ) -> Generator[Request, Completed, tuple[Hidden, Guess]]:
        context = self._context
        result = (yield Call(rows, context.cache, blocks, None, outputs, context.adapter)).result
        guess = (-1, 0.0)
        if result.ids is not None and result.scores is not None:
            guess = int(result.ids[-1, 0]), confidence(result.scores[-1].tolist())
        return result.hidden[self._last], guess


def longer(rows: Rows, token: int) -> Rows:
    """The chain with one more token; only this one is computed by the next call."""
    n, start = len(rows) + 1, int(rows.positions[0])
    grown = Rows(np.append(rows.tokens, token), np.arange(start, start + n), np.arange(-1, n - 1), first=n - 1)
    grown.__dict__["is_chain"] = True  # as `Rows.chain` does
    return grown


def confidence(scores: Sequence[float]) -> float:
    """How likely the first of these logits' tokens is, descending; kept off 0 and 1."""
    top = scores[0]
    if not isfinite(top):
        return _LEAST
    return min(max(1.0 / sum([exp(score - top) for score in scores]), _LEAST), _MOST)


def draft_chain(
    context: Context, part: Slice, limits: Limits, edge: EdgeCalls, n_blocks: int
) -> Generator[Request, Completed, tuple[Draft, list[Guess]]]:
    """A chain drafted token after token, and every guess made: one more than the draft if the last was not sure
    enough.

    The last token drafted runs through the shared blocks only: no guess follows it.
    """
    calls, rows = SliceCalls(context, part, edge), Rows.chain(context.pending(), context.cache.length)
    states: list[Hidden] = []
    tokens: list[int] = []
    claims: list[float] = []
    guessed: list[Guess] = []
    path = 1.0
    while len(tokens) < limits.length:
        hidden, (token, sure) = yield from calls.guess(rows)
        states.append(hidden)
        guessed.append((token, sure))
        likely = min(sure * limits.trust, _MOST)
        path *= likely
        if token < 0 or likely < limits.threshold or path < limits.least:
            break
        tokens.append(token)
        claims.append(sure)
        rows = longer(rows, token)
    if len(states) <= len(tokens):
        states.append((yield from calls.shared(rows)))
    parents = tuple(range(-1, len(tokens) - 1))
    rest = range(len(part.shared), n_blocks)
    return Draft(tuple(tokens), parents, tuple(claims), rest, np.concatenate(states)), guessed


def judged(guessed: Sequence[Guess], picked: Sequence[int]) -> list[tuple[bool, float]]:
    """Which guesses came true, and how sure each was, up to the first that did not: those after it had a wrong
    parent.

    guessed 5 6 7, picked 5 8 -> True False
    """
    found: list[tuple[bool, float]] = []
    for (guess, sure), token in zip(guessed, picked, strict=False):
        found.append((guess == token, sure))
        if guess != token:
            break
    return found


class Record:
    """How often guesses came true of late, with exponential decay: `right` of `tested`; `claimed` is the sum of their
    claims."""

    def __init__(self, right: float = 0.0, tested: float = 0.0, claimed: float = 0.0) -> None:
        self.right, self.tested, self.claimed = right, tested, claimed

    def add(self, hit: bool, sure: float) -> None:
        self.right = self.right * _DECAY + hit
        self.tested = self.tested * _DECAY + 1.0
        self.claimed = self.claimed * _DECAY + sure

    @property
    def rate(self) -> float:
        """One in two of a guess never made."""
        return (self.right + 0.5) / (self.tested + 1.0)

    @property
    def trust(self) -> float:
        """What came true over what was claimed."""
        return (self.right + 1.0) / (self.claimed + 1.0)


def block_costs(spec: ModelSpec) -> tuple[list[float], float]:
    """The share of a one-row call that each block takes, and the head: by multiply-adds of their matrices."""
    macs = [block_macs(block, spec.hidden_size) for block in spec.blocks]
    head = spec.hidden_size * spec.vocab_size
    total = sum(macs) + head
    return [n / total for n in macs], head / total


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


def require_slices(name: str, host: DrafterContext) -> None:
    """UsageError if the runtime cannot run a part of the stack."""
    if not host.runtime.capabilities.slices:
        raise UsageError(
            f"drafter {name}: the runtime {host.runtime.name} runs only the whole stack; use another drafter or engine"
        )
