"""Spans of a passage: its substrings, from one character to another, as the smallest automaton of them.

The suffix automaton (Blumer et al., 1985) has at most two places for a byte of the passage, and is built byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping


class Span:
    """A part (`automata.script`): any substring of the passage that is not empty, its choice the passage's end of it.
    without: characters that no span contains.

    >>> span = Span("abcab")
    >>> place = span.edges(span.edges(span.first)[ord("b")])
    >>> sorted(map(chr, place)), span.edges(0).keys() == set(b"abc")
    (['c'], True)
    """

    first = 0

    def __init__(self, passage: str, without: str = "") -> None:
        self._text, self._without = passage.encode(), frozenset(without.encode())
        self._edges: list[dict[int, int]] = [{}]
        self._length, self._link, self._at = [0], [-1], [0]
        last = 0
        for at, byte in enumerate(self._text):
            last = self._add(last, byte, at + 1)
        for edges in self._edges:
            for byte in self._without & edges.keys():
                del edges[byte]
        # A span begins with a character, not inside of one.
        for byte in [byte for byte in self._edges[0] if 0x80 <= byte < 0xC0]:
            del self._edges[0][byte]

    def edges(self, place: int) -> Mapping[int, int]:
        return self._edges[place]

    def ends(self, place: int) -> tuple[int, ...]:
        """All that leads to a place ends with the same bytes, in a character or after it."""
        at = self._at[place]
        inside = at < len(self._text) and 0x80 <= self._text[at] < 0xC0
        return () if place == 0 or inside else (at,)

    def _new(self, edges: dict[int, int], length: int, link: int, at: int) -> int:
        self._edges.append(edges)
        self._length.append(length)
        self._link.append(link)
        self._at.append(at)
        return len(self._edges) - 1

    def _add(self, last: int, byte: int, at: int) -> int:
        """Add the passage's next byte; returns the place of the passage so far."""
        new = self._new({}, self._length[last] + 1, 0, at)
        place = last
        while place >= 0 and byte not in self._edges[place]:
            self._edges[place][byte] = new
            place = self._link[place]
        if place >= 0:
            self._link[new] = self._parted(place, byte)
        return new

    def _parted(self, place: int, byte: int) -> int:
        """The place of the longest suffix that occurred before; one that stands for longer ones too is parted."""
        there = self._edges[place][byte]
        if self._length[there] == self._length[place] + 1:
            return there
        copied = self._new(dict(self._edges[there]), self._length[place] + 1, self._link[there], self._at[there])
        while place >= 0 and self._edges[place].get(byte) == there:
            self._edges[place][byte] = copied
            place = self._link[place]
        self._link[there] = copied
        return copied
