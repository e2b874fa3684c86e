"""Whether a grammar has a member that fits a text with gaps.

A text with gaps is an automaton: a chain of known bytes, and for a gap of m masked tokens m steps over any byte, the
last of which may be repeated, as every token has a byte or more. Its intersection with a context-free grammar is not
empty exactly if a chart parser gets through it (Earley's parser, run over the automaton instead of a string;
after the text of arXiv:2508.10111, which intersects by Bar-Hillel's construction and searches for a productive rule).

Every edge leads on or back to its own state, so the states are a chain, and each is computed once, from those before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edgedec.diffusion.grammars.rules import Grammar

# A part of a text: bytes, or a number of masked tokens.
Part = bytes | int


class GrammarPlace:
    """A state of the automaton, with all that a parser may be in the middle of there. Never empty: where no member goes
    on there is no place (None). As a text's end it is a member if `accepts`; as its beginning it always can be
    completed, since every rule has a text.

    `_wait`: by rule, the items that stand before it; `_scan`: those that stand before bytes. An item is a dot and the
    place where its alternative began. `_need`: by rule, the fewest bytes that follow it if it began here.
    """

    __slots__ = ("_gap", "_grammar", "_need", "_root", "_scan", "_some", "_wait", "accepts")

    def __init__(
        self, grammar: Grammar, items: Iterable[tuple[int, GrammarPlace]], root: bool = False, loop: bool = False
    ):
        self._grammar, self._root, self.accepts = grammar, root, False
        self._wait: dict[int, list[tuple[int, GrammarPlace]]] = {}
        self._scan: list[tuple[int, int, GrammarPlace]] = []
        self._some: tuple[GrammarPlace | None] | None = None
        self._gap: dict[int, GrammarPlace | None] = {}
        self._close(items, loop)
        self._need = self._needs()

    @classmethod
    def start(cls, grammar: Grammar) -> GrammarPlace:
        """The beginning of a text."""
        return cls(grammar, (), root=True)

    def _close(self, items: Iterable[tuple[int, GrammarPlace]], loop: bool) -> None:
        """Add what follows from items: rules that begin here, and rules that are complete."""
        after, left, starts, masks = self._grammar.after, self._grammar.left, self._grammar.starts, self._grammar.masks
        todo, seen, begun, whole = list(items), set[tuple[int, GrammarPlace]](), set[int](), set[int]()
        if self._root:
            begun.add(self._grammar.start)
            todo += [(dot, self) for dot in starts[self._grammar.start]]
        while todo:
            item = todo.pop()
            if item in seen:
                continue
            seen.add(item)
            dot, origin = item
            symbol = after[dot]
            if symbol is None:
                rule = left[dot]
                self.accepts |= origin._root and rule == self._grammar.start
                if origin is self:
                    whole.add(rule)
                todo += [(at + 1, of) for at, of in origin._wait.get(rule, ())]
            elif symbol < 0:
                self._scan.append((masks[~symbol], dot + 1, origin))
                if loop:
                    todo.append((dot + 1, origin))
            else:
                self._wait.setdefault(symbol, []).append(item)
                if symbol not in begun:
                    begun.add(symbol)
                    todo += [(at, self) for at in starts[symbol]]
                if symbol in whole:
                    todo.append((dot + 1, origin))

    def _needs(self) -> dict[int, int]:
        rest, left = self._grammar.rest, self._grammar.left
        found = {self._grammar.start: 0} if self._root else dict[int, int]()
        more = True
        while more:
            more = False
            for rule, items in self._wait.items():
                for dot, origin in items:
                    after = (found if origin is self else origin._need).get(left[dot])
                    least = found.get(rule)
                    if after is not None and (least is None or rest[dot + 1] + after < least):
                        found[rule], more = rest[dot + 1] + after, True
        return found

    @property
    def need(self) -> int:
        """The fewest bytes with which the text is a member."""
        rest, left = self._grammar.rest, self._grammar.left
        found = [
            1 + rest[dot] + (self._need if origin is self else origin._need)[left[dot]] for _, dot, origin in self._scan
        ]
        return 0 if self.accepts else min(found)

    @property
    def allowed(self) -> int:
        """The bytes that may follow, as a mask of 256 bits."""
        found = 0
        for mask, _, _ in self._scan:
            found |= mask
        return found

    @property
    def done(self) -> bool:
        """Whether the text is a member, and no longer one is."""
        return self.accepts and not self._scan

    def byte(self, value: int) -> GrammarPlace | None:
        """The place after one byte."""
        items = [(dot, origin) for mask, dot, origin in self._scan if mask >> value & 1]
        return GrammarPlace(self._grammar, items) if items else None

    def some(self) -> GrammarPlace | None:
        """The place after one byte, whichever."""
        if self._some is None:
            items = [(dot, origin) for _, dot, origin in self._scan]
            self._some = (GrammarPlace(self._grammar, items) if items else None,)
        return self._some[0]

    def exactly(self, n: int) -> GrammarPlace | None:
        """The place after n bytes, whichever."""
        place: GrammarPlace | None = self
        for _ in range(n):
            place = None if place is None else place.some()
        return place

    def gap(self, tokens: int) -> GrammarPlace | None:
        """The place after so many masked tokens, of a byte or more each."""
        if not tokens:
            return self
        if tokens not in self._gap:
            before = self.exactly(tokens - 1)
            items = [] if before is None else [(dot, origin) for _, dot, origin in before._scan]
            self._gap[tokens] = GrammarPlace(self._grammar, items, loop=True) if items else None
        return self._gap[tokens]

    def after(self, parts: Iterable[Part]) -> GrammarPlace | None:
        """The place after parts of a text; None if no member fits them."""
        place: GrammarPlace | None = self
        for part in parts:
            if isinstance(part, int):
                place = None if place is None else place.gap(part)
                continue
            for value in part:
                place = None if place is None else place.byte(value)
        return place


def shortest(place: GrammarPlace, fits: Callable[[GrammarPlace], bool], most: int = 256) -> bytes | None:
    """The shortest bytes after which a place fits, letters and digits before others; None if more than `most` are
    needed."""
    lengths: list[GrammarPlace] = [place]
    while not fits(lengths[-1]):
        after = lengths[-1].some()
        if after is None or len(lengths) > most:
            return None
        lengths.append(after)
    found = bytearray()
    for left in range(len(lengths) - 2, -1, -1):
        value, place = next(
            (value, after)
            for value in _ORDER
            if place.allowed >> value & 1
            and (after := place.byte(value)) is not None
            and (end := after.exactly(left)) is not None
            and fits(end)
        )
        found.append(value)
    return bytes(found)


_ORDER = sorted(range(256), key=lambda value: (not chr(value).isalnum() or value > 0x7F, value))
