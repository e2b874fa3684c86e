"""A saved session in one file: its text, its random state, its cache and its drafters' states.

The file is one of named arrays (`storage.arrays`): `cache.<name>` as `Cache.save` returned them, `learned.<name>` of
the drafters, `policy.<name>` of the cache policy; its header is a `Snapshot`. In a folder whose sessions share their
prefixes the cache is in parts (`cache.store`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import store
from edgedec.cache.base import Arrays, Cache
from edgedec.errors import BundleCorrupt, SessionError
from edgedec.spec import ModelSpec
from edgedec.storage.arrays import ArrayFile, read_arrays, write_arrays
from edgedec.storage.serde import from_json, to_json

MAGIC = store.WHOLE


@dataclass(frozen=True)
class Snapshot:
    """The header; `bundle`: the digest of the session's bundle, `adapter`: of its adapter; `kv`: the kind of its cache,
    `length`: its committed tokens; `policy`: its cache policy, as for `--cache`. `reread`: if not empty, the cache is
    not in the file, and this is its digest, checked after reading the text again."""

    bundle: str
    ids: tuple[int, ...]
    n_prompt: int
    kv: str
    rng: dict[str, Any]
    length: int
    adapter: str = ""
    reread: str = ""
    policy: str = ""


def write_snapshot(
    path: str | os.PathLike[str],
    snapshot: Snapshot,
    spec: ModelSpec,
    cache: Mapping[str, NDArray[Any]],
    learned: Mapping[str, NDArray[Any]],
    policy: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Write a session. cache: the arrays of `Cache.save`; learned: the drafters' states; policy: the cache policy's
    state."""
    magic, header, folder = MAGIC, to_json(snapshot), Path(path).parent
    if store.is_store(folder) and not snapshot.reread:
        magic, above = store.SHARED, store.root(snapshot.bundle, snapshot.adapter, snapshot.kv)
        shared, cache = store.write_shared(folder, spec, above, snapshot.kv, snapshot.ids, cache)
        header = {"session": header, "cache": to_json(shared)}
    groups = _parts(cache, learned, policy or {})
    arrays = {f"{part}.{name}": array for part, of in groups for name, array in of.items()}
    write_arrays(path, magic, header, arrays, SessionError)


def read_snapshot(
    path: str | os.PathLike[str], bundle: str, cache: Cache, adapter: str = "", policy: str = ""
) -> tuple[Snapshot, Arrays, Arrays, Arrays]:
    """The header, the cache's arrays, the drafters' and the cache policy's states, if they fit `bundle`, `adapter`,
    `policy` and `cache`."""
    snapshot, file = read_file(path)
    _check_origin(path, snapshot, bundle, cache, adapter)
    _check_policy(path, snapshot.policy, policy)
    _check_numbers(path, snapshot, cache)
    held, learned, known = _sorted(file)
    if "session" in file.header:
        held = _from_parts(Path(path), snapshot, cache.spec, ArrayFile(file.header, held, file.digest))
    if snapshot.reread and not held:
        return snapshot, held, learned, known
    length = held.get("length", np.zeros(0))
    if length.shape != (1,) or length[0] != snapshot.length:
        raise SessionError(f"{path}: damaged header (lengths do not fit)")
    return snapshot, held, learned, known


def share_file(path: Path, bundle: str, spec: ModelSpec) -> bool:
    """Rewrite a whole session of a store with its prefix in parts; False (unchanged) if it is of another model."""
    snapshot, file = read_file(path)
    if snapshot.bundle != bundle:
        return False
    write_snapshot(path, snapshot, spec, *_sorted(file))
    return True


def _sorted(file: ArrayFile) -> tuple[Arrays, Arrays, Arrays]:
    """The arrays of the cache, of the drafters and of the policy, by their names."""
    found: tuple[Arrays, Arrays, Arrays] = ({}, {}, {})
    for name, array in file.arrays.items():
        for part, arrays in _parts(*found):
            if name.startswith(f"{part}."):
                arrays[name.removeprefix(f"{part}.")] = array
    return found


def digest_of(cache: Mapping[str, NDArray[Any]]) -> str:
    """The hash of the arrays that `Cache.save` returned."""
    digest = hashlib.sha256()
    for name in sorted(cache):
        digest.update(f"{name}{cache[name].dtype}{cache[name].shape}".encode())
        digest.update(np.ascontiguousarray(cache[name]).tobytes())
    return digest.hexdigest()


def read_file(path: str | os.PathLike[str]) -> tuple[Snapshot, ArrayFile]:
    """A session's file, whole or with its prefix in parts ("session" in its header), and its header."""
    try:
        shared = store.magic_of(Path(path)) == store.SHARED
    except OSError:  # the error is reported when the file is read
        shared = False
    file = read_arrays(path, store.SHARED if shared else MAGIC, "a saved session", SessionError)
    return _snapshot(path, file.header.get("session") if shared else file.header), file


def _snapshot(path: object, header: Any) -> Snapshot:
    try:
        return from_json(Snapshot, header, "session")
    except (RecursionError, BundleCorrupt) as error:
        raise SessionError(f"{path}: damaged header ({error})") from None


def _from_parts(path: Path, snapshot: Snapshot, spec: ModelSpec, file: ArrayFile) -> Arrays:
    """The cache's arrays of a session whose prefix is in parts."""
    shared = store.shared_cache(path, file)
    if shared.kind != snapshot.kv or shared.length not in (0, snapshot.length):
        raise SessionError(f"{path}: damaged header (lengths do not fit)")
    above = store.root(snapshot.bundle, snapshot.adapter, snapshot.kv)
    return store.read_shared(path, spec, above, shared, snapshot.ids, file)


def _parts(
    cache: Mapping[str, Any], learned: Mapping[str, Any], policy: Mapping[str, Any]
) -> tuple[tuple[str, Any], ...]:
    """The groups of arrays by their prefix."""
    return ("cache", cache), ("learned", learned), ("policy", policy)


def _check_policy(path: object, saved: str, policy: str) -> None:
    """SessionError unless the session has the saved session's cache policy."""
    if saved != policy:
        how = f"with cache policy {saved}" if saved else "with the whole cache"
        here = f"has {policy}" if policy else "has none"
        raise SessionError(f"{path}: saved {how}, this session {here}; open it with --cache {saved or 'full'}")


def _check_origin(path: object, snapshot: Snapshot, bundle: str, cache: Cache, adapter: str) -> None:
    """The snapshot is of this bundle, this adapter and such a cache."""
    if snapshot.bundle != bundle:
        raise SessionError(f"{path}: saved from another model; open that one, or start anew")
    if snapshot.adapter != adapter:
        raise SessionError(
            f"{path}: saved with another adapter than this session's; open the session with the same one"
        )
    if snapshot.kv != cache.kind:
        raise SessionError(
            f"{path}: saved with a {snapshot.kv} cache, this session has {cache.kind}; open the model with the "
            "cache format and engine it was saved with"
        )


def _check_numbers(path: object, snapshot: Snapshot, cache: Cache) -> None:
    """Its lengths fit the session's context and each other; its tokens are of the vocabulary."""
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
