"""Rotary positions. LongRoPE has two sets of frequencies, one for texts of up to `original` tokens and one for longer
texts.

A spec with two sets numbers the positions of both one after the other, so that no engine has to know of them:

    0 .. original - 1                        a short text
    original .. original + context - 1       a long text, from its first token on

`edgedec.runtime.long_ropes` chooses the set of a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleCorrupt
from edgedec.spec.attention import Attention
from edgedec.spec.latent import LatentAttention
from edgedec.spec.shared_attention import SharedAttention

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec


@dataclass(frozen=True)
class Rope:
    """Pair j turns by `inv_freq[j] * position`; cos and sin are scaled by `scale`.

    `2 * len(inv_freq)` dims of a head are rotated, first half with second half; the rest pass. `long_inv_freq`: of
    texts of more than `original` tokens; empty: as of others.
    """

    inv_freq: tuple[float, ...]
    scale: float = 1.0
    long_inv_freq: tuple[float, ...] = ()
    original: int = 0

    def angles(self, positions: NDArray[np.int64], original: int) -> NDArray[np.float64]:
        """The angles [n, pairs] at positions as the spec numbers them. original: `ModelSpec.original_length`."""
        found = positions[:, None] * np.array(self.inv_freq)
        if not original:
            return found
        long = (positions[:, None] - original) * np.array(self.long_inv_freq or self.inv_freq)
        return np.where(positions[:, None] < original, found, long)


def check_ropes(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for ropes that turn nothing, or whose two sets do not fit."""
    for i, rope in enumerate(spec.ropes):
        if not rope.inv_freq:
            raise BundleCorrupt(f"{where}.ropes[{i}]: rotates nothing")
        if bool(rope.long_inv_freq) != bool(rope.original):
            raise BundleCorrupt(f"{where}.ropes[{i}]: long_inv_freq and original belong together")
        if rope.original and not 1 <= rope.original < spec.context_length:
            raise BundleCorrupt(f"{where}.ropes[{i}].original: {rope.original} is out of range")
        if rope.original and len(rope.long_inv_freq) != len(rope.inv_freq):
            raise BundleCorrupt(f"{where}.ropes[{i}].long_inv_freq: not as many as inv_freq")
    if len({rope.original for rope in spec.ropes if rope.original}) > 1:
        raise BundleCorrupt(f"{where}.ropes: original lengths differ")
    if spec.original_length and any(block.sinks for block in spec.attention.values()):
        raise BundleCorrupt(f"{where}.ropes: two sets of frequencies beside a window with sinks")
    for i, layer in enumerate(spec.layers):
        for j, block in enumerate(layer):
            if isinstance(block, Attention | SharedAttention):
                _check_turned(spec, block, f"{where}.layers[{i}][{j}].rope")


def _check_turned(spec: ModelSpec, block: Attention | SharedAttention, where: str) -> None:
    """BundleCorrupt for a block whose rope is missing or turns more than a head has."""
    if block.rope is None:
        return
    if not 0 <= block.rope < len(spec.ropes):
        raise BundleCorrupt(f"{where}: no rope {block.rope}")
    rotated = 2 * len(spec.ropes[block.rope].inv_freq)
    if isinstance(block, LatentAttention) and rotated != block.rope_dim:
        raise BundleCorrupt(f"{where}: rotates {rotated} dims, not the {block.rope_dim} of rope_dim")
    dim = block.head_dim // (2 if block.differential else 1)
    if rotated > dim:
        raise BundleCorrupt(f"{where}: rotates {rotated} of {dim} dims")
