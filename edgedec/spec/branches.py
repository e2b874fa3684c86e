"""Blocks side by side: a block with `branch` and those after it, up to the first without, read one state, and what they
make is added to it.

    x ── norm ── attention ──┐            x = x + attention(norm x) + mlp(norm x), in this order
    ├─── norm ── mlp ────────┤
    └────────────────────────+── x        (GPT-NeoX with two norms, Phi and Cohere with one, Falcon-H1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm
from edgedec.spec.moe import Moe
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
            if isinstance(block, Moe) and block.joined != "none" and (block.branch or not beside):
                raise BundleCorrupt(f"{where}.layers[{i}][{j}].joined: of the last of blocks side by side only")


def first_beside(spec: ModelSpec, b: int) -> int:
    """The first of the blocks that read what block b reads: itself, if it stands alone."""
    while b > 0 and spec.blocks[b - 1].branch:
        b -= 1
    return b


def joined_norm(spec: ModelSpec, b: int) -> Norm:
    """The norm of the sum of what block b and those beside it add; "none": each is added by itself."""
    while spec.blocks[b].branch:
        b += 1
    last = spec.blocks[b]
    return last.joined if isinstance(last, Moe) else "none"


def cut_sums(spec: ModelSpec, blocks: Sequence[int]) -> list[int]:
    """The blocks of `blocks` whose sum with those beside them is normed, and the next of them is not among `blocks`, or
    the one before."""
    run = set(blocks)
    pairs = [(b, b + 1) for b, block in enumerate(spec.blocks) if block.branch and joined_norm(spec, b) != "none"]
    return sorted({b for pair in pairs for b in pair if len(run.intersection(pair)) == 1 and b in run})
