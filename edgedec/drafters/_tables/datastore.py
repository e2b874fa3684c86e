"""Past texts as tokens: stored in a file, and searched for the longest match with the current text.

REST and RASD retrieve drafts from such a datastore. The index is a suffix array of the reversed texts: places with the
same preceding tokens are adjacent, and one bisection finds the longest matches.

The file, little endian; no pickle:

8 bytes   b"EDGETEXT"
32 bytes  sha256 of all that follows
32 bytes  digest of the bundle whose tokens these are
8 bytes   number of int32 that follow
rest      tokens as int32, -1 after each text
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.storage.datastore import DEPTH, sorted_places
from edgedec.storage.files import replacing

MAGIC = b"EDGETEXT"
END = -1
LIMIT = 200_000
_PREFIX = len(MAGIC) + 32
_SHORTEST = 2
Ids = NDArray[np.int32]


class Index:
    """An index of places in past texts that match the current text. Places count backwards: the tokens after place r
    are `back[r - 1]`, then `back[r - 2]`; `END` (or r = 0) ends a text."""

    def __init__(self, flat: Ids) -> None:
        back = np.ascontiguousarray(flat[::-1], np.int32)
        self.back = array("i", back.tobytes())
        self._order = array("i", sorted_places(back).tobytes())

    def find(self, ids: list[int], most: int) -> list[tuple[int, list[int]]]:
        """Up to `most` places with the longest matches: (length of the match up to `DEPTH`, places), longest first."""
        query = array("i", ids[: -DEPTH - 1 : -1])
        back, order = self.back, self._order
        right = bisect_left(order, query, key=lambda place: back[place : place + DEPTH])
        left = right - 1
        found: list[tuple[int, list[int]]] = []
        a = self._match(left, query)
        b = self._match(right, query)
        while most > 0 and max(a, b) >= _SHORTEST:
            if a >= b:
                length, place, left = a, order[left], left - 1
                a = self._match(left, query)
            else:
                length, place, right = b, order[right], right + 1
                b = self._match(right, query)
            if not found or found[-1][0] != length:
                found.append((length, []))
            found[-1][1].append(place)
            most -= 1
        return found

    def agreement(self, place: int, ids: list[int], known: int, most: int) -> int:
        """The number of tokens before a place that equal the last tokens of `ids`; `known` of them are already
        compared."""
        back, length = self.back, known
        most = min(most, len(ids), len(back) - place)
        while length < most and back[place + length] == ids[-1 - length]:
            length += 1
        return length

    def _match(self, at: int, query: array[int]) -> int:
        """The number of tokens before the place `at` of the index that equal the query."""
        if not 0 <= at < len(self._order):
            return 0
        place = self._order[at]
        length = 0
        for a, b in zip(self.back[place : place + DEPTH], query, strict=False):
            if a != b:
                break
            length += 1
        return length


class Store:
    """Ended texts, and the current one. With a path, each text is written to the file when it ends."""

    def __init__(self, digest: str, vocab: int, path: Path | None = None, limit: int = LIMIT) -> None:
        self._digest, self._vocab, self._path, self._limit = digest, vocab, path, limit
        self._flat = np.zeros(0, np.int32)
        self._index: Index | None = None
        self._indexed = 0
        self._ids: list[int] = []
        self._text: list[int] = []
        self.trouble = ""
        if path is not None:
            if not path.parent.is_dir():
                raise UsageError(f"{path.parent}: no such folder for a datastore; make it, or name another")
            if path.exists():
                self._flat = read_texts(path, digest, vocab)

    def __len__(self) -> int:
        return len(self._flat)

    def flat(self) -> Ids:
        """All texts, END after each."""
        return self._flat.copy()

    def index(self) -> Index | None:
        """The index, which may lack the latest texts: it is rebuilt when an eighth of it would be new."""
        if len(self._flat) and (self._index is None or len(self._flat) - self._indexed > self._indexed // 8):
            self._index, self._indexed = Index(self._flat), len(self._flat)
        return self._index

    def follow(self, ids: list[int]) -> None:
        """Set the current text."""
        self._ids = ids
        if len(ids) > len(self._text):
            self._text += ids[len(self._text) :]

    def finish(self) -> None:
        """End the current text."""
        read, ids, text = len(self._text), self._ids, self._text
        if read and len(ids) > read and ids[read - 1] == text[-1]:  # what came after the last proposal
            text = text + ids[read:]
        self._ids, self._text = [], []
        if len(text) > _SHORTEST:
            self.add(np.array([*text, END], np.int32))

    def restore(self, texts: Ids) -> None:
        """Insert the texts of a saved state before the present ones; the file is not changed."""
        if not len(self._flat) or not np.array_equal(texts[-len(self._flat) :], self._flat):
            self._flat = _capped(np.concatenate([texts, self._flat]), self._limit)
        else:
            self._flat = _capped(texts, self._limit)
        self._index, self._indexed = None, 0

    def add(self, texts: Ids) -> None:
        """Add one text or more, END after each. Another session may have added to the file meanwhile."""
        try:
            if self._path is not None and self._path.exists():
                self._flat = read_texts(self._path, self._digest, self._vocab)
            self._flat = _capped(_joined(self._flat, texts), self._limit)
            self._indexed = min(self._indexed, len(self._flat))
            if self._path is not None:
                write_texts(self._path, self._digest, self._flat)
        except (OSError, UsageError) as error:  # a draft that cannot be kept must not stop the text
            self.trouble = str(error)


def check_texts(flat: NDArray[np.generic], vocab: int) -> Ids:
    """`flat`, if it holds texts of this vocabulary; else a ValueError with the reason."""
    if flat.ndim != 1 or flat.dtype != np.int32:
        raise ValueError("texts must be one row of int32")
    if len(flat) and (flat.min() < END or flat.max() >= vocab or flat[-1] != END):
        raise ValueError(f"a token outside the vocabulary of {vocab}, or no end")
    return flat.astype(np.int32)


def read_texts(path: Path, digest: str, vocab: int) -> Ids:
    """What `write_texts` wrote for this bundle; a UsageError that names the file for anything else."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: datastore: {error.strerror or error}") from None
    body = memoryview(raw)[_PREFIX:]
    if raw[:8] != MAGIC or len(body) < 40:
        raise UsageError(f"{path}: not a datastore, or cut short; name another file, or remove it")
    if hashlib.sha256(body).digest() != raw[8:_PREFIX]:
        raise UsageError(f"{path}: damaged datastore (its hash differs); remove it")
    if body[:32] != bytes.fromhex(digest):
        raise UsageError(f"{path}: a datastore of another bundle; name another file for this one")
    if int.from_bytes(body[32:40], "little") * 4 != len(body) - 40:
        raise UsageError(f"{path}: damaged datastore (its length differs); remove it")
    try:
        return check_texts(np.frombuffer(body[40:], "<i4").astype(np.int32), vocab)
    except ValueError as error:
        raise UsageError(f"{path}: damaged datastore ({error}); remove it") from None


def write_texts(path: Path, digest: str, flat: Ids) -> None:
    body = bytes.fromhex(digest) + len(flat).to_bytes(8, "little") + flat.astype("<i4").tobytes()
    with replacing(path) as file:
        file.writelines([MAGIC, hashlib.sha256(body).digest(), body])


def _joined(flat: Ids, texts: Ids) -> Ids:
    """`texts` after `flat`. A text that begins with the whole last one replaces it (the turns of a chat)."""
    ends = np.flatnonzero(flat == END)
    if len(ends):
        start = int(ends[-2]) + 1 if len(ends) > 1 else 0
        last = flat[start:-1]
        if len(texts) > len(last) and np.array_equal(last, texts[: len(last)]):
            flat = flat[:start]
    return np.concatenate([flat, texts])


def _capped(flat: Ids, limit: int) -> Ids:
    """The latest `limit` tokens, in whole texts if the last fits."""
    if len(flat) <= limit:
        return flat
    flat = flat[-limit:]
    border = np.flatnonzero(flat[:-1] == END)
    return flat[border[0] + 1 :] if len(border) else flat
