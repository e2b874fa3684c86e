"""Disentangled attention (DeBERTa, arXiv:2006.03654; log buckets: arXiv:2111.09543 and its release): besides the key's
content, a query is scored against a learned row of the distance query - key ("c2p"), and a key against another ("p2c").

    score = scale * (q . k + q . relative_k[row] + k . relative_q[row]),  row = bucket(query - key) + relative

cut to 0 .. 2 relative - 1. Each head has 2 relative rows of both tables, one head after another. Buckets are distances
if `relative_far` is 0. Else they are distances up to half of `relative`, and grow with the logarithm of the distance
beyond it, so that the last one but one begins near `relative_far`.

relative 8, relative_far 20: distances 0 .. 4 -> 0 .. 4, 5 and 6 -> 5, 7 to 11 -> 6, 12 to 19 -> 7, from 20 on -> 8
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Shapes, require_sizes

if TYPE_CHECKING:
    from edgedec.spec.attention import Attention

# The longest text whose distances have a table.
LONGEST = 1 << 20
# Fields of attention that are not combined with it, as they are where they do nothing.
_ALONE = {
    **{"rope": None, "softcap": 0.0, "qk_norm": "none", "clip": 0.0, "slopes": (), "distances": 0, "k_is_v": False},
    **{"sink_logit": False, "differential": 0.0, "kind": "attention"},
}


def relative_tensors(block: Attention) -> Shapes:
    """The tables of a block; none if it scores no distances."""
    if not block.relative:
        return {}
    shape = (2 * block.relative * block.n_heads, block.head_dim)
    names = {"c2p": ("relative_k",), "p2c": ("relative_q",), "both": ("relative_k", "relative_q")}
    return dict.fromkeys(names[block.relative_scores], shape)


def relative_rows(block: Attention, length: int) -> NDArray[np.int32]:
    """The rows [2 * length - 1] of a table by query - key from 1 - length to length - 1."""
    apart = np.arange(1 - length, length)
    found = _buckets(apart, block.relative // 2, block.relative_far) if block.relative_far else apart
    return np.clip(found + block.relative, 0, 2 * block.relative - 1).astype(np.int32)


def _buckets(apart: NDArray[np.int64], half: int, far: int) -> NDArray[np.int64]:
    """In float32, as the models were trained."""
    size = np.maximum(np.abs(apart), half)
    share = np.log((size / half).astype(np.float32)) / np.log(np.float32((far - 1) / half))
    logs = np.ceil(share * np.float32(half - 1)).astype(np.int64) + half
    return np.where(np.abs(apart) <= half, apart, np.sign(apart) * logs)


def check_relative(block: Attention, where: str) -> None:
    """BundleCorrupt for tables that no model can have, or for what is not known beside them."""
    require_sizes(where, {"relative": block.relative, "relative_far": block.relative_far}, least=0)
    if not block.relative:
        if block.relative_far or block.relative_scores != "both":
            raise BundleCorrupt(f"{where}.relative: is missing")
        return
    if block.relative_scores not in ("c2p", "p2c", "both"):
        raise BundleCorrupt(f"{where}.relative_scores: {block.relative_scores!r} is not one of c2p, p2c, both")
    if block.relative_far and (block.relative < 2 or block.relative_far - 1 <= block.relative // 2):
        raise BundleCorrupt(f"{where}.relative_far: {block.relative_far} with {block.relative} buckets")
    if block.n_kv_heads != block.n_heads:
        raise BundleCorrupt(f"{where}.relative: with {block.n_heads} heads of {block.n_kv_heads} kv heads")
    odd = [name for name, usual in _ALONE.items() if getattr(block, name) != usual]
    if odd:
        raise BundleCorrupt(f"{where}.{odd[0]}: beside disentangled attention")
