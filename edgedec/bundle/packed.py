"""A bundle in one file, for the assets of an app: `edgedec pack` writes it, libedgedec maps it, `-m FILE.edb` opens it.

8 bytes   "EDGEPACK"
4, 4      version; 0
8, 8      bytes of the index; of the whole file; all little endian
32        sha256 of the index
index     JSON: {"manifest": sha256 of edgedec.json, "files": {name: [offset, size]}}
rest      the files, each at a multiple of 64 bytes, the larger ones of 16 KiB, which is a page anywhere
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct, error
from typing import BinaryIO

from edgedec.bundle.folder import ALIGN, MANIFEST_LIMIT, Bundle, is_plain
from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BundleCorrupt, BundleError, BundleNotFound, BundleUnsafe, BundleVersion, UsageError
from edgedec.storage.files import cache_folder, replacing, replacing_folder
from edgedec.storage.serde import from_json

MAGIC, SUFFIX = b"EDGEPACK", ".edb"
_VERSION, _PAGE, _INDEX_LIMIT, _PIECE = 1, 16 << 10, 8 << 20, 4 << 20
_HEADER = Struct("<8sIIQQ32s")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PackedIndex:
    """Where each file of a packed bundle lies. manifest: the sha256 of its manifest."""

    manifest: str
    files: dict[str, tuple[int, ...]]


def pack(bundle: Bundle, path: Path, show: Progress = lambda stage, done, total: None) -> int:
    """Write a bundle to one file, whole or not at all; returns its bytes. Every file's hash is checked on the way."""
    sizes = {MANIFEST: (bundle.path / MANIFEST).stat().st_size} | {
        name: file.size for name, file in bundle.manifest.files.items()
    }
    index, places, total = _laid_out(bundle.digest, sizes)
    header = _HEADER.pack(MAGIC, _VERSION, 0, len(index), total, hashlib.sha256(index).digest())
    try:
        with replacing(path) as file:
            file.write(header + index)
            for name, offset in places.items():
                file.write(bytes(offset - file.tell()))
                digest = hashlib.sha256()
                with (bundle.path / name).open("rb") as source:
                    for piece in _pieces(source, sizes[name]):
                        digest.update(piece)
                        file.write(piece)
                        show("pack", file.tell(), total)
                if digest.hexdigest() != (bundle.digest if name == MANIFEST else bundle.manifest.files[name].sha256):
                    raise BundleCorrupt(f"{bundle.path / name}: content differs from its hash; export it again")
    except OSError as wrong:
        raise UsageError(f"{path}: cannot be written: {wrong.strerror or wrong}") from None
    return total


def is_packed(path: Path) -> bool:
    """Whether a file begins with the magic of packed bundles."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def unpacked(path: Path, show: Progress = lambda stage, done, total: None) -> Path:
    """The cache folder with a packed bundle's files; unpacked at first use."""
    try:
        with path.open("rb") as file:
            index = _read_index(file, path)
            folder = cache_folder() / "packed" / f"{path.stem}-{index.manifest[:16]}"
            if not (folder / MANIFEST).is_file():
                _unpack(file, path, index, folder, show)
    except OSError as wrong:
        raise BundleNotFound(f"{path}: cannot be read: {wrong.strerror or wrong}") from None
    return folder


def verify_packed(path: Path) -> None:
    """Check every file in a packed bundle against its hash: BundleCorrupt names the first that differs. An unpacked
    copy is not checked."""
    with path.open("rb") as file:
        index = _read_index(file, path)
        folder = unpacked(path)
        hashes = {name: facts.sha256 for name, facts in Bundle.open(folder).manifest.files.items()}
        for name, (offset, size) in index.files.items():
            file.seek(offset)
            digest = hashlib.sha256()
            for piece in _pieces(file, size):
                digest.update(piece)
            if digest.hexdigest() != (index.manifest if name == MANIFEST else hashes.get(name)):
                raise BundleCorrupt(f"{path}: {name}: content differs from its hash; pack or download it again")


