"""Text to token ids by the library: many texts at a time, long ones without holding up other threads, and a count that
stops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

# Characters of a text whose encoding takes milliseconds.
_LONG = 2000
# For a count: characters of a piece, and for each token, of a text that is not counted; tokens that a cut between two
# pieces may add.
_PIECE, _SURE, _CUT = 1 << 13, 4, 16


class Encoder:
    """Whether special tokens are read is a setting of the library's object: texts of one setting are encoded at a time,
    however many."""

    def __init__(self, raw: tokenizers.Tokenizer) -> None:
        self._raw, self._special = raw, True
        self._turn, self._encoding = threading.Condition(), 0
        raw.encode_special_tokens = False

    def encode(self, text: str, special: bool, around: bool) -> list[int]:
        with self._set(special):
            if len(text) < _LONG:
                return list(self._raw.encode(text, add_special_tokens=special and around).ids)
            # The same tokens; the library lets other threads run meanwhile.
            return list(self._raw.encode_batch_fast([text], add_special_tokens=special and around)[0].ids)

    def encode_pair(self, first: str, second: str | None, most: int | None) -> tuple[list[int], list[int]]:
        with self._set(True):
            texts = [first] if second is None else [first, second]
            parts = self._raw.encode_batch(texts, add_special_tokens=False)
            if most is not None:
                room = max(most - self._raw.num_special_tokens_to_add(second is not None), 0)
                for part, length in zip(parts, cut([len(part.ids) for part in parts], room), strict=True):
                    part.truncate(length)
            made = self._raw.post_process(parts[0], parts[1] if len(parts) > 1 else None, add_special_tokens=True)
            return list(made.ids), list(made.type_ids)

    @contextmanager
    def _set(self, special: bool) -> Iterator[None]:
        with self._turn:
            self._turn.wait_for(lambda: not self._encoding or self._special == special)
            if self._special != special:
                self._special, self._raw.encode_special_tokens = special, not special
            self._encoding += 1
        try:
            yield
        finally:
            with self._turn:
                self._encoding -= 1
                self._turn.notify_all()


def cut(lengths: list[int], room: int) -> list[int]:
    """The lengths of one or two texts that fit into `room` tokens, the longer one cut first, as tokenizers does it.

    >>> cut([5, 20], 12), cut([9, 20], 12), cut([3, 4], 12)
    ([5, 7], [6, 6], [3, 4])
    """
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    short = min(lengths)
    found = [short, max(short, room - short)]
    if sum(found) > room:
        found = [room // 2, room // 2 + room % 2]
    return found if lengths[0] <= lengths[1] else found[::-1]


def at_least(text: str, most: int, count: Callable[[str], int]) -> int:
    """A number of tokens that the text has at least, if that is more than `most`; 0 if it may have fewer. Counts piece
    by piece and stops there, so a long text costs what `most` tokens cost. count: tokens of a piece.

    >>> at_least("a b " * 10_000, 3000, lambda piece: len(piece.split()))
    4080
    """
    if len(text) <= _SURE * most:
        return 0
    found = 0
    for start in range(0, len(text), _PIECE):
        found += max(count(text[start : start + _PIECE]) - _CUT, 0)
        if found > most:
            return found
    return 0
