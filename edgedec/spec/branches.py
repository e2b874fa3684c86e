"""Blocks side by side: a block with `branch` and those after it, up to the first without, read one state, and what they
make is added to it.

    x ── norm ── attention ──┐            x = x + attention(norm x) + mlp(norm x), in this order
    ├─── norm ── mlp ────────┤
    └────────────────────────+── x        (GPT-NeoX with two norms, Phi and Cohere with one, Falcon-H1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.errors import BundleCorrupt
from edgedec.spec.power_law import PowerLaw

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec


def check_branches(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for a branch that no block follows in its layer, or whose sums are normed one by one."""
    for i, layer in enumerate(spec.layers):
        for j, block in enumerate(layer):
            beside = block.branch or (j > 0 and layer[j - 1].branch)
            if block.branch and j == len(layer) - 1:
                raise BundleCorrupt(f"{where}.layers[{i}][{j}].branch: the last block of a layer has none beside it")
            if beside and (block.after != "none" or isinstance(block, PowerLaw)):
                raise BundleCorrupt(f"{where}.layers[{i}][{j}].branch: a sum that is normed, or a whole layer")


def first_beside(spec: ModelSpec, b: int) -> int:
    """The first of the blocks that read what block b reads: itself, if it stands alone."""
    while b > 0 and spec.blocks[b - 1].branch:
        b -= 1
    return b
