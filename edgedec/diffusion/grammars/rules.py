"""Rules of a context-free grammar over bytes, and the tables that a parser reads.

A symbol is a number: a rule from 0 on, a set of bytes below 0 (`~n` is set n, a mask of 256 bits). Repetition is left
recursive, so that a parser's step costs the same however long it went on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgedec.diffusion.grammars.utf8 import sequences
from edgedec.errors import UsageError

# A sequence of symbols.
Expr = tuple[int, ...]
EMPTY: Expr = ()
# Symbols of a grammar at most; all bytes.
MOST, ANY = 20_000, (1 << 256) - 1


@dataclass(frozen=True, eq=False)
class Grammar:
    """after[d]: the symbol at dot d, None at the end of an alternative, where left[d] is its rule; starts[rule]: the
    dots that its alternatives begin with; rest[d]: the fewest bytes from dot d to the alternative's end; masks: the
    sets of bytes; start: the rule of whole texts."""

    after: tuple[int | None, ...]
    left: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]
    rest: tuple[int, ...]
    masks: tuple[int, ...]
    start: int


class RuleBook:
    """A grammar that is being written down. what: the user's name of it, for messages; alphabet: the bytes that a
    vocabulary can write, as a mask; texts with others are left out."""

    def __init__(self, what: str, alphabet: int = ANY) -> None:
        self.what, self._alphabet = what, alphabet
        self._rules: list[list[Expr] | None] = []
        self._masks: dict[int, int] = {}
        self._size = 0

    def error(self, why: str) -> UsageError:
        """What is said of a grammar that is not supported."""
        return UsageError(f"--diffusion fits=grammar: {self.what}: {why}")

    def bytes_of(self, values: Iterable[int]) -> Expr:
        """One byte, one of these."""
        mask = sum(1 << value for value in set(values)) & self._alphabet
        return (~self._masks.setdefault(mask, len(self._masks)),)

    def literal(self, text: str | bytes) -> Expr:
        """Exactly this text."""
        data = text.encode() if isinstance(text, str) else text
        return tuple(symbol for byte in data for symbol in self.bytes_of([byte]))

    def characters(self, ranges: Iterable[tuple[int, int]]) -> Expr:
        """One character whose code point is in one of these ranges, ends included, in UTF-8."""
        found = [sum((self.bytes_of(range(a, b + 1)) for a, b in each), EMPTY) for each in sequences(ranges)]
        if not found:
            raise self.error("a class that no character is in")
        return self.either(found)

    def either(self, alternatives: Sequence[Expr]) -> Expr:
        """One of these."""
        return alternatives[0] if len(alternatives) == 1 else (self.define(self.name(), alternatives),)

    def repeat(self, expr: Expr, low: int = 0, high: int | None = None) -> Expr:
        """`low` to `high` times, None: any number."""
        if high is None:
            rule = self.name()
            self.define(rule, [EMPTY, (rule, *expr)])
            return expr * low + (rule,)
        if (high - low) * (len(expr) + 1) + low * len(expr) > MOST:
            raise self.error(f"repeats something {high} times, which is too large a grammar")
        found = EMPTY
        for _ in range(high - low):
            found = self.either([EMPTY, (*expr, *found)])
        return expr * low + found

    def name(self) -> int:
        """A rule that is defined later."""
        self._rules.append(None)
        return len(self._rules) - 1

    def define(self, rule: int, alternatives: Sequence[Expr]) -> int:
        """Define a rule."""
        self._rules[rule] = list(alternatives)
        self._size += sum(len(each) + 1 for each in alternatives)
        if self._size > MOST:
            raise self.error(f"has more than {MOST:,} symbols")
        return rule

    def grammar(self, start: Expr) -> Grammar:
        """The tables of the rules that some text can come from; UsageError if there is no text."""
        first = self.define(self.name(), [start])
        able = self._shortest()
        if first not in able:
            raise self.error("no text follows it")
        after, left, rest, starts = list[int | None](), list[int](), list[int](), list[tuple[int, ...]]()
        for rule, alternatives in enumerate(self._rules):
            begin = list[int]()
            for each in alternatives or ():
                if all(self._may(symbol, able) for symbol in each):
                    begin.append(len(after))
                    after += [*each, None]
                    left += [rule] * (len(each) + 1)
                    rest += [sum(_least(symbol, able) for symbol in each[at:]) for at in range(len(each) + 1)]
            starts.append(tuple(begin))
        return Grammar(tuple(after), tuple(left), tuple(starts), tuple(rest), tuple(self._masks), first)

    def _may(self, symbol: int, able: Mapping[int, int]) -> bool:
        """Whether some text comes from a symbol."""
        return symbol in able if symbol >= 0 else symbol != ~self._masks.get(0, -1)

    def _shortest(self) -> dict[int, int]:
        """The fewest bytes of the texts of each rule; rules that no text comes from are missing."""
        found, more = dict[int, int](), True
        while more:
            more = False
            for rule, alternatives in enumerate(self._rules):
                able = [each for each in alternatives or () if all(self._may(s, found) for s in each)]
                least = min((sum(_least(s, found) for s in each) for each in able), default=None)
                if least is not None and (rule not in found or least < found[rule]):
                    found[rule], more = least, True
        return found


def _least(symbol: int, shortest: dict[int, int]) -> int:
    """The fewest bytes of a symbol."""
    return 1 if symbol < 0 else shortest[symbol]
