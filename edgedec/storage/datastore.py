"""A datastore: documents as tokens with an index over them, for retrieved drafts (REST, RASD).

The file, little endian; no pickle, memory-mapped:

8 bytes    b"EDGEDOCS"
4, 4       version, vocabulary
8          number of segments
32 bytes   sha256 of the tokenizer whose tokens these are
32 bytes   sha256 of all that follows the header
40 bytes   zero
segments   number of tokens n (8 bytes), the tokens, last first, as int32 [n], -1 after each document; then the suffix
           array int32 [n]: places in the order of the `DEPTH` tokens from there on

What follows place r in the document is token r - 1, then r - 2. A segment holds at most `SEGMENT` tokens, so that
building takes bounded memory; a query goes through all of them, one bisection each.
"""

from __future__ import annotations

import hashlib
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.storage.files import replacing

MAGIC, VERSION, END = b"EDGEDOCS", 1, -1
SEGMENT = 1 << 21
DEPTH = 12  # three, doubled twice
_HEADER = struct.Struct("<8sIIQ32s32s40x")
_COUNT = struct.Struct("<Q")
_CHUNK = 1 << 20
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Match:
    """A place in the documents: what comes next there is `tokens[place - 1]`, then `tokens[place - 2]`."""

    tokens: memoryview[int]
    place: int

    @property
    def next(self) -> int:
        """The token that follows; END where a document ends."""
        return self.tokens[self.place - 1] if self.place else END

    def after(self) -> Match:
        """The place one token later."""
        return Match(self.tokens, self.place - 1)


class Segment:
    """Some documents and their suffix array."""

    def __init__(self, tokens: Ids, order: Ids) -> None:
        self.arrays = tokens, order
        self.tokens: memoryview[int] = tokens.data
        self._order: memoryview[int] = order.data

    def longest(self, query: Sequence[int]) -> int:
        """The longest match: the most of these tokens, the latest first, before any place."""
        tokens, query = self.tokens, list(query)
        at = bisect_left(self._order, query, key=lambda place: tokens[place : place + DEPTH].tolist())
        near = [self._order[i] for i in (at - 1, at) if 0 <= i < len(self._order)]
        return max((_agree(tokens[place : place + DEPTH].tolist(), query) for place in near), default=0)

    def span(self, query: Sequence[int]) -> range:
        """The numbers in the order of the places that have these tokens, the latest first, before them."""
        tokens, query, n = self.tokens, list(query), len(query)

        def key(place: int) -> list[int]:
            return tokens[place : place + n].tolist()

        start = bisect_left(self._order, query, key=key)
        return range(start, bisect_right(self._order, query, start, key=key))

    def counts(self, query: Sequence[int]) -> list[int]:
        """How many places have the first 1, 2, … of these tokens before them, the latest first; 0 is left out."""
        tokens, order, found, low, high = self.tokens, self._order, list[int](), 0, len(self._order)
        for n, token in enumerate(query):

            def key(place: int, n: int = n) -> int:
                return tokens[place + n] if place + n < len(tokens) else END - 1

            low = bisect_left(order, token, low, high, key=key)
            high = bisect_right(order, token, low, high, key=key)
            if low == high:
                break
            found.append(high - low)
        return found

    def match(self, number: int) -> Match:
        """The place of this number in the order."""
        return Match(self.tokens, self._order[number])


