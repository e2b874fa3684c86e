"""A saved session: a header in JSON and the cache's bytes, checked by hash. No pickle.

8 bytes   b"EDGESESS"
32 bytes  sha256 of all that follows
8 bytes   length of the header, little endian
header    JSON: Snapshot
rest      the cache, [n_layers, 2, n_kv_heads, length, width], C order
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import BundleCorrupt, SessionError
from edgedec.files import replacing
from edgedec.frozen import from_json, to_json

MAGIC = b"EDGESESS"
_HEADER_LIMIT = 64 << 20
_PREFIX = len(MAGIC) + 32 + 8


@dataclass(frozen=True)
class Snapshot:
    """What stands in the header; `bundle` is the digest of the session's bundle, `kv` the kind of its cache and
    `length` its length."""

    bundle: str
    ids: tuple[int, ...]
    n_prompt: int
    kv: str
    rng: dict[str, Any]
    length: int


def write_snapshot(path: str | os.PathLike[str], snapshot: Snapshot, data: NDArray[Any]) -> None:
    """`data`: what `Cache.save` returned."""
    header = json.dumps(to_json(snapshot)).encode()
    parts = [len(header).to_bytes(8, "little"), header, np.ascontiguousarray(data).tobytes()]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    try:
        with replacing(Path(path)) as file:
            file.writelines([MAGIC, digest.digest(), *parts])
    except OSError as error:
        raise SessionError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_snapshot(path: str | os.PathLike[str], bundle: str, cache: Cache) -> tuple[Snapshot, NDArray[Any]]:
    """The header and the cache's content, if they fit `bundle` and `cache`."""
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
    payload = memoryview(raw)[_PREFIX + size :]
    _check(path, snapshot, bundle, cache)
    shape = (*cache.data.shape[:3], snapshot.length, cache.data.shape[4])
    if len(payload) != prod(shape) * cache.data.itemsize:
        raise SessionError(f"{path}: the cache in it has another size than its header says")
    return snapshot, np.frombuffer(payload, cache.data.dtype).reshape(shape)


def _check(path: object, snapshot: Snapshot, bundle: str, cache: Cache) -> None:
    if snapshot.bundle != bundle:
        raise SessionError(f"{path}: saved from another bundle; open that one, or start anew")
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