def _laid_out(digest: str, sizes: dict[str, int]) -> tuple[bytes, dict[str, int], int]:
    """The index, the files' offsets and the size of all: numbers of offsets that do not move when they are written."""
    index = b""
    while True:
        at, places = _HEADER.size + len(index), dict[str, int]()
        for name, size in sizes.items():
            align = _PAGE if size >= _PAGE else ALIGN
            places[name] = at = -(-at // align) * align
            at += size
        files = {name: [places[name], size] for name, size in sizes.items()}
        text = json.dumps({"manifest": digest, "files": files}).encode()
        text += b" " * max(0, len(index) - len(text))  # JSON may end in blanks
        if len(text) == len(index):
            return text, places, at
        index = text


def _read_index(file: BinaryIO, path: Path) -> PackedIndex:
    """The index, checked: every file lies inside, where it may."""
    try:
        magic, version, zero, length, total, digest = _HEADER.unpack(file.read(_HEADER.size))
    except error:
        raise BundleCorrupt(f"{path}: not a packed bundle, or cut short") from None
    if magic != MAGIC:
        raise BundleCorrupt(f"{path}: not a packed bundle, or cut short")
    if version != _VERSION:
        raise BundleVersion(f"{path}: packed format version {version}, this edgedec reads {_VERSION}; upgrade edgedec")
    size = os.fstat(file.fileno()).st_size
    if size != total:
        raise BundleCorrupt(f"{path}: {size} bytes, its header says {total}")
    if zero or length > min(_INDEX_LIMIT, total - _HEADER.size):
        raise BundleCorrupt(f"{path}: damaged header")
    raw = file.read(length)
    if hashlib.sha256(raw).digest() != digest:
        raise BundleCorrupt(f"{path}: damaged (the hash of its index differs)")
    try:
        index = from_json(PackedIndex, json.loads(raw), path.name)
    except (ValueError, RecursionError) as wrong:
        raise BundleCorrupt(f"{path}: not a packed bundle ({wrong})") from None
    for name, place in index.files.items():
        if not is_plain(name):
            raise BundleUnsafe(f"{path}: {name!r} is not a plain file name")
        if (
            len(place) != 2
            or place[0] < _HEADER.size + length
            or place[0] % ALIGN
            or not 0 <= place[1] <= total - place[0]
        ):
            raise BundleCorrupt(f"{path}: {name} lies outside the file, or is not aligned")
    if MANIFEST not in index.files or index.files[MANIFEST][1] > MANIFEST_LIMIT:
        raise BundleCorrupt(f"{path}: no manifest in it")
    return index


def _unpack(file: BinaryIO, path: Path, index: PackedIndex, folder: Path, show: Progress) -> None:
    total, done = sum(size for _, size in index.files.values()), 0
    try:
        with replacing_folder(folder) as staging:
            for name, (offset, size) in index.files.items():
                file.seek(offset)
                digest = hashlib.sha256()
                with (staging / name).open("xb") as out:
                    for piece in _pieces(file, size):
                        digest.update(piece)
                        out.write(piece)
                        done += len(piece)
                        show("unpack", done, total)
                if name == MANIFEST and digest.hexdigest() != index.manifest:
                    raise BundleCorrupt(f"{path}: {name}: content differs from its hash; pack or download it again")
            try:
                Bundle.open(staging, verify=True)
            except BundleError as wrong:
                said = str(wrong).removeprefix(f"{staging}{os.sep}").removeprefix(f"{staging}: ")
                raise type(wrong)(f"{path}: {said}") from None
    except (UsageError, BundleError):
        if not (folder / MANIFEST).is_file():  # another process was faster
            raise


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """`size` bytes of a file, in pieces."""
    while size > 0:
        piece = file.read(min(_PIECE, size))
        if not piece:
            raise BundleCorrupt(f"{file.name}: cut short")
        size -= len(piece)
        yield piece