class Datastore:
    """A datastore file, opened: `find` looks text up in it."""

    def __init__(self, path: Path, digest: str, vocab: int) -> None:
        """digest, vocab: of the tokenizer that the model at hand uses. UsageError for any other file, by name."""
        self.path, self.vocab = path, vocab
        try:
            raw = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise UsageError(f"{path}: datastore: {getattr(error, 'strerror', None) or error}") from None
        self.segments = [Segment(tokens, order) for tokens, order in _segments(raw, path, digest, vocab)]
        self.tokens = sum(len(segment.tokens) for segment in self.segments)

    def find(self, ids: Sequence[int], most: int) -> list[tuple[int, list[Match]]]:
        """The places of the documents that match the end of `ids`: (length of the match, up to `most` places), for the
        longest match and for half of it."""
        query = list(ids[: -DEPTH - 1 : -1])
        lengths = [segment.longest(query) for segment in self.segments]
        best = max(lengths, default=0)
        found = [(best, self._places(query[:best], most))] if best else []
        if best >= 4:
            found.append((best // 2, self._places(query[: best // 2], most)))
        return found

    def counts(self, ids: Sequence[int]) -> list[int]:
        """How often the last 1, 2, … of these tokens stand in the documents, `DEPTH` at most; 0 is left out."""
        query = list(ids[: -DEPTH - 1 : -1])
        found = [segment.counts(query) for segment in self.segments]
        return [sum(each) for each in zip_longest(*found, fillvalue=0)]

    def _places(self, query: Sequence[int], most: int) -> list[Match]:
        """Up to `most` places, evenly spread over all matches."""
        spans = [(segment, segment.span(query)) for segment in self.segments]
        total = sum(len(span) for _, span in spans)
        found: list[Match] = []
        step = max(total / most, 1.0)
        passed, at = 0, 0.0
        for segment, span in spans:
            while at < passed + len(span) and len(found) < most:
                found.append(segment.match(span[int(at) - passed]))
                at += step
            passed += len(span)
        return found


def write_datastore(
    path: Path,
    digest: str,
    vocab: int,
    documents: Iterable[Sequence[int]],
    onto: Datastore | None = None,
    segment: int = SEGMENT,
) -> tuple[int, int]:
    """Write documents, after those of the datastore `onto`: (tokens, segments) of the new file."""
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder for a datastore; make it, or name another")
    with replacing(path) as file:
        file.write(bytes(_HEADER.size))
        sink = _Writer(file, segment)
        for old in onto.segments if onto else ():
            sink.add(np.asarray(old.tokens, np.int32)[::-1])
        for document in documents:
            sink.add(np.array([*document, END], np.int32))
        sink.flush()
        if not sink.tokens:
            raise UsageError("no text in these files, so there is nothing to look up")
        file.seek(0)
        file.write(_HEADER.pack(MAGIC, VERSION, vocab, sink.count, bytes.fromhex(digest), sink.hash.digest()))
    return sink.tokens, sink.count


class _Writer:
    """Tokens in reading order -> segments of at most so many tokens."""

    def __init__(self, file: BinaryIO, segment: int) -> None:
        self._file, self._segment = file, segment
        self._held: list[Ids] = []
        self._n = self.tokens = self.count = 0
        self.hash = hashlib.sha256()

    def add(self, tokens: Ids) -> None:
        while len(tokens):
            part = tokens[: self._segment - self._n]
            self._held.append(part)
            self._n += len(part)
            tokens = tokens[len(part) :]
            if self._n == self._segment:
                self.flush()

    def flush(self) -> None:
        if not self._n:
            return
        back = np.ascontiguousarray(np.concatenate(self._held)[::-1], "<i4")
        for part in (_COUNT.pack(len(back)), back.tobytes(), sorted_places(back).astype("<i4").tobytes()):
            self._file.write(part)
            self.hash.update(part)
        self.tokens, self.count = self.tokens + self._n, self.count + 1
        self._held, self._n = [], 0


def sorted_places(back: Ids) -> Ids:
    """The places in the order of the `DEPTH` tokens from there on: by three, then by doubling (Manber and Myers)."""
    n, base = len(back), int(back.max(initial=0)) + 3
    rank = back.astype(np.int64) + 2  # 0 is beyond the end, 1 is END
    key = (rank * base + _shifted(rank, 1)) * base + _shifted(rank, 2)
    width = 3
    while True:
        order = np.argsort(key)
        if width >= DEPTH or not n:
            return order.astype(np.int32)
        ordered = key[order]
        rank[order] = np.cumsum(np.concatenate([[1], ordered[1:] != ordered[:-1]]))
        key = rank * (n + 1) + _shifted(rank, width)
        width *= 2


def _shifted(rank: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    beyond = np.zeros_like(rank)
    beyond[: max(0, len(rank) - by)] = rank[by:]
    return beyond


def _agree(a: Sequence[int], b: Sequence[int]) -> int:
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return at
    return min(len(a), len(b))


def _segments(raw: NDArray[np.uint8], path: Path, digest: str, vocab: int) -> Iterator[tuple[Ids, Ids]]:
    """The segments of a file, after its header, its hash and their numbers were checked."""
    if len(raw) < _HEADER.size or raw[:8].tobytes() != MAGIC:
        raise UsageError(f"{path}: not a datastore, or cut short; make one with `edgedec datastore build`")
    _, version, size, count, tokenizer, expected = _HEADER.unpack(raw[: _HEADER.size].tobytes())
    if version != VERSION:
        raise UsageError(f"{path}: datastore of version {version}, this edgedec reads {VERSION}; build it again")
    if tokenizer != bytes.fromhex(digest) or size != vocab:
        raise UsageError(f"{path}: datastore of another tokenizer; build one for this model")
    found = hashlib.sha256()
    for start in range(_HEADER.size, len(raw), _CHUNK):
        found.update(raw[start : start + _CHUNK].data)
    if found.digest() != expected:
        raise UsageError(f"{path}: damaged datastore (its hash differs); build it again")
    yield from _parts(raw[_HEADER.size :], count, vocab, lambda why: UsageError(f"{path}: damaged datastore ({why})"))


def _parts(
    body: NDArray[np.uint8], count: int, vocab: int, wrong: Callable[[str], UsageError]
) -> Iterator[tuple[Ids, Ids]]:
    at = 0
    for number in range(count):
        n = _COUNT.unpack(body[at : at + 8].tobytes())[0] if at + 8 <= len(body) else len(body)
        if at + 8 + 8 * n > len(body):
            raise wrong(f"segment {number} is cut short")
        tokens, order = body[at + 8 : at + 8 + 4 * n].view("<i4"), body[at + 8 + 4 * n : at + 8 + 8 * n].view("<i4")
        if n and (tokens.min() < END or tokens.max() >= vocab or order.min() < 0 or order.max() >= n):
            raise wrong(f"segment {number} has a number out of range")
        yield tokens, order
        at += 8 + 8 * n
    if at != len(body):
        raise wrong("bytes after the last segment")


def identity(path: Path) -> tuple[str, int, int, int]:
    """The identity of a file, which changes when it is replaced."""
    try:
        facts = os.stat(path)
    except OSError as error:
        raise UsageError(f"{path}: datastore: {error.strerror or error}") from None
    return str(path.resolve()), facts.st_ino, facts.st_mtime_ns, facts.st_size
