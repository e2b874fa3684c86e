"""What a cache is: the state of every block for one sequence, in memory that belongs to the runtime that made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.spec import Attention, ModelSpec, Opaque

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
Weights = Sequence[float] | NDArray[np.float32]


class Cache(Protocol):
    """`length` tokens are committed, of at most `capacity`; rows of later calls are pending until they are committed.

    kind: the layout of what `save` returns. kv: the format of keys and values.
    """

    spec: ModelSpec
    capacity: int
    kv: str
    kind: str

    @property
    def length(self) -> int:
        """Committed tokens of the text. A block that was run on fewer of them holds fewer slots."""
        ...

    def slots(self, block: int) -> int:
        """Committed slots of an attention block."""
        ...

    def positions(self, block: int) -> Ints:
        """The position of each committed slot of an attention block, in the order of the text."""
        ...

    def commit(self, rows: Sequence[int]) -> None:
        """Keep these rows of the pending tree, by their numbers in it, ascending. Every block keeps those it was run
        on. May be called again for later rows of the same tree, until another begins (`cache.pending`). UsageError for
        a row that is not pending."""
        ...

    def rollback(self) -> None:
        """Forget the pending rows: for a tree that is given up without a commit."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens, and the pending rows. A recurrent block goes back to the last state
        that it kept, so that `length` may then be smaller than asked for."""
        ...

    def fork(self, length: int | None = None, capacity: int | None = None) -> Cache:
        """Another cache with the first `length` committed tokens (all by default; fewer where a recurrent block kept
        no state there) and room for `capacity` (as here by default); what happens to one does not change the other.
        With pages, nothing is copied."""
        ...

    def drop(self, block: int, slots: Sequence[int] | Ints) -> None:
        """Forget committed slots of one attention block, and the pending rows; the slots that stay keep their order and
        their positions. UsageError for other blocks."""
        ...

    def merge(self, block: int, into: Sequence[int], slots: Sequence[int], weights: Weights) -> None:
        """Add keys and values of `slots`, weighted, to those of the slots `into`, which keep 1 less these weights of
        their own (`cache.merging`), and forget the pending rows. weights: [n] or [n_kv_heads, n]. The merged slots stay
        until they are dropped. UsageError for other blocks, and for a slot on both sides."""
        ...

    def keys(self, block: int) -> NDArray[np.float32]:
        """The keys of the committed slots of an attention block [n_kv_heads, slots, head_dim], as they are stored,
        turned by their positions."""
        ...

    def save(self) -> Arrays:
        """The committed content, as arrays that hold until the cache changes; "length" int64 [1] is one of them."""
        ...

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the content by what `save` returned; SessionError if it is not of such a cache."""
        ...

    def page_ids(self) -> Ints:
        """The pages that hold the committed tokens of the first attention block, in order: equal ids are one page.
        Empty for a cache without pages."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the cache holds, shared pages included."""
        ...


def slotted(spec: ModelSpec, block: int, what: str) -> int:
    """The number of a block that keeps slots; UsageError for others. what: is to be done to the slots."""
    if block not in spec.attention:
        raise UsageError(f"block {block} keeps no slots that could be {what}")
    return block


def kv_bytes_per_token(spec: ModelSpec, kv: str) -> int:
    """Bytes that one token costs in a cache of this format."""
    bits = {"f32": 32, "f16": 16, "int8": 8, "int4": 4}[kv]
    return sum(2 * block.kv_dim * bits // 8 for block in spec.blocks if isinstance(block, Attention | Opaque))
