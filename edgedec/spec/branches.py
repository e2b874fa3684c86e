"""Blocks side by side: a block with `branch` and those after it, up to the first without, read one state, and what they
make is added to it.

    x ── norm ── attention ──┐            x = x + attention(norm x) + mlp(norm x), in this order
    ├─── norm ── mlp ────────┤
    └────────────────────────+── x        (GPT-NeoX with two norms, Phi and Cohere with one, Falcon-H1)

And blocks that feed: what a block with `feeds` makes is not added to the state, but read by the next block, alone by
one that feeds too, and by the first that does not feed after a sum with the state that the first of them read.

    x ── norm ── attention ── norm ── mlp ──+── norm ── ssm ──+── x      (Zamba2, eq. 6 of arXiv:2405.16712)
    ├───────────────────────────────────────┘                 │
    └─────────────────────────────────────────────────────────┘

And experts whose router reads the state before attention (`Moe.early_router`): a call that leaves attention out adds
nothing in between, so that their router reads what enters them; none begins between the two, where that state is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Norm
from edgedec.spec.altup import AltUp
from edgedec.spec.lookup import Lookup
from edgedec.spec.moe import Moe
from edgedec.spec.opaque import Opaque
from edgedec.spec.power_law import PowerLaw
from edgedec.spec.pre_router import PreRouter

if TYPE_CHECKING:
    from edgedec.spec import Block, ModelSpec


def feeds(block: Block) -> bool:
    """Whether what it makes is read by the next block only."""
    return bool(getattr(block, "feeds", False))


def fed(spec: ModelSpec, b: int) -> bool:
    """Whether block b reads what the block before it made."""
    return b > 0 and feeds(spec.blocks[b - 1])


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
            alone = j > 0 and not beside and (j < 2 or not layer[j - 2].branch)
            if early(block) and not alone:
                raise BundleCorrupt(f"{where}.layers[{i}][{j}].early_router: after one block of the layer, beside none")
        _check_fed(spec, layer, f"{where}.layers[{i}]")


# Blocks that are no function of one state added to it.
_OTHER = AltUp | Lookup | Opaque | PowerLaw | PreRouter


def _check_fed(spec: ModelSpec, layer: Sequence[Block], where: str) -> None:
    for j, block in enumerate(layer):
        if not feeds(block) and not (j and feeds(layer[j - 1])):
            continue
        if j == len(layer) - 1 and feeds(block):
            raise BundleCorrupt(f"{where}[{j}].feeds: the last block of a layer has none after it")
        beside = block.branch or (j > 0 and layer[j - 1].branch)
        if beside or early(block) or block.after != "none" or isinstance(block, _OTHER) or spec.output is not None:
            raise BundleCorrupt(f"{where}[{j}]: fed, or feeds another, beside a branch, a norm after it or an output")


def first_beside(spec: ModelSpec, b: int) -> int:
    """The first of the blocks that read what block b reads, or feed it: itself, if it stands alone."""
    while b > 0 and (spec.blocks[b - 1].branch or fed(spec, b)):
        b -= 1
    return b


def may_enter(spec: ModelSpec, b: int) -> bool:
    """Whether block b reads nothing but the state after the block before it, so that a call may begin there."""
    return first_beside(spec, b) == b and not early(spec.blocks[b])


def routed_from(spec: ModelSpec, b: int) -> int:
    """The block before which the state is that the router of block b reads."""
    return b - 1 if early(spec.blocks[b]) else first_beside(spec, b)


def early(block: Block) -> bool:
    """Whether its router reads the state before the block in front of it."""
    return isinstance(block, Moe) and block.early_router


def joined_norm(spec: ModelSpec, b: int) -> Norm:
    """The norm of the sum of what block b and those beside it add; "none": each is added by itself."""
    while spec.blocks[b].branch:
        b += 1
    last = spec.blocks[b]
    return last.joined if isinstance(last, Moe) else "none"


def cut_sums(spec: ModelSpec, blocks: Sequence[int]) -> list[int]:
    """The blocks of `blocks` whose sum with those beside them is normed, or that feed one another, and the next of them
    is not among `blocks`, or the one before."""
    run = set(blocks)
    sums = [b for b, block in enumerate(spec.blocks) if block.branch and joined_norm(spec, b) != "none"]
    pairs = [(b, b + 1) for b in (*sums, *(b for b, block in enumerate(spec.blocks) if feeds(block)))]
    return sorted({b for pair in pairs for b in pair if len(run.intersection(pair)) == 1 and b in run})
