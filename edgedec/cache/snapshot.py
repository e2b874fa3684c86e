"""A saved session: its text, the state of its random draws, its cache and what its drafters learned, in one file.

The file is one of named arrays (`storage.arrays`): `cache.<name>` as `Cache.save` returned them, `learned.<name>` of
the drafters, `policy.<name>` of the cache policy; its header is a `Snapshot`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.base import Arrays, Cache
from edgedec.errors import BundleCorrupt, SessionError
from edgedec.storage.arrays import read_arrays, write_arrays
from edgedec.storage.serde import from_json, to_json

MAGIC = b"EDGESESS"


@dataclass(frozen=True)
class Snapshot:
    """What stands in the header; `bundle`: the digest of the session's bundle, `adapter`: of its adapter; `kv`: the
    kind of its cache, `length`: its committed tokens; `policy`: its cache policy, in words."""

    bundle: str
    ids: tuple[int, ...]
    n_prompt: int
    kv: str
    rng: dict[str, Any]
    length: int
    adapter: str = ""
    policy: str = ""


def write_snapshot(
    path: str | os.PathLike[str],
    snapshot: Snapshot,
    cache: Mapping[str, NDArray[Any]],
    learned: Mapping[str, NDArray[Any]],
    policy: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """cache: what `Cache.save` returned; learned: what the drafters learned; policy: what the cache policy knows."""
    arrays = {
        f"{part}.{name}": array for part, of in _parts(cache, learned, policy or {}) for name, array in of.items()
    }
    write_arrays(path, MAGIC, to_json(snapshot), arrays, SessionError)


def read_snapshot(
    path: str | os.PathLike[str], bundle: str, cache: Cache, adapter: str = "", policy: str = ""
) -> tuple[Snapshot, Arrays, Arrays, Arrays]:
    """The header, the cache's arrays, what the drafters learned and what the cache policy knew, if they fit `bundle`,
    `adapter`, `policy` and `cache`."""
    file = read_arrays(path, MAGIC, "a saved session", SessionError)
    try:
        snapshot = from_json(Snapshot, file.header, "session")
    except (RecursionError, BundleCorrupt) as error:
        raise SessionError(f"{path}: damaged header ({error})") from None
    _check_origin(path, snapshot, bundle, cache, adapter)
    _check_policy(path, snapshot.policy, policy)
    _check_numbers(path, snapshot, cache)
    found: tuple[Arrays, Arrays, Arrays] = ({}, {}, {})
    for name, array in file.arrays.items():
        for part, arrays in _parts(*found):
            if name.startswith(f"{part}."):
                arrays[name.removeprefix(f"{part}.")] = array
    held = found[0].get("length", np.zeros(0))
    if held.shape != (1,) or held[0] != snapshot.length:
        raise SessionError(f"{path}: damaged header (lengths do not fit)")
    return snapshot, *found


def _parts(
    cache: Mapping[str, Any], learned: Mapping[str, Any], policy: Mapping[str, Any]
) -> tuple[tuple[str, Any], ...]:
    """The groups of arrays by their prefix."""
    return ("cache", cache), ("learned", learned), ("policy", policy)


def _check_policy(path: object, saved: str, policy: str) -> None:
    """The session keeps of its cache what the saved one kept."""
    if saved != policy:
        how = f"with cache policy {saved}" if saved else "with the whole cache"
        here = f"has {policy}" if policy else "has none"
        raise SessionError(f"{path}: saved {how}, this session {here}; open it with --cache {saved or 'full'}")


def _check_origin(path: object, snapshot: Snapshot, bundle: str, cache: Cache, adapter: str) -> None:
    """The snapshot is of this bundle, this adapter and such a cache."""
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
