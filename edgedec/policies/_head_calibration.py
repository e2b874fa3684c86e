"""The share of pages that each head of a model needs, measured once: a bundle's `head_shares.bin` (TCA-Attention).

float32, little-endian [len(MASSES), kv heads of all attention blocks]: the share of a text's pages that hold these
shares of what a kv head pays, the mean over the texts that it was measured on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleCorrupt
from edgedec.runtime import PAGE
from edgedec.spec import ModelSpec

HEAD_SHARES = "head_shares.bin"
MASSES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
Array = NDArray[np.float32]
Pages = NDArray[np.int64]


def pages_for(paid: Array, mass: float) -> Pages:
    """The number of pages of each head that hold the share `mass` of the attention `paid` [kv_heads, slots].

    pages of 64 slots that were paid 6 1 3, mass 0.9 -> 2
    """
    starts = np.arange(0, paid.shape[1], PAGE)
    by_page = -np.sort(-np.add.reduceat(paid.astype(np.float64), starts, axis=1), axis=1)
    reached = np.cumsum(by_page, axis=1) / by_page.sum(axis=1, keepdims=True)
    found: Pages = (reached < mass - 1e-9).sum(axis=1) + 1
    return np.minimum(found, len(starts)).astype(np.int64)


def shares_of(attention: Mapping[int, Array]) -> Array:
    """The shares by these attention sums of each block: [len(MASSES), kv heads of all blocks]."""
    paid = [attention[b] for b in sorted(attention)]
    pages = -(-paid[0].shape[1] // PAGE)
    return np.stack([np.concatenate([pages_for(one, mass) for one in paid]) for mass in MASSES]).astype("<f4") / pages


def read_shares(folder: str, spec: ModelSpec) -> Array | None:
    """The table of a bundle; None if it has none, BundleCorrupt if it is not of this model."""
    path = Path(folder) / HEAD_SHARES
    if not folder or not path.is_file():
        return None
    found = np.fromfile(path, "<f4")
    heads = sum(block.n_kv_heads for block in spec.attention.values())
    if found.size != len(MASSES) * heads or not ((found > 0) & (found <= 1)).all():
        raise BundleCorrupt(f"{path}: not a table of {heads} kv heads; make it again with edgedec calibrate")
    return found.reshape(len(MASSES), heads)


def needed(table: Array, spec: ModelSpec, mass: float) -> dict[int, Array]:
    """The share of its pages that each kv head needs for this mass, by attention block."""
    found = np.array([np.interp(mass, MASSES, column) for column in table.T], np.float32)
    ends = np.cumsum([block.n_kv_heads for block in spec.attention.values()])
    return dict(zip(spec.attention, np.split(found, ends[:-1]), strict=True))
