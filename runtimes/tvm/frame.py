"""The argument of a compiled library: one table of numbers and addresses, int64 each.

The exporter emits code by these names and the runtime fills them in; both read this file.
"""

from __future__ import annotations

from edgedec.spec import Attention, Block, ModelSpec
from edgedec.spec._common import norm_tensors

# The fields of a call's table. step: `Step` of kernels/cuda/args.h; scratch: working memory; blocks: tables of the
# blocks, then that of the ends; run: int32 by block; keep: where the state after each block goes, that of the
# embedding last (0: nowhere); of the head's rows: logits; the best tokens' ids and scores; sums by strip; kv: the
# cache's format, by its place in KV_FORMATS.
FRAME = ("step", "threads", "scratch", "blocks", "run", "keep", "logits", "top", "ids", "scores", "sums", "kv")
ROWS = 256
STRIP, CHUNK, PAGE_SLOTS, LANES = 512, 256, 64, 16
VERSION = 2

# Pointers of a step, in the order of its struct; the numbers after them are int32.
STEP_POINTERS = (
    "tokens", "positions", "sequence", "at", "begin", "end", "part", "part_row", "chunks", "path", "items", "head_rows",
    "heat", "pages", "views", "slot_positions", "given", "recurrent", "updates", "update_ends", "taps",
)  # fmt: skip
STEP_NUMBERS = ("rows", "n_head", "n_items", "sequences", "n_taps")
# Fields of an attention block: its offset in a page, the number of its view of the sequences' slots, its rope's tables.
# For a recurrent block `view` is the number of its state in the call.
_ATTENTION = ("page_offset", "view", "cos", "sin")


def fields(names: list[str]) -> dict[str, int]:
    """The places of tensors' parts in a table: data, scales, zero points."""
    parts = [f"{name}{part}" for name in names for part in ("", ".scales", ".zeros")]
    return {name: at for at, name in enumerate((*_ATTENTION, *parts))}


def block_fields(block: Block, hidden: int) -> dict[str, int]:
    """The table of a block."""
    return fields(list(block.tensors(hidden)))


def end_fields(spec: ModelSpec) -> dict[str, int]:
    """The table of embedding, last norm and head."""
    return fields(["embed", *norm_tensors(spec.final_norm, "final_norm", spec.hidden_size), "head"])


def table_width(spec: ModelSpec) -> int:
    """The number of entries of a table; all tables have the same size."""
    widths = [len(block_fields(block, spec.hidden_size)) for block in spec.blocks]
    return max([*widths, len(end_fields(spec))])


def scratch_floats(block: Attention) -> int:
    """Floats of working memory of an attention thread: sixteen keys; scores, sums and totals of a group of queries."""
    group = block.n_heads // block.n_kv_heads
    return LANES * block.head_dim + group * (CHUNK + 2 * (block.head_dim + LANES)) + CHUNK
