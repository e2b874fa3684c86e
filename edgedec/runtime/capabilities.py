"""The declared capabilities of a runtime: core code checks these and never a runtime's name."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.runtime.drafting import DraftingParts
from edgedec.runtime.sampler import MakeSampler
from edgedec.runtime.steps import StepParts
from edgedec.spec import ModelSpec

# The most cells of a mask, as larger ones take long to build: 16 MiB as floats.
_MASK_CELLS = 4 << 20
_LEAST_ROWS = 32
# Rows of one forward: of a decoder, and of a model that takes a text as a whole.
_ROWS, _TEXT_ROWS = 256, 2048


def largest_call(spec: ModelSpec, whole_texts: bool = False) -> int:
    """The usual limit of rows of one forward. whole_texts: a causal model runs a text as one group too."""
    return max(_TEXT_ROWS, spec.context_length) if whole_texts or not spec.causal else _ROWS


@dataclass(frozen=True)
class Capabilities:
    """kinds: block kinds that it runs. kv_formats: cache formats that it can open. batch_invariant: a row's outputs are
    byte-identical for any other rows in its call. trees, groups (rows that see each other), slices (some blocks,
    resumed rows), selections (blocks run on fewer rows), embeddings, drop, drop_by_head, merge, attach (slots of no
    token), views (of a block's slots), queries, offload (of pages to disk), attention_sums, adapters, logsum, hidden
    (states after blocks): features that calls and caches support. best_k: the number of best tokens of a row that
    are available, with the log-sum, at a lower cost than all logits (0: all logits are computed anyway); enters: it
    computes what enters an encoder's first block from tokens and their types, where `EncoderEntry.by_token` is true;
    temperatures: the log-sum is available at any temperature; entropy: that of each row is. page_slots: slots of a
    cache page, shared between forks; 0: a fork copies. largest_call: rows of one forward; prefill_chunk: rows of a
    prefill call; masks: it builds a mask of rows by slots, so prefill calls are smaller after a long text;
    row_buckets: the row counts of its static shapes (none: any). sampler: creates a sampler that draws a text's
    tokens from rows of logits; draws: calls can draw the token themselves; steps: it makes whole decoding steps by
    itself. drafting: its own table drafters, tree merge and greedy verification. device: the device and its driver
    (with a version, if known). rounding: the error of its outputs against float32 sums, relative to their spread (0:
    only by the order of the sums). facts: what it has of `spec.newer`.
    """

    kinds: tuple[str, ...]
    kv_formats: tuple[str, ...]
    facts: tuple[str, ...] = ()
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
    enters: bool = False
    temperatures: bool = False
    entropy: bool = False
    page_slots: int = 0
    largest_call: int = _ROWS
    prefill_chunk: int = 128
    masks: bool = True
    row_buckets: tuple[int, ...] = ()
    rounding: float = 0.0
    sampler: MakeSampler | None = None
    draws: bool = False
    steps: StepParts | None = None
    drafting: DraftingParts | None = None
    device: str = "cpu"
    driver: str = ""
    threads: int = 0
    isa: str = ""

    def chunk(self, length: int) -> int:
        """The rows of a prefill call after `length` tokens."""
        if not self.masks:
            return self.prefill_chunk
        fit = _MASK_CELLS // (length + self.prefill_chunk)
        return min(self.prefill_chunk, max(_LEAST_ROWS, fit))
