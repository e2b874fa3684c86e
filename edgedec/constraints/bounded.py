"""JSON that ends: numbers of at most 20 digits, and strings that leave room for the rest of the text.

A small model may not find the end of a number or a string. Where a number has its digits, or where what is left of the
tokens is needed to complete the text, only tokens that end it are allowed, if there are any: the text stays one that
the schema allows. How many tokens the rest needs is found by completing a copy of the text in the shortest way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from edgedec.constraints.matcher import GrammarConstraint, Mask
from edgedec.constraints.place import JsonPlace, Pieces, pieces
from edgedec.opened import OpenedModel

MOST_DIGITS = 20
# With more tokens left than this no string is ended; the shortest completion is followed no further.
_RANGE = 256
# The model completes a text in more tokens than the shortest way: spaces, words, other spellings.
_SPARE = 8
# Characters by which a text is completed, the shortest values first.
_SIGNS = '}]01"ntf[{:,-'


class BoundedConstraint(GrammarConstraint):
    """A `GrammarConstraint` of JSON, or of a text that is JSON if it begins with a bracket (`free`)."""

    _pieces: Pieces
    _first = JsonPlace()

    @classmethod
    def of(cls, inner: GrammarConstraint, model: OpenedModel, free: bool = False) -> BoundedConstraint:
        """The same constraint, bounded."""
        found = cls(inner.what, inner._matcher, inner.vocabulary)
        found.source = None if free else inner.source
        found._pieces = pieces(model.tokenizer, model.spec.vocab_size)
        found._first = found._place = JsonPlace("start") if free else JsonPlace()
        found._taken, found._left, found._needs = 0, None, {}
        return found

    # The tokens so far; how many may follow, None if that is not known; what the rest of the text needs after the
    # string or number that began at a token, by its number and the drafted tokens up to it.
    _place: JsonPlace
    _taken: int
    _left: int | None
    _needs: dict[tuple[int, tuple[int, ...]], int]

    def limit(self, tokens: int | None) -> None:
        """Note how many tokens may follow; None: any number."""
        self._left = tokens

    def mask(self, path: Sequence[int]) -> Mask:
        """bool [vocab]: what may follow `path`."""
        found = super().mask(path)
        place = self._after(path)
        if place.kind == "number":
            room = 0 if self._must_end(place, path) else MOST_DIGITS - place.digits
            ends = found & (self._pieces.digits <= max(room, 0)) if room < MOST_DIGITS // 2 else found
        elif place.kind == "string" and self._must_end(place, path):
            ends = found & self._pieces.closing
        else:
            return found
        return ends if ends.any() else found

    def validate(self, tokens: Sequence[int], path: Sequence[int] = ()) -> list[bool]:
        """As `mask`: where a string or number may have to end, only the mask knows whether any token ends it."""
        if self._after(path).kind in ("number", "string") and self._near(path):
            found = self.mask(path)
            return [bool(found[token]) for token in tokens]
        return super().validate(tokens, path)

    def accept(self, token: int) -> None:
        super().accept(token)
        self._place = self._place.after(self._pieces[int(token)], self._taken)
        self._taken += 1
        self._left = None if self._left is None else self._left - 1
        # Of paths that begin with the token, as `_masks`; those without a path are of what has begun already.
        self._needs = {
            (since, path[1:]): need for (since, path), need in self._needs.items() if not path or path[0] == token
        }

    def reset(self) -> None:
        super().reset()
        self._place, self._taken, self._left = self._first, 0, None
        self._needs.clear()

    def fork(self) -> Self:
        twin = super().fork()
        twin._pieces, twin._first, twin._place = self._pieces, self._first, self._place
        twin._taken, twin._left, twin._needs = self._taken, self._left, dict(self._needs)
        return twin

    def _after(self, path: Sequence[int]) -> JsonPlace:
        place = self._place
        for at, token in enumerate(path, self._taken):
            place = place.after(self._pieces[int(token)], at)
        return place

    def _near(self, path: Sequence[int]) -> bool:
        """Whether `mask` may end the string or number there."""
        place = self._after(path)
        digits = place.kind == "number" and MOST_DIGITS - place.digits < MOST_DIGITS // 2
        return digits or self._must_end(place, path)

    def _must_end(self, place: JsonPlace, path: Sequence[int]) -> bool:
        """Whether the tokens that are left after `path` are needed for what follows the string or number there."""
        if self._left is None or self._left - len(path) > _RANGE:
            return False
        # Counted where it begins or where the range does, so that drafts change nothing.
        at = max(place.since + 1 - self._taken, self._left - _RANGE, 0)
        key = place.since, tuple(path[:at])
        need = self._needs.get(key)
        if need is None:
            need = self._needs[key] = self._shortest(path[:at])
        return self._left - len(path) <= need + need // 2 + _SPARE

    def _shortest(self, path: Sequence[int]) -> int:
        """The tokens of a short completion after `path`."""
        self._follow(tuple(path))
        quoted = self._after(path).kind == "string"
        return self._matcher.shortest(quoted, self._pieces.ids('"'), self._pieces.ids(_SIGNS), _RANGE)
