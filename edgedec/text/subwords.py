"""Merging of neighbouring subwords inside words: the rule of dynamic tokenization.

Feher et al. 2024 (arXiv:2411.18553), from the authors' code (DariusFeher/dynamic-tokenization). Of all texts of a
batch the neighbours that may be joined are counted; the most frequent pair is joined everywhere, from left to right,
and so on, as in the training of a BPE tokenizer.

    batch  [l ow er] [l ow est] [n ew er]     l+ow twice: joined everywhere, in [low er] [low est] [n ew er]

Two neighbours may be joined if together they are one pre-token of the model's own tokenizer, which for the characters
after the first rules out white space. Special and added tokens are never part of a join. A pair is known by its text,
whatever tokens that was made of. Ours: a join has at most `longest` tokens, since a trained network has places for so
many; of equally frequent pairs the one that comes first in the batch is next (in the authors' code too, by the order
of their counter); and half a character is joined to no letter, where theirs joins it to anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush

from edgedec.text.token_bytes import token_bytes
from edgedec.text.tokenizer import Tokenizer

# The text of a token, None for one that takes part in no join.
PieceBytes = bytes | None
Pair = tuple[bytes, bytes]
_FREQUENT = 1 << 16


class Joinable:
    """Which subwords may be joined, by the pre-tokens of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.encode, self._pretokens = tokenizer.encode, tokenizer.pretokens
        added = tokenizer.added
        self._pieces: list[PieceBytes] = [
            None if i in added or not piece else piece for i, piece in enumerate(token_bytes(tokenizer, size).of)
        ]
        self.whole = lru_cache(_FREQUENT)(self._whole)

    def pieces(self, ids: Sequence[int]) -> list[PieceBytes]:
        """The texts of tokens."""
        known = self._pieces
        return [known[i] if 0 <= i < len(known) else None for i in ids]

    def _whole(self, joined: bytes) -> bool:
        """Whether a text is one pre-token without white space after its first character. Broken characters are
        symbols."""
        text = joined.decode(errors="replace")
        return not any(map(str.isspace, text[1:])) and self._pretokens(text) == 1


@lru_cache(maxsize=4)
def joinable_of(tokenizer: Tokenizer, size: int) -> Joinable:
    """Those of the first `size` tokens, made once."""
    return Joinable(tokenizer, size)


class Merging:
    """Texts of a batch while their subwords are merged. whole: whether a joined text is one word; longest: tokens of a
    join."""

    def __init__(self, texts: Sequence[Sequence[PieceBytes]], whole: Callable[[bytes], bool], longest: int) -> None:
        self._whole, self._longest = whole, longest
        self._piece = [piece for text in texts for piece in text]
        self._size = [1] * len(self._piece)
        self._starts = list(_starts(texts))
        # Neighbours of each row, -1 at the ends of a text.
        self._next, self._before = list(range(1, len(self._piece) + 1)), list(range(-1, len(self._piece) - 1))
        for text, start in zip(texts, self._starts, strict=True):
            if len(text):
                self._before[start] = self._next[start + len(text) - 1] = -1
        self.rows = len(self._piece)
        # By pair: where the left one stands.
        self._places: dict[Pair, set[int]] = {}
        for at in range(self.rows):
            self._add(at)

    def learn(self, most: int, rows: int) -> list[Pair]:
        """Merge the most frequent pair, up to `most` times and until no more than `rows` rows are left -> the pairs, in
        this order."""
        # The key of a pair in the queue is never above its real one: old entries are corrected when they come up.
        queue = [(*self._key(pair), pair) for pair in self._places]
        heapify(queue)
        found = list[Pair]()
        while queue and len(found) < most and self.rows > rows:
            *key, pair = heappop(queue)
            if pair not in self._places:
                continue
            if (real := self._key(pair)) != tuple(key):
                heappush(queue, (*real, pair))
                continue
            for other in self.merge(pair):
                heappush(queue, (*self._key(other), other))
            found.append(pair)
        return found

    def merge(self, pair: Pair) -> set[Pair]:
        """Join a pair everywhere, from left to right -> the pairs that this made."""
        made = set[Pair]()
        for at in sorted(self._places.get(pair, ())):
            if self._pair(at) == pair:  # not joined with its left neighbour just now
                made |= self._join(at)
        return {other for other in made if other in self._places}

    def sizes(self) -> list[list[int]]:
        """By text: how many tokens each row has."""
        return [self._sizes(start) for start in self._starts]

    def _sizes(self, start: int) -> list[int]:
        found = list[int]()
        while start >= 0:
            found.append(self._size[start])
            start = self._next[start]
        return found

    def _key(self, pair: Pair) -> tuple[int, int]:
        places = self._places[pair]
        return -len(places), min(places)

    def _pair(self, at: int) -> Pair | None:
        """The pair that begins at a row, if it may be joined."""
        after = self._next[at]
        if after < 0 or self._size[at] + self._size[after] > self._longest:
            return None
        left, right = self._piece[at], self._piece[after]
        return (left, right) if left and right and self._whole(left + right) else None

    def _join(self, at: int) -> set[Pair]:
        before, gone = self._before[at], self._next[at]
        after = self._next[gone]
        around = [row for row in (before, at, gone) if row >= 0]
        for row in around:
            self._remove(row)
        left, right = self._piece[at], self._piece[gone]
        assert left is not None
        assert right is not None
        self._piece[at], self._size[at], self._next[at] = left + right, self._size[at] + self._size[gone], after
        self._piece[gone], self._next[gone] = None, -1
        if after >= 0:
            self._before[after] = at
        self.rows -= 1
        return {pair for row in around[:-1] if (pair := self._add(row)) is not None}

    def _add(self, at: int) -> Pair | None:
        if (pair := self._pair(at)) is not None:
            self._places.setdefault(pair, set()).add(at)
        return pair

    def _remove(self, at: int) -> None:
        if (pair := self._pair(at)) is not None:
            places = self._places[pair]
            places.discard(at)
            if not places:
                del self._places[pair]


def _starts(texts: Sequence[Sequence[PieceBytes]]) -> Iterator[int]:
    """Where each text begins in the batch; -1 for an empty one."""
    at = 0
    for text in texts:
        yield at if len(text) else -1
        at += len(text)
