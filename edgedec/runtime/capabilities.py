"""What a runtime can do, declared instead of guessed: core code reads this and never a runtime's name."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.runtime.drafting import DraftingParts
from edgedec.runtime.sampler import MakeSampler

# A mask of more cells takes long to make: 16 MiB as floats.
_MASK_CELLS = 4 << 20
_LEAST_ROWS = 32


@dataclass(frozen=True)
class Capabilities:
    """kinds: block kinds it runs. kv_formats: cache formats it can open. batch_invariant: a row's outputs are the same
    bytes whatever shares its call. trees, groups (rows that see each other), slices (some blocks, resumed rows),
    selections (blocks run on fewer rows), embeddings, drop, drop_by_head, merge, attach (slots of no token), views (of
    a block's slots), queries, offload (of pages to disk), attention_sums, adapters, logsum, hidden (states after
    blocks): what a call or a cache may bring or want. best_k: how many of the best tokens of a row come, with the log-
    sum, for less than all its logits (0: all logits are computed and copied anyway); temperatures: the log-sum is given
    at any temperature. page_slots: slots of a cache page, shared between forks; 0: a fork copies. largest_call: rows of
    one forward; prefill_chunk: rows that prefill gives it at once; masks: does it make a mask of rows by slots, so that
    fewer go at once after a long text? row_buckets: the row counts that it has static shapes for (none: any). sampler:
    makes what draws a text's tokens from rows of logits; draws: calls can do that themselves. drafting: its own table
    drafters, tree merge and greedy verification.
    device: what computes, and by which driver (its version, where there is one).
    rounding: how far its outputs may be from float32 sums, in their spread (0: only by the order of the sums).
    """

    kinds: tuple[str, ...]
    kv_formats: tuple[str, ...]
    batch_invariant: bool = False
    trees: bool = True
    groups: bool = True
    slices: bool = True
    selections: bool = True
    embeddings: bool = True
    drop: bool = True
    drop_by_head: bool = False
    merge: bool = False
    attach: bool = False
    views: bool = False
    queries: bool = False
    offload: bool = False
    attention_sums: bool = True
    adapters: bool = True
    logsum: bool = True
    hidden: bool = True
    best_k: int = 0
    temperatures: bool = False
    page_slots: int = 0
    largest_call: int = 256
    prefill_chunk: int = 128
    masks: bool = True
    row_buckets: tuple[int, ...] = ()
    rounding: float = 0.0
    sampler: MakeSampler | None = None
    draws: bool = False
    drafting: DraftingParts | None = None
    device: str = "cpu"
    driver: str = ""
    threads: int = 0
    isa: str = ""

    def chunk(self, length: int) -> int:
        """Rows that prefill gives it at once after so many tokens."""
        if not self.masks:
            return self.prefill_chunk
        fit = _MASK_CELLS // (length + self.prefill_chunk)
        return min(self.prefill_chunk, max(_LEAST_ROWS, fit))
