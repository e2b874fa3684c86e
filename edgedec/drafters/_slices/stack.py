"""Drafting with slices of the target's own stack, on the cache of the text.

Drafted rows are pending rows of the cache. Verification continues where the shared blocks ended: the first blocks'
states of a row are the same in a draft and in verification.

    pending rows ─┐ shared blocks ── states kept for verification ── rest of the slice ── head ── a token, how sure
    token       <─┘ (again, until the path is not likely enough to pay)
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from time import perf_counter

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request
from edgedec.drafters import DrafterContext
from edgedec.drafters._calls import EdgeCalls, own_seconds
from edgedec.drafters._slices.exit_adapters import ExitAdapter
from edgedec.errors import UsageError
from edgedec.runtime import Call, CallResult, Hidden, Outputs, Readout, Rows
from edgedec.spec import ModelSpec
from edgedec.spec.macs import block_macs

# With more pending tokens than this the prompt is being read, and nothing is drafted yet.
READING = 32
# The number of best tokens in the softmax, which approximates the whole.
TOP = 16
_LEAST, _MOST = 0.02, 0.98
# The most guesses of a row that may be drafted.
WIDEST = 4

_DECAY = 0.97

# A token (-1: none) and its probability.
Guess = tuple[int, float]
Guesses = list[Guess]


@dataclass(frozen=True)
class Slice:
    """The blocks that draft: `shared` begin the stack and their states are handed to verification; `rest` are the
    draft's own. adapt: makes the states fit the head. taps: shared blocks after which states are kept as well."""

    shared: range
    rest: Sequence[int] = ()
    adapt: ExitAdapter | None = None
    taps: tuple[int, ...] = ()

    @property
    def blocks(self) -> Sequence[int]:
        """All blocks of the slice."""
        return [*self.shared, *self.rest] if self.rest else self.shared


class SliceCalls:
    """The calls that run a slice on one text's rows. readout: the tokens that may be guessed (None: all)."""

    def __init__(self, context: Context, part: Slice, edge: EdgeCalls, readout: Readout | None = None) -> None:
        self._context, self._part, self._edge, self._readout = context, part, edge, readout
        self._last = part.shared[-1]
        self._wanted = tuple(sorted({self._last, *part.taps, *(part.adapt.blocks if part.adapt else ())}))
        # For each call: whether it guessed, its rows, its seconds.
        self.took: list[tuple[bool, int, float]] = []
        self.tapped: list[dict[int, Hidden]] = []
        # Rows and seconds of each adapter run.
        self.adapted: list[tuple[int, float]] = []

    def shared(self, rows: Rows) -> Generator[Request, Completed, Hidden]:
        """The states of the computed rows after the shared blocks."""
        result = yield from self._run(rows, self._part.shared, Outputs(hidden=self._wanted))
        return result.hidden[self._last]

    def guess(self, rows: Rows, of: int) -> Generator[Request, Completed, tuple[Hidden, list[Guesses]]]:
        """These states, and the guesses after each of the last `of` rows."""
        part = self._part
        if part.adapt is None:
            outputs = Outputs(top=TOP, hidden=self._wanted, logits_from=rows.count - of, readout=self._readout)
            result = yield from self._run(rows, part.blocks, outputs)
            return result.hidden[self._last], guesses_of(result)
        result = yield from self._run(rows, part.shared, Outputs(hidden=self._wanted))
        since = perf_counter()
        states = part.adapt.of(result.hidden, of)
        took = perf_counter() - since
        best = yield from self._edge.best(states, TOP, self._readout)
        self.adapted.append((of, took + self._edge.seconds))
        return result.hidden[self._last], guesses_of(best)

    def _run(self, rows: Rows, blocks: Sequence[int], outputs: Outputs) -> Generator[Request, Completed, CallResult]:
        context = self._context
        call = Call(rows, context.cache, blocks, None, outputs, context.adapter)
        done = yield call
        self.took.append((outputs.head, rows.count, own_seconds(done, call)))
        if part_taps := self._part.taps:
            self.tapped.append({block: done.result.hidden[block] for block in part_taps})
        return done.result


def guesses_of(result: CallResult) -> list[Guesses]:
    """The best tokens after each row, with probabilities."""
    assert result.ids is not None
    assert result.scores is not None
    return [
        list(zip(ids[:WIDEST], chances(scores), strict=False))
        for ids, scores in zip(result.ids.tolist(), result.scores.tolist(), strict=True)
    ]


def longer(rows: Rows, token: int) -> Rows:
    """The chain with one more token; only this one is computed by the next call."""
    n, start = len(rows) + 1, int(rows.positions[0])
    grown = Rows(np.append(rows.tokens, token), np.arange(start, start + n), np.arange(-1, n - 1), first=n - 1)
    grown.__dict__["is_chain"] = True  # as `Rows.chain` does
    return grown


def chances(scores: Sequence[float]) -> list[float]:
    """The probabilities of these logits' tokens, descending; clipped away from 0 and 1.

    scores 2.0 1.0 -inf -> 0.73 0.27 0.02
    """
    top = scores[0]
    if not isfinite(top):
        return [_LEAST] * len(scores)
    powers = [exp(score - top) if isfinite(score) else 0.0 for score in scores]
    total = sum(powers)
    return [min(max(power / total, _LEAST), _MOST) for power in powers]


def confidence(scores: Sequence[float]) -> float:
    """The probability of the first of these logits' tokens."""
    return chances(scores)[0]


def judged(guessed: Sequence[Guess], picked: Sequence[int]) -> list[tuple[bool, float]]:
    """Whether each guess was right, and its confidence, up to the first wrong one: later guesses had a wrong parent.

    guessed 5 6 7, picked 5 8 -> True False
    """
    found: list[tuple[bool, float]] = []
    for (guess, sure), token in zip(guessed, picked, strict=False):
        found.append((guess == token, sure))
        if guess != token:
            break
    return found


class Record:
    """The recent acceptance of guesses, with exponential decay: `right` of `tested`; `claimed`: the sum of their
    claims."""

    def __init__(self, right: float = 0.0, tested: float = 0.0, claimed: float = 0.0, decay: float = _DECAY) -> None:
        self.right, self.tested, self.claimed, self._decay = right, tested, claimed, decay

    def add(self, hit: bool, sure: float) -> None:
        self.right = self.right * self._decay + hit
        self.tested = self.tested * self._decay + 1.0
        self.claimed = self.claimed * self._decay + sure

    @property
    def rate(self) -> float:
        """The acceptance rate; 0.5 without any guess."""
        return (self.right + 0.5) / (self.tested + 1.0)

    @property
    def hope(self) -> float:
        """An optimistic rate, 0.9 after few guesses, so that an untried exit is tried."""
        return (self.right + 1.8) / (self.tested + 2.0)

    @property
    def trust(self) -> float:
        """The ratio of accepted guesses to their claims."""
        return (self.right + 1.0) / (self.claimed + 1.0)


def block_costs(spec: ModelSpec) -> tuple[list[float], float]:
    """The share of a one-row call that each block takes, and the head: by multiply-adds of their matrices."""
    macs = [block_macs(block, spec.hidden_size) for block in spec.blocks]
    head = spec.hidden_size * spec.vocab_size
    total = sum(macs) + head
    return [n / total for n in macs], head / total


def payoff(rate: float, cost: float, length: int) -> tuple[float, int]:
    """The most tokens in the time of a plain call, and the chain length (from 1 on) that gives it.

    rate: the acceptance rate; cost: of drafting a token, in plain calls. A chain of n guesses gives 1 + rate + ... +
    rate^n tokens and costs 1 + n * cost.

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
