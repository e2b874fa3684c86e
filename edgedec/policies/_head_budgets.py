"""The budget that each head of a model needs, measured once: a bundle's `head_budgets.bin` (TCA-Attention).

float32, little-endian [len(MASSES), kv heads of all attention blocks]: the number of the budget (`_redundancy`) whose
tokens get these shares of a kv head's attention, the mean over the queries that it was measured with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleCorrupt
from edgedec.policies._redundancy import SHARES, attention_of, block_shares, needed_budgets
from edgedec.spec import ModelSpec

HEAD_BUDGETS = "head_budgets.bin"
MASSES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
Array = NDArray[np.float32]
Ints = NDArray[np.int64]


def budgets_of(queries: Mapping[int, Array], keys: Mapping[int, Array], spec: ModelSpec) -> Array:
    """The table by one query of each head. queries [heads, d] and keys [kv_heads, slots, d] of full blocks, by
    attention block."""
    columns = []
    for b in sorted(queries):
        query, scale = queries[b], spec.attention[b].scale
        shares, attention = (of(query, keys[b], scale) for of in (block_shares, attention_of))
        columns.append(np.stack([needed_budgets(shares, attention, mass) for mass in MASSES]))
    return np.concatenate(columns, axis=1).astype("<f4")


def read_budgets(folder: str, spec: ModelSpec) -> Array | None:
    """The table of a bundle; None if it has none, BundleCorrupt if it is not of this model."""
    path = Path(folder) / HEAD_BUDGETS
    if not folder or not path.is_file():
        return None
    found = np.fromfile(path, "<f4")
    heads = sum(block.n_kv_heads for block in spec.attention.values())
    if found.size != len(MASSES) * heads or not ((found >= 0) & (found < len(SHARES))).all():
        raise BundleCorrupt(f"{path}: not a table of {heads} kv heads; make it again with edgedec calibrate")
    return found.reshape(len(MASSES), heads)


def budgets_for(table: Array, spec: ModelSpec, mass: float) -> dict[int, Ints]:
    """The number of the budget of each kv head for this mass, by attention block."""
    found = np.ceil([np.interp(mass, MASSES, column) - 1e-3 for column in table.T]).astype(np.int64)
    ends = np.cumsum([block.n_kv_heads for block in spec.attention.values()])
    return dict(zip(spec.attention, np.split(np.clip(found, 0, len(SHARES) - 1), ends[:-1]), strict=True))


def shares_kept(table: Array) -> Array:
    """The share of a text's tokens that each head keeps by a table."""
    return np.interp(table, np.arange(len(SHARES)), SHARES).astype(np.float32)
