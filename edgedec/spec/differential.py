"""Differential attention (arXiv:2410.05258): of two heads, each with a softmax of its own, the outputs are subtracted,
so that what both attend to alike cancels out.

    slot of a kv head:  k = [k1, k2], v        as wide as both keys; v is that of both heads
    head 2i:            a1 = softmax([q1, 0] k) v
    head 2i + 1:        a2 = softmax([0, q2] k) v
    together:           rms(a1 - f a2) * pair_norm,  f = exp(l0 . l1) - exp(l2 . l3) + differential

l0 .. l3 are the rows of `lambdas`; a rope turns q1, q2, k1 and k2 each by itself. A query scores its half of a key, so
slots, windows and selections of slots are those of attention with heads of head_dim values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Shapes

if TYPE_CHECKING:
    from edgedec.spec.attention import Attention
    from edgedec.spec.shared_attention import SharedAttention

# Fields of attention that pairs are not combined with, as they are where they do nothing.
_ALONE = {
    **{"qk_norm": "none", "gate": "none", "k_is_v": False, "v_norm": False, "inner_norm": "none"},
    **{"sink_logit": False, "slopes": (), "distances": 0, "embedding_norm": "none", "clip": 0.0},
    "with_embedding": False,
}


def pair_tensors(block: Attention | SharedAttention) -> Shapes:
    """The tensors of pairs of heads; none if heads are single."""
    if not block.differential:
        return {}
    return {"lambdas": (2 * block.head_dim,), "pair_norm": (block.head_dim,)}


def check_pairs(block: Attention, where: str) -> None:
    """BundleCorrupt for heads that make no pairs, or for what is not known of pairs."""
    if not block.differential:
        return
    if not 0 < block.differential < 1:
        raise BundleCorrupt(f"{where}.differential: {block.differential} is out of range")
    if block.head_dim % 2 or block.n_heads // block.n_kv_heads % 2:
        raise BundleCorrupt(f"{where}.differential: heads of {block.head_dim} values, or an odd number for a kv head")
    if block.kind != "attention":
        raise BundleCorrupt(f"{where}.differential: of a block of kind {block.kind}")
    odd = [name for name, usual in _ALONE.items() if getattr(block, name) != usual]
    if odd:
        raise BundleCorrupt(f"{where}.{odd[0]}: beside differential attention")
