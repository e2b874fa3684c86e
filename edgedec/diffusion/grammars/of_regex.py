"""The rules of a regular expression.

Supported: what Python's `re` reads of characters, classes, groups, alternatives and repetition (lazy ones too, which
match the same texts). Refused by name: look-around, back references, anchors but ^ at the beginning and $ at the end,
flags.
"""

from __future__ import annotations

import re
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from edgedec.diffusion.grammars.rules import EMPTY, Expr, RuleBook
from edgedec.diffusion.grammars.utf8 import LAST, inverted

_DIGITS = [(0x30, 0x39)]
_WORDS = [*_DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACES = [(0x09, 0x0D), (0x20, 0x20)]
_CLASSES = {
    c.CATEGORY_DIGIT: _DIGITS,
    c.CATEGORY_WORD: _WORDS,
    c.CATEGORY_SPACE: _SPACES,
    c.CATEGORY_NOT_DIGIT: inverted(_DIGITS),
    c.CATEGORY_NOT_WORD: inverted(_WORDS),
    c.CATEGORY_NOT_SPACE: inverted(_SPACES),
}
Ranges = list[tuple[int, int]]


def of_regex(book: RuleBook, pattern: str) -> Expr:
    """The expression of a pattern that the whole text matches."""
    try:
        read = parser.parse(pattern, re.ASCII)
        parsed = list(read)
    except (re.error, RecursionError, OverflowError) as error:
        raise book.error(f"{pattern!r:.60}: {error}") from None
    if read.state.flags & ~(re.ASCII | re.UNICODE):
        raise book.error(f"{pattern!r:.60}: flags are not supported with gaps")
    if parsed and parsed[0] == (c.AT, c.AT_BEGINNING):
        parsed = parsed[1:]
    if parsed and parsed[-1] == (c.AT, c.AT_END):
        parsed = parsed[:-1]
    return _sequence(book, parsed)


def _sequence(book: RuleBook, parts: Any) -> Expr:
    return sum((_part(book, name, value) for name, value in parts), EMPTY)


def _part(book: RuleBook, name: Any, value: Any) -> Expr:
    if name == c.LITERAL:
        return book.characters([(value, value)])
    if name == c.NOT_LITERAL:
        return book.characters(inverted([(value, value)]))
    if name == c.ANY:
        return book.characters(inverted([(0x0A, 0x0A)]))
    if name == c.IN:
        return book.characters(_ranges(book, value))
    if name == c.BRANCH:
        return book.either([_sequence(book, each) for each in value[1]])
    if name == c.SUBPATTERN and not value[1] and not value[2]:
        return _sequence(book, value[3])
    if name in (c.MAX_REPEAT, c.MIN_REPEAT):
        low, high, inner = value
        return book.repeat(_sequence(book, inner), low, None if high == c.MAXREPEAT else high)
    raise book.error(f"a regular expression with {str(name).lower().replace('_', ' ')} is not supported with gaps")


def _ranges(book: RuleBook, parts: Any) -> Ranges:
    found, negated = Ranges(), False
    for name, value in parts:
        if name == c.NEGATE:
            negated = True
        elif name == c.LITERAL:
            found.append((value, value))
        elif name == c.RANGE:
            found.append((value[0], min(value[1], LAST)))
        elif name == c.CATEGORY and value in _CLASSES:
            found += _CLASSES[value]
        else:
            raise book.error(f"a class with {name} is not supported with gaps")
    return inverted(found) if negated else found
