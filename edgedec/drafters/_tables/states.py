"""Saved states of the table drafters: arrays from files are validated before use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.drafters import State
from edgedec.errors import UsageError
from edgedec.runtime import TableRows

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


def array(state: State, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of a state, or UsageError; -1 in `shape` is any length."""
    found = state.get(name)
    if not isinstance(found, np.ndarray) or found.dtype != dtype or found.ndim != len(shape):
        raise UsageError(f"state {name}: need a {np.dtype(dtype)} array of {len(shape)} dimensions")
    if any(want not in (-1, have) for want, have in zip(shape, found.shape, strict=True)):
        raise UsageError(f"state {name}: {list(found.shape)} is not {list(shape)}: learned with other options")
    return found


def checked_table(state: State, prefix: str, k: int, vocab: int, cap: int) -> TableRows:
    """The latest `cap` rows of a table's state; UsageError if it cannot be of such a table."""
    keys = array(state, prefix + "keys", np.int32, (-1, 2))
    n = len(keys)
    ids = array(state, prefix + "ids", np.int32, (n, k))
    p = array(state, prefix + "p", np.float32, (n, k))
    visits = array(state, prefix + "visits", np.int32, (n,))
    if n and not (ids.min() >= -1 and ids.max() < vocab):
        raise UsageError(f"state {prefix}ids: a token is outside the vocabulary of {vocab}: learned elsewhere")
    if n and not (np.isfinite(p).all() and p.min() >= 0 and p.max() <= 1.001 and visits.min() >= 1):
        raise UsageError(f"state {prefix}p, {prefix}visits: out of range; drop the file and learn again")
    if (np.diff(p, axis=1) > 0).any() or ((ids < 0) & (p > 0)).any() or _twins(ids, p > 0):
        raise UsageError(f"state {prefix}ids, {prefix}p: no ranked tokens; drop the file and learn again")
    packed = np.ascontiguousarray(keys).view(np.int64)[-cap:, 0]
    if len(np.unique(packed)) < len(packed):
        raise UsageError(f"state {prefix}keys: a key stands twice; drop the file and learn again")
    first = n - len(packed)
    return packed, ids[first:], p[first:], visits[first:]


def checked_recycled(state: State, k: int, vocab: int) -> tuple[Ids, Ids, Floats]:
    """Tokens [n], their next ones and the chances [n, k] of a state of `recycling`; UsageError if it cannot be one."""
    tokens = array(state, "tokens", np.int32, (-1,))
    n = len(tokens)
    ids = array(state, "ids", np.int32, (n, k))
    p = array(state, "p", np.float32, (n, k))
    if n and not (tokens.min() >= 0 and max(tokens.max(), ids.max()) < vocab and ids.min() >= -1):
        raise UsageError(f"state ids: a token is outside the vocabulary of {vocab}: learned elsewhere")
    if n and not (np.isfinite(p).all() and p.min() >= 0 and p.max() <= 1):
        raise UsageError("state p: out of range; drop the file and learn again")
    if len(np.unique(tokens)) < n:
        raise UsageError("state tokens: one stands twice; drop the file and learn again")
    known = ids >= 0
    if (np.diff(p, axis=1) > 0).any() or (np.diff(known.astype(np.int8), axis=1) > 0).any() or _twins(ids, known):
        raise UsageError("state ids, p: no ranked tokens; drop the file and learn again")
    return tokens, ids, p


def checked_record(state: State, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """The claims and outcomes of `stand` in a state; UsageError if they are invalid."""
    claimed, came = (array(state, name, np.float32, shape) for name in ("claimed", "came"))
    if not (np.isfinite([claimed, came]).all() and min(claimed.min(), came.min()) >= 0):
        raise UsageError("state claimed, came: out of range; drop the file and learn again")
    return claimed, came


def _twins(ids: Ids, counts: NDArray[np.bool_]) -> bool:
    """Whether a row of ids [n, k] has a token twice among those that count."""
    line = np.sort(np.where(counts, ids, -1), axis=1)
    return bool(((line[:, 1:] == line[:, :-1]) & (line[:, 1:] >= 0)).any())
