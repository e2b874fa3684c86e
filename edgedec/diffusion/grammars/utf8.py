"""Sets of characters as sequences of sets of bytes, in UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# The last code points of one, two, three and four bytes, and what is no character.
_LASTS = 0x7F, 0x7FF, 0xFFFF, 0x10FFFF
_SURROGATES = 0xD800, 0xDFFF
LAST = _LASTS[-1]
Bytes = list[tuple[int, int]]


def sequences(ranges: Iterable[tuple[int, int]]) -> list[Bytes]:
    """For each part of the ranges of code points, the range of each of its bytes, ends included.

    >>> sequences([(0x41, 0x5A), (0xE9, 0xE9)])
    [[(65, 90)], [(195, 195), (169, 169)]]
    """
    return [found for low, high in merged(ranges) for found in _split(low, high)]


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same code points in ascending ranges that do not touch."""
    found = list[tuple[int, int]]()
    for low, high in sorted((low, high) for low, high in ranges if low <= high):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found


def inverted(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """All other code points.

    >>> inverted([(0, 9), (11, 1114111)])
    [(10, 10)]
    """
    found, begin = list[tuple[int, int]](), 0
    for low, high in merged(ranges):
        if begin < low:
            found.append((begin, low - 1))
        begin = high + 1
    return [*found, (begin, LAST)] if begin <= LAST else found


def _split(low: int, high: int) -> Iterator[Bytes]:
    """Parts whose bytes vary independently."""
    if low <= _SURROGATES[1] and high >= _SURROGATES[0]:
        if low < _SURROGATES[0]:
            yield from _split(low, _SURROGATES[0] - 1)
        if high > _SURROGATES[1]:
            yield from _split(_SURROGATES[1] + 1, high)
        return
    for last in _LASTS:
        if low <= last < high:
            yield from _split(low, last)
            yield from _split(last + 1, high)
            return
    first, final = chr(low).encode(), chr(high).encode()
    for tail in range(1, len(first)):
        block = (1 << 6 * tail) - 1
        if low & ~block != high & ~block:
            if low & block:
                yield from _split(low, low | block)
                yield from _split((low | block) + 1, high)
                return
            if high & block != block:
                yield from _split(low, (high & ~block) - 1)
                yield from _split(high & ~block, high)
                return
    yield list(zip(first, final, strict=True))
