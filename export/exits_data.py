"""Training data for fine-tuning: files of text as a stream of token rows that can be resumed.

Documents are read one after the other, shuffled within blocks, and joined; a row starts where a document does. Only
one block is in memory. The same seed gives the same rows, so the place in the stream is a few numbers: pass, block and
row.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from edgedec.errors import UsageError

END = "<|endoftext|>"
BLOCK = 1024  # documents
_CHUNK, _LONGEST = 1 << 20, 1 << 22  # characters
_HELD_EVERY, _MOST_HELD = 50, 16

Encode = Callable[[str], list[int]]


@dataclass
class Place:
    """The next row: the pass over the files, the block of it, the row in the block."""

    turn: int = 0
    block: int = 0
    row: int = 0


def documents(path: Path) -> Iterator[str]:
    """The texts in a file, a few at a time: lines with a "text" if it is JSONL, else split where <|endoftext|>
    stands."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from filter(str.strip, _lines(file, path) if path.suffix == ".jsonl" else _parts(file))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def _parts(file: Iterator[str]) -> Iterator[str]:
    kept = ""
    while piece := file.read(_CHUNK):  # type: ignore[attr-defined]
        *whole, kept = (kept + piece).split(END)
        yield from whole
        if len(kept) > _LONGEST:  # a file without ends of texts is never held as a whole
            yield kept[: -len(END)]
            kept = kept[-len(END) :]
    yield kept


def _lines(file: Iterator[str], path: Path) -> Iterator[str]:
    for i, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (ValueError, TypeError, KeyError):
            text = None
        if not isinstance(text, str):
            raise UsageError(f'{path}: line {i} is no JSON object with a "text"')
        yield text


def is_held(text: str) -> bool:
    """Whether a document is held out for measuring; decided by a hash of its content, not its place."""
    return crc32(text.encode()) % _HELD_EVERY == 0


class TokenStream:
    """An endless stream of rows of `length` + 1 tokens; `place` is the place of the next one. read: what is in a file,
    as `encode` takes it."""

    read: Callable[[Path], Iterator[Any]] = staticmethod(documents)

    def __init__(self, files: Sequence[Path], encode: Any, length: int, seed: int, place: Place) -> None:
        self._files, self._encode, self._length, self._seed = files, encode, length, seed
        self.place = place
        self._rows: list[list[int]] | None = None
        self._blocks: Iterator[list[Any]] | None = None

    def held(self) -> list[list[int]]:
        """Rows of documents that are never trained on, of the first block."""
        texts = [text for text in next(self._blocks_from(0), []) if is_held(str(text))]
        return [ids[: self._length + 1] for ids in map(self._encode, texts[:_MOST_HELD]) if len(ids) > 1]

    def __next__(self) -> list[int]:
        while self._rows is None or self.place.row >= len(self._rows):
            self._advance()
        self.place.row += 1
        return self._rows[self.place.row - 1]

    def _advance(self) -> None:
        """Load the block at the place; after the last one a new pass begins."""
        if self._rows is not None:
            self.place.block, self.place.row = self.place.block + 1, 0
        if self._blocks is None:
            self._blocks = self._blocks_from(self.place.block)
        block = next(self._blocks, None)
        if block is None:
            if self.place.block == 0 or (self.place.block == 1 and not self._rows):
                raise UsageError(f"the data hold no row of {self._length + 1} tokens; give more text or --length less")
            self.place.turn, self.place.block, self.place.row = self.place.turn + 1, 0, 0
            self._blocks, self._rows = None, None
            return
        self._rows = list(self._joined(block))

    def _shuffled(self, block: list[Any]) -> list[Any]:
        """The texts of a block that are trained on."""
        texts = [text for text in block if not is_held(str(text))]
        random.Random(f"{self._seed} {self.place.turn} {self.place.block}").shuffle(texts)
        return texts

    def _joined(self, block: list[Any]) -> Iterator[list[int]]:
        row: list[int] = []
        for ids in map(self._encode, self._shuffled(block)):
            row += ids
            if len(row) > self._length:
                yield row[: self._length + 1]
                row = []

    def _blocks_from(self, first: int) -> Iterator[list[Any]]:
        found = (text for path in self._files for text in self.read(path))
        rest = islice(found, first * BLOCK, None)
        while block := list(islice(rest, BLOCK)):
            yield block
