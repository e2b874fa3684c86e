"""A saved session: a header in JSON and the cache's bytes, checked by hash. No pickle.

8 bytes   b"EDGESESS"
32 bytes  sha256 of all that follows
8 bytes   length of the header, little endian
header    JSON: Snapshot
rest      the arrays that the header lists, one after another, C order: the cache (`Cache.save`), then what the
drafters learned
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.base import Cache
from edgedec.errors import BundleCorrupt, SessionError
from edgedec.storage.files import replacing
from edgedec.storage.serde import from_json, to_json

MAGIC = b"EDGESESS"
_HEADER_LIMIT = 64 << 20
_PREFIX = len(MAGIC) + 32 + 8


@dataclass(frozen=True)
class SavedArray:
    """One of the arrays after the header."""

    name: str
    dtype: Literal["int8", "int32", "int64", "float16", "float32", "float64", "uint8"]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    """What stands in the header; `bundle`: the digest of the session's bundle, `adapter`: of its adapter; `kv`: the
    kind of its cache, `length` its tokens; `cache` and `learned`: the arrays that follow."""

    bundle: str
    ids: tuple[int, ...]
    n_prompt: int
    kv: str
    rng: dict[str, Any]
    length: int
    adapter: str = ""
    cache: tuple[SavedArray, ...] = ()
    learned: tuple[SavedArray, ...] = ()


def _listed(arrays: Mapping[str, NDArray[Any]]) -> tuple[SavedArray, ...]:
    """What the header says of them."""
    return tuple(SavedArray(name, array.dtype.name, array.shape) for name, array in arrays.items())  # type: ignore[arg-type]


def write_snapshot(
    path: str | os.PathLike[str],
    snapshot: Snapshot,
    cache: Mapping[str, NDArray[Any]],
    learned: Mapping[str, NDArray[Any]],
) -> None:
    """cache: what `Cache.save` returned; learned: what the drafters learned."""
    snapshot = replace(snapshot, cache=_listed(cache), learned=_listed(learned))
    header = json.dumps(to_json(snapshot)).encode()
    arrays = [np.ascontiguousarray(array).tobytes() for array in (*cache.values(), *learned.values())]
    parts = [len(header).to_bytes(8, "little"), header, *arrays]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    try:
        with replacing(Path(path)) as file:
            file.writelines([MAGIC, digest.digest(), *parts])
    except OSError as error:
        raise SessionError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_snapshot(
    path: str | os.PathLike[str], bundle: str, cache: Cache, adapter: str = ""
) -> tuple[Snapshot, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The header, the cache's arrays and what the drafters learned, if they fit `bundle`, `adapter` and `cache`."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise SessionError(f"{path}: {error.strerror or error}") from None
    size = int.from_bytes(raw[_PREFIX - 8 : _PREFIX], "little")
    if raw[:8] != MAGIC or size > min(_HEADER_LIMIT, len(raw) - _PREFIX):
        raise SessionError(f"{path}: not a saved session, or cut short")
    if hashlib.sha256(memoryview(raw)[_PREFIX - 8 :]).digest() != raw[8 : _PREFIX - 8]:
        raise SessionError(f"{path}: damaged (its hash differs)")
    try:
        snapshot = from_json(Snapshot, json.loads(raw[_PREFIX : _PREFIX + size]), "session")
    except (ValueError, RecursionError, BundleCorrupt) as error:
        raise SessionError(f"{path}: damaged header ({error})") from None
    _check(path, snapshot, bundle, cache, adapter)
    payload, at = memoryview(raw)[_PREFIX + size :], 0
    found: list[dict[str, NDArray[Any]]] = [{}, {}]
    for arrays, listed in zip(found, (snapshot.cache, snapshot.learned), strict=True):
        for array in listed:
            if min(array.shape, default=0) < 0:
                raise SessionError(f"{path}: damaged header (an array of shape {array.shape})")
            bytes_ = prod(array.shape) * np.dtype(array.dtype).itemsize
            part, at = payload[at : at + bytes_], at + bytes_
            if len(part) == bytes_:
                arrays[array.name] = np.frombuffer(part, array.dtype).reshape(array.shape)
    if len(payload) != at:
        raise SessionError(f"{path}: what is in it has another size than its header says")
    return snapshot, found[0], found[1]


def _check(path: object, snapshot: Snapshot, bundle: str, cache: Cache, adapter: str) -> None:
    if snapshot.bundle != bundle:
        raise SessionError(f"{path}: saved from another bundle; open that one, or start anew")
    if snapshot.adapter != adapter:
        raise SessionError(
            f"{path}: saved with another adapter than this session's; open the session with the same one"
        )
    if snapshot.kv != cache.kind:
        raise SessionError(
            f"{path}: saved with a {snapshot.kv} cache, this session has {cache.kind}; open the model with the "
            "cache format and engine it was saved with"
        )
    n = len(snapshot.ids)
    if n > cache.capacity + 1 or snapshot.length > cache.capacity:
        raise SessionError(f"{path}: {n} tokens do not fit this session's context of {cache.capacity}")
    if not 0 <= snapshot.length <= n or not 0 <= snapshot.n_prompt <= n:
        raise SessionError(f"{path}: damaged header (lengths do not fit)")
    if any(not 0 <= token < cache.spec.vocab_size for token in snapshot.ids):
        raise SessionError(f"{path}: damaged header (a token outside the vocabulary)")
    try:
        np.random.default_rng(0).bit_generator.state = snapshot.rng
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise SessionError(f"{path}: damaged header (random state: {error})") from None
