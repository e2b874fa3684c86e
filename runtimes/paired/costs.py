"""Costs of an engine's calls, and the choice of engines for prefill and decode by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CPU = "cpu"
# The workload for comparing engines: tokens of the prompt, generated tokens.
READ, WRITTEN = 512, 128
# Another engine, or a second one, needs memory of its own, so it has to be faster by this factor.
_GAIN = 0.95


@dataclass(frozen=True)
class EngineCosts:
    """seconds[i]: time of a call of rows[i] rows after a short text; rows ascend from 1. fixed, each: seconds of
    handing a text over to the CPU engine or back, in total and per token."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    fixed: float = 0.0
    each: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether the values are plausible."""
        ascending = all(a < b for a, b in zip(self.rows, self.rows[1:], strict=False))
        numbers = all(0 < s < 3600 for s in self.seconds) and 0 <= self.fixed < 3600 and 0 <= self.each < 60
        return bool(self.rows) and self.rows[0] == 1 and len(self.rows) == len(self.seconds) and ascending and numbers

    def call(self, rows: int) -> float:
        """Seconds of a call: linear interpolation between the measured points, proportional to the rows after the last.

        >>> EngineCosts((1, 9), (1.0, 3.0)).call(5), EngineCosts((1, 9), (1.0, 3.0)).call(18)
        (2.0, 6.0)
        """
        if rows >= self.rows[-1]:
            return self.seconds[-1] * rows / self.rows[-1]
        at = next(i for i, known in enumerate(self.rows) if known > rows)
        low, high = self.rows[at - 1], self.rows[at]
        part = (rows - low) / (high - low)
        return self.seconds[at - 1] + part * (self.seconds[at] - self.seconds[at - 1])

    def read(self, tokens: int) -> float:
        """Seconds of a prompt, in calls of the largest measured number of rows."""
        whole, left = divmod(tokens, self.rows[-1])
        return whole * self.seconds[-1] + (self.call(left) if left else 0.0)

    def hand_over(self, tokens: int) -> float:
        return self.fixed + self.each * tokens


@dataclass(frozen=True)
class Split:
    """The devices of the engines for prefill and decode; the same name twice: one engine for both."""

    prefill: str
    decode: str

    @property
    def alone(self) -> bool:
        return self.prefill == self.decode


def hand_over(costs: Mapping[str, EngineCosts], split: Split, tokens: int) -> float:
    """Seconds of handing over a text of so many tokens between the two engines."""
    other = split.prefill if split.decode == CPU else split.decode
    return 0.0 if split.alone else costs[other].hand_over(tokens)


def seconds_of(costs: Mapping[str, EngineCosts], split: Split, context: int) -> float:
    """Seconds of the workload for comparing engines, cut to the model's context."""
    read = min(READ, max(context - WRITTEN, 1))
    prefill, decode = costs[split.prefill], costs[split.decode]
    return prefill.read(read) + hand_over(costs, split, read) + WRITTEN * decode.call(1)


def best_split(costs: Mapping[str, EngineCosts], context: int) -> Split:
    """The fastest split: one engine, or the CPU's and another one. Another engine than the CPU's, and a second engine,
    must each save 5%."""
    best = Split(CPU, CPU)
    alone = [Split(name, name) for name in costs]
    pairs = [split for name in costs if name != CPU for split in (Split(name, CPU), Split(CPU, name))]
    for group in (alone, pairs):
        other = min(group, key=lambda split: seconds_of(costs, split, context), default=best)
        if seconds_of(costs, other, context) < _GAIN * seconds_of(costs, best, context):
            best = other
    return best


@dataclass(frozen=True)
class Rule:
    """Which of two engines runs a call: the faster one, with the handover of the text included. Calls of fewer rows
    than `least` go to the engine for decode: the following tokens would have to be handed over one by one."""

    prefill: EngineCosts
    decode: EngineCosts
    fixed: float
    each: float

    @classmethod
    def of(cls, costs: Mapping[str, EngineCosts], split: Split) -> Rule:
        """The rule for two engines, one of which is the CPU's."""
        other = costs[split.prefill if split.decode == CPU else split.decode]
        return cls(costs[split.prefill], costs[split.decode], other.fixed, other.each)

    @property
    def least(self) -> int:
        """The smallest measured number of rows with which the engine for prefill is faster."""
        known = sorted({*self.prefill.rows, *self.decode.rows})
        return next((n for n in known if n > 1 and self.prefill.call(n) < self.decode.call(n)), known[-1] + 1)

    def prefills(self, rows: int, lacking: tuple[int, int], after: int) -> bool:
        """Whether a call of so many rows runs on the engine for prefill. lacking: the numbers of tokens to hand over
        before it to the engine for decode, and to that for prefill; after: the number to hand over after it, to decode.

        Worked example: 1 s or 9 s for 64 rows, 0.01 s a token handed over. After 100 tokens that only the engine for
        decode has: 1 + 0.01 · 100 + 0.01 · 64 < 9, so they are handed over, and the rows back.
        """
        if rows < self.least:
            return False
        there = self.prefill.call(rows) + self._move(lacking[1]) + self._move(after)
        return there < self.decode.call(rows) + self._move(lacking[0])

    def _move(self, tokens: int) -> float:
        return self.fixed + self.each * tokens if tokens else 0.0
