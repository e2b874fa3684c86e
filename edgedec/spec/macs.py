"""Multiply-adds of a model's blocks for one row, counted from its matrices."""

from __future__ import annotations

from math import prod

from edgedec.spec import Block, ModelSpec, Moe


def block_macs(block: Block, hidden: int) -> int:
    """Multiply-adds of a block for one row, by its matrices; of a mixture of experts those of `top_k` experts."""
    macs = sum(prod(shape) for shape in block.matrices(hidden).values())
    if isinstance(block, Moe):
        expert = (block.up_rows + block.inner_size) * hidden
        macs += block.n_experts * hidden - (block.n_experts - block.top_k) * expert
    return macs


def row_macs(spec: ModelSpec) -> int:
    """Multiply-adds of all blocks and the head for one row, by their matrices."""
    return sum(block_macs(block, spec.hidden_size) for block in spec.blocks) + spec.hidden_size * spec.vocab_size
