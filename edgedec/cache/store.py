"""A folder of saved sessions that share their prefixes: a trie of chunks of 64 tokens, with lossless coding.

    parts/3f/3f9a….part    64 tokens and their keys and values, below the part before them
    anna.session           the parts of a text in order, what comes after them, the random state

A part is named by the hash of its contents and those of the parts before it (tokens, keys, values), so two sessions
with a common prefix of text and cache share its parts; the name is checked at loading, so that exactly the saved data
is restored. Coding: `kv_code`. Parts are written before the session that names them, each under a temporary name first,
so that an interrupted program leaves no partial file, but at most unreferenced parts, which `clean` removes.

After Sequential KV Cache Compression via Probabilistic Language Tries (prefix deduplication; predictive delta coding).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import kv_code
from edgedec.cache.base import Arrays
from edgedec.cache.kv_parts import KVParts, Rows, empty, fields
from edgedec.errors import BundleCorrupt, SessionError
from edgedec.spec import ModelSpec
from edgedec.storage.arrays import ArrayFile, read_arrays, write_arrays
from edgedec.storage.serde import from_json

WHOLE, SHARED, PART = b"EDGESESS", b"EDGETRIE", b"EDGEPART"
CHUNK = 64
_PARTS, _SUFFIX = "parts", ".part"
_NAME = re.compile(r"[0-9a-f]{64}")
# Younger unreferenced parts may belong to a session that is being saved.
_AGE = 600.0


@dataclass(frozen=True)
class SharedCache:
    """The cache's entry in a session's header. kind: its layout; parts: names of the parts of the text's prefix;
    length: tokens in all."""

    kind: str
    parts: tuple[str, ...]
    length: int


@dataclass(frozen=True)
class _PartHeader:
    above: str
    tokens: tuple[int, ...]


def is_store(folder: Path) -> bool:
    """Whether the sessions of this folder share their prefixes."""
    return (folder / _PARTS).is_dir()


def make_store(folder: Path) -> None:
    """Let the sessions that are saved in a folder from now on share their prefixes."""
    (folder / _PARTS).mkdir(parents=True, exist_ok=True)


def root(bundle: str, adapter: str, kind: str) -> str:
    """The name before the first part, which separates caches of different models."""
    return hashlib.sha256(f"{bundle}\n{adapter}\n{kind}".encode()).hexdigest()


def write_shared(
    folder: Path, spec: ModelSpec, above: str, kind: str, ids: Sequence[int], cache: Mapping[str, NDArray[Any]]
) -> tuple[SharedCache, Arrays]:
    """Write the parts of a cache that do not exist yet; returns the cache's entry for the session's header, and the
    arrays of its file."""
    parts = KVParts.split(spec, kind, cache)
    source = kv_code.sources(ids[: parts.length])
    names, whole = [], parts.length // CHUNK * CHUNK
    for start in range(0, whole, CHUNK):
        tokens = tuple(ids[start : start + CHUNK])
        name = _name(above, tokens, parts.rows, start)
        path = _path(folder, name)
        if _is_whole(folder, path, above, tokens):
            os.utime(path)
        else:
            path.parent.mkdir(exist_ok=True)
            code = _encode(spec, parts, start, start + CHUNK, source)
            header = {"above": above, "tokens": tokens}
            write_arrays(path, PART, header, {"code": code}, SessionError)
        names.append(name)
        above = name
    tail = {"code": _encode(spec, parts, whole, parts.length, source)} if parts.rows else {}
    rest = {f"rest.{name}": array for name, array in parts.rest.items()}
    return SharedCache(kind, tuple(names), parts.length), tail | rest


def read_shared(
    path: Path, spec: ModelSpec, above: str, shared: SharedCache, ids: Sequence[int], file: ArrayFile
) -> Arrays:
    """The arrays of `Cache.save`, from the parts and from the session's file. SessionError if they do not fit. The
    caller has checked that `shared.length` and `ids` are of a text that the cache holds."""
    whole, length = len(shared.parts) * CHUNK, shared.length
    rest = {name.removeprefix("rest."): array for name, array in file.arrays.items() if name.startswith("rest.")}
    if not length and not shared.parts and "code" not in file.arrays:
        return rest
    fits = 0 < length <= len(ids) and whole == length // CHUNK * CHUNK
    if not fits or "code" not in file.arrays or not KVParts.takes(spec, shared.kind):
        raise SessionError(f"{path}: damaged header (its parts do not fit its length)")
    rows, source = empty(spec, shared.kind, length), kv_code.sources(ids[:length])
    for start, name in zip(range(0, whole, CHUNK), shared.parts, strict=True):
        part = _read_part(path, _path(path.parent, name), above, ids[start : start + CHUNK])
        _decode(path, spec, shared.kind, rows, part, (start, start + CHUNK), source)
        if _name(above, tuple(ids[start : start + CHUNK]), rows, start) != name:
            raise SessionError(f"{path}: its part {name[:12]} holds something else than was saved")
        above = name
    _decode(path, spec, shared.kind, rows, file.arrays["code"], (whole, length), source)
    try:
        return KVParts(shared.kind, rows, rest).joined()
    except (KeyError, ValueError, TypeError) as error:
        raise SessionError(f"{path}: damaged header (what is beside its parts: {error})") from None


def clean(folder: Path) -> int:
    """Remove unreferenced parts and leftovers of interrupted programs; returns the bytes that are freed."""
    named = {name for session in sessions(folder) for name in parts_of(session)}
    freed, old = 0, time() - _AGE
    for path in (folder / _PARTS).rglob("*"):
        stat = path.stat() if path.is_file() else None
        if stat is not None and path.name.removesuffix(_SUFFIX) not in named and stat.st_mtime < old:
            freed += stat.st_size
            path.unlink()
    return freed


def sessions(folder: Path) -> list[Path]:
    """The files of saved sessions in a folder, whole ones too."""
    return [path for path in sorted(folder.iterdir()) if magic_of(path) in (SHARED, WHOLE)]


def magic_of(path: Path) -> bytes:
    """The magic bytes of a file; empty for a folder, and for a file that is being written."""
    if not path.is_file() or path.name.startswith("."):
        return b""
    with path.open("rb") as file:
        return file.read(len(SHARED))


def parts_of(path: Path) -> tuple[str, ...]:
    """The parts that the file of a session names; none of any other file."""
    if magic_of(path) != SHARED:
        return ()
    return shared_cache(path, read_arrays(path, SHARED, "a saved session", SessionError)).parts


def shared_cache(path: Path, file: ArrayFile) -> SharedCache:
    """The cache's entry in a session's header."""
    try:
        found = from_json(SharedCache, file.header.get("cache"), "session.cache")
    except BundleCorrupt as error:
        raise SessionError(f"{path}: damaged header ({error})") from None
    for name in found.parts:
        if not _NAME.fullmatch(name):
            raise SessionError(f"{path}: damaged header (a part is called {name[:80]!r})")
    return found


def part_size(folder: Path, name: str) -> int:
    """Bytes of a part; 0 if it is gone."""
    path = _path(folder, name)
    return path.stat().st_size if path.is_file() else 0


def _name(above: str, tokens: tuple[int, ...], rows: Mapping[int, Rows], start: int) -> str:
    digest = hashlib.sha256(bytes.fromhex(above) + np.array(tokens, "<i8").tobytes())
    for block in rows.values():
        digest.update(np.ascontiguousarray(block[:, :, start : start + CHUNK]).data)
    return digest.hexdigest()


def _path(folder: Path, name: str) -> Path:
    return folder / _PARTS / name[:2] / (name + _SUFFIX)


def _is_whole(folder: Path, path: Path, above: str, tokens: Sequence[int]) -> bool:
    """Whether a part exists undamaged; a damaged one is written again."""
    try:
        _read_part(folder, path, above, tokens)
    except SessionError:
        return False
    return True


def damaged_parts(folder: Path, parts: Sequence[str]) -> list[str]:
    """The parts that are missing or damaged."""
    found = list[str]()
    for name in parts:
        try:
            read_arrays(_path(folder, name), PART, "a part of a saved session", SessionError)
        except SessionError:
            found.append(name)
    return found


def _read_part(session: Path, path: Path, above: str, tokens: Sequence[int]) -> NDArray[np.uint8]:
    if not path.is_file():
        raise SessionError(f"{session}: its part {path} is missing; restore the folder it was saved in")
    file = read_arrays(path, PART, "a part of a saved session", SessionError)
    try:
        header = from_json(_PartHeader, file.header, "part")
    except BundleCorrupt as error:
        raise SessionError(f"{path}: damaged header ({error})") from None
    if header.above != above or list(header.tokens) != list(tokens) or file.arrays.keys() != {"code"}:
        raise SessionError(f"{path}: is no part of {session}")
    return file.arrays["code"]


def _encode(spec: ModelSpec, parts: KVParts, start: int, stop: int, source: NDArray[np.int64]) -> NDArray[np.uint8]:
    found = [
        kv_code.encode(part[:, :stop], field, start, source[:stop])
        for b, rows in parts.rows.items()
        for part in rows
        for field in fields(spec, parts.kind, b)
    ]
    return np.frombuffer(b"".join(found), np.uint8)


def _decode(
    path: Path,
    spec: ModelSpec,
    kind: str,
    rows: Mapping[int, Rows],
    code: NDArray[np.uint8],
    span: tuple[int, int],
    source: NDArray[np.int64],
) -> None:
    """Write the rows of a span. The code is that of `_encode`; SessionError for any other."""
    (start, stop), left = span, memoryview(code.tobytes())
    try:
        for b, block in rows.items():
            for part in block:
                for field in fields(spec, kind, b):
                    left = kv_code.decode(left, part[:, :stop], field, start, source)
    except kv_code.CodeError as error:
        raise SessionError(f"{path}: damaged keys and values ({error})") from None
    if len(left):
        raise SessionError(f"{path}: damaged keys and values (bytes after them)")
