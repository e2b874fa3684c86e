"""GGUF files: their metadata, and where each tensor lies, with every length checked before anything is allocated by it.

A file is: "GGUF", a version, the counts of tensors and of metadata; the metadata, each a key, a type and a value; of
each tensor its name, sizes, type and offset; and, aligned, the data. A model may be split into several such files.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.gguf.tensor import GgufTensor
from edgedec.export.gguf.types import ALIGNMENT, BY_NUMBER, OTHERS

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_TENSORS, MAX_KEYS, MAX_STRINGS, MAX_NUMBERS = 1 << 17, 1 << 14, 1 << 21, 1 << 24
MAX_NAME, MAX_KEY, MAX_TEXT = 1 << 10, 1 << 16, 1 << 24
MAX_AXES, MAX_VALUES, MAX_ALIGNMENT, MAX_PARTS = 4, 1 << 48, 1 << 20, 1 << 12
STRING, ARRAY = 8, 9
# The numbers of metadata by their type.
NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")

Metadata = dict[str, Any]


@dataclass(frozen=True)
class GgufFile:
    """One model: the metadata of its files, and its tensors by ggml's names. An array of the metadata is a list
    of strings or a numpy array."""

    path: Path
    metadata: Metadata
    tensors: dict[str, GgufTensor]

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """The model of a file and, if it is split, of the other parts in its folder."""
        found = cls._one(path)
        count = found.metadata.get("split.count", 0)
        if type(count) is not int or count <= 1:
            return found
        tensors: dict[str, GgufTensor] = {}
        first = found
        for at, part in enumerate(split_paths(path, count)):
            other = cls._one(part)
            first = other if at == 0 else first
            _require_part(other, at, count)
            if tensors.keys() & other.tensors.keys():
                raise BadTensor(f"{part}: holds {min(tensors.keys() & other.tensors.keys())}, as does a part before it")
            tensors |= other.tensors
        expected = first.metadata.get("split.tensors.count", len(tensors))
        if expected != len(tensors):
            raise CheckpointError(f"{path}: its {count} parts hold {len(tensors)} tensors, not {expected}")
        return replace(first, tensors=tensors)

    @classmethod
    def _one(cls, path: Path) -> GgufFile:
        try:
            with path.open("rb") as file:
                return _Header(file, path).read()
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from None


def split_paths(path: Path, count: int) -> list[Path]:
    """The files of a model that is split into so many, by the name of one of them."""
    named = PART.fullmatch(path.name)
    if named is None or int(named[3]) != count or count > MAX_PARTS:
        raise CheckpointError(f"{path}: is a part of {count}; its name must be NAME-00001-of-{count:05}.gguf")
    paths = [path.with_name(f"{named[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    for other in paths:
        if not other.is_file():
            raise CheckpointError(f"{other}: is missing; it is a part of the same model as {path.name}")
    return paths


def _require_part(part: GgufFile, at: int, count: int) -> None:
    found = part.metadata.get("split.no"), part.metadata.get("split.count")
    if found != (at, count):
        raise CheckpointError(
            f"{part.path}: says that it is part {found[0]} of {found[1]}, not {at} (from 0) of {count}"
        )


class _Header:
    """Reads the head of one file from its beginning."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.path, self._file = path, file
        self.size = file.seek(0, 2)
        file.seek(0)

    def read(self) -> GgufFile:
        if self.size < 24 or self._take(4) != MAGIC:
            raise self._bad("is not a GGUF file, or cut short")
        version = self._u32()
        if version not in VERSIONS:
            big = ", of a big-endian machine," if version in (2 << 24, 3 << 24) else ""
            raise self._bad(f"GGUF version {version}{big} is not supported; known: 2 and 3, little-endian")
        n_tensors, n_keys = self._count("tensors", MAX_TENSORS, 24), self._count("metadata keys", MAX_KEYS, 13)
        metadata = self._metadata(n_keys)
        entries = dict(self._entry() for _ in range(n_tensors))
        if len(entries) != n_tensors:
            raise self._bad("names a tensor twice")
        return GgufFile(self.path, metadata, self._placed(entries, self._alignment(metadata)))

    def _bad(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {why}")

    def _take(self, n: int) -> bytes:
        """The next n bytes; CheckpointError at the end of the file."""
        if n > self.size - self._file.tell():
            raise self._bad(f"is cut short, or damaged: {n} bytes are missing at byte {self._file.tell()}")
        return self._file.read(n)

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _count(self, what: str, most: int, least_bytes: int) -> int:
        """A count of items, refused if items of this least size would exceed the file."""
        n = self._u64()
        if n > most or n * least_bytes > self.size - self._file.tell():
            raise self._bad(f"says that it has {n} {what}: damaged, or more than there can be")
        return n

    def _string(self, longest: int, what: str) -> str:
        n = self._u64()
        if n > longest:
            raise self._bad(f"{what} of {n} bytes: damaged, or longer than the {longest} there can be")
        try:
            return self._take(n).decode("utf-8")
        except UnicodeDecodeError:
            raise self._bad(f"{what} is not UTF-8") from None

    def _metadata(self, n: int) -> Metadata:
        found: Metadata = {}
        for _ in range(n):
            key = self._string(MAX_KEY, "a metadata key")
            if key in found:
                raise self._bad(f"metadata {key!r:.80} occurs twice")
            found[key] = self._value(self._u32(), key)
        return found

    def _value(self, kind: int, key: str) -> Any:
        what = f"metadata {key!r:.80}"
        if kind == STRING:
            return self._string(MAX_TEXT, what)
        if kind == ARRAY:
            return self._array(what)
        return self._numbers(kind, 1, what)[0].item()

    def _array(self, what: str) -> Any:
        kind = self._u32()
        if kind == STRING:
            return [self._string(MAX_TEXT, what) for _ in range(self._count(f"strings in {what}", MAX_STRINGS, 8))]
        if kind == ARRAY:
            raise self._bad(f"{what} is an array of arrays, which is not supported")
        return self._numbers(kind, self._count(f"numbers in {what}", MAX_NUMBERS, 1), what)

    def _numbers(self, kind: int, n: int, what: str) -> Any:
        if kind not in NUMBERS:
            raise self._bad(f"{what} is of type {kind}, which is not known")
        dtype = np.dtype(NUMBERS[kind])
        return np.frombuffer(self._take(n * dtype.itemsize), dtype)

    def _alignment(self, metadata: Metadata) -> int:
        found = metadata.get("general.alignment", ALIGNMENT)
        if type(found) is not int or not 0 < found <= MAX_ALIGNMENT or found & (found - 1):
            raise self._bad(f"general.alignment {found!r:.40} is not a power of two")
        return found

    def _entry(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        """A tensor's name, shape (rows first), type and offset."""
        name = self._string(MAX_NAME, "a tensor's name")
        axes = self._u32()
        if not 1 <= axes <= MAX_AXES:
            raise BadTensor(f"{name:.80}: in {self.path}, has {axes} axes; there can be 1 to {MAX_AXES}")
        sizes = struct.unpack(f"<{axes}Q", self._take(8 * axes))
        if not all(0 < size < MAX_VALUES for size in sizes) or prod(sizes) >= MAX_VALUES:
            raise BadTensor(f"{name:.80}: in {self.path}, sizes {list(sizes)} are out of range")
        return name, (sizes[::-1], self._u32(), self._u64())

    def _placed(self, entries: dict[str, tuple[tuple[int, ...], int, int]], alignment: int) -> dict[str, GgufTensor]:
        """The tensors, after a check that each lies within the file and none overlaps another."""
        base = self._file.tell() + -self._file.tell() % alignment
        found = {name: self._tensor(name, base, alignment, *entry) for name, entry in entries.items()}
        for (_, before), (name, after) in _neighbours(found):
            if after.offset < before.offset + before.size:
                raise BadTensor(f"{name:.80}: in {self.path}, overlaps the tensor before it")
        return found

    def _tensor(
        self, name: str, base: int, alignment: int, shape: tuple[int, ...], number: int, offset: int
    ) -> GgufTensor:
        where, kind = f"{name:.80}: in {self.path}", BY_NUMBER.get(number)
        if kind is None:
            known = ", ".join(each.name for each in BY_NUMBER.values())
            raise BadTensor(f"{where}, type {OTHERS.get(number, number)} is not supported; known: {known}")
        if shape[-1] % kind.block:
            raise BadTensor(f"{where}, rows of {shape[-1]} are not whole blocks of {kind.block} ({kind.name})")
        size = prod(shape) // kind.block * kind.size
        if offset % alignment or base + offset + size > self.size:
            raise BadTensor(f"{where}, {size} bytes at {base + offset} do not fit a file of {self.size}: cut short?")
        return GgufTensor(self.path, kind.name, shape, base + offset, size)


def _neighbours(
    tensors: dict[str, GgufTensor],
) -> Iterator[tuple[tuple[str, GgufTensor], tuple[str, GgufTensor]]]:
    """Each tensor with the one that lies next after it."""
    ordered = sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size))
    return pairwise(ordered)
