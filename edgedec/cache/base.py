"""The interface of a cache: the state of every block for one sequence, in memory that belongs to its runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.spec import Attention, ModelSpec, Opaque

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Arrays = dict[str, NDArray[Any]]
# The most attached slots of a block, above its tokens.
MOST_ATTACHED = 64
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
        """The number of committed tokens. A block that was run on fewer of them holds fewer slots."""
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

    def attach(self, rows: int) -> None:
        """Keep the first so many rows of the pending tree as further slots of the last committed token, in the blocks
        that were run on them, and forget the others: `length` stays, and truncating below that token forgets them. At
        most `MOST_ATTACHED` more slots than tokens. UsageError where a block keeps no slots."""
        ...

    def rollback(self) -> None:
        """Forget the pending rows of a tree that will not be committed."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens, and the pending rows. A recurrent block returns to the last state
        that it kept, so that the new length may be smaller than `length`."""
        ...

    def fork(self, length: int | None = None, capacity: int | None = None) -> Cache:
        """Another cache with the first `length` committed tokens (all by default; fewer where a recurrent block kept
        no state there) and room for `capacity` (by default the same); the two caches are independent. With pages,
        nothing is copied."""
        ...

    def drop(self, block: int, slots: Sequence[int] | Ints) -> None:
        """Forget committed slots of one attention block, and the pending rows; the slots that stay keep their order and
        their positions. UsageError for other blocks."""
        ...

    def drop_by_head(self, block: int, slots: Ints) -> None:
        """Forget of each kv head of an attention block slots of its own, as many of each, ascending [n_kv_heads, n],
        and the pending rows; for runtimes whose capabilities have `drop_by_head`. Slot i is then that of the latest
        token that a head has there: its position, and when it is truncated. UsageError for other blocks, and those with
        a window, which have to know the position of each key."""
        ...

    def merge(self, block: int, into: Sequence[int], slots: Sequence[int], weights: Weights) -> None:
        """Add keys and values of `slots`, weighted, to those of the slots `into`, which keep 1 less these weights of
        their own (`cache.merging`), and forget the pending rows. weights: [n] or [n_kv_heads, n]. The merged slots stay
        until they are dropped. UsageError for other blocks, and for a slot on both sides."""
        ...

    def keys(self, block: int, start: int = 0) -> NDArray[np.float32]:
        """The keys of the committed slots of an attention block from `start` on [n_kv_heads, slots, head_dim], as they
        are stored, turned by their positions."""
        ...

    def offload(self, block: int, pages: Sequence[int] | Ints, folder: str) -> None:
        """Put full pages of an attention block, by their numbers, into files of a folder, from where they are read when
        a row sees them; for runtimes whose capabilities have `offload`. The files are unlinked, and freed with the
        cache. Pages that other caches share stay in memory. UsageError for pages that are not full, or without room on
        disk."""
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


@runtime_checkable
class GrowingCache(Protocol):
    """A cache whose later tokens can be appended to another cache with a prefix of the same text."""

    def save_rest(self, start: int) -> Bytes | None:
        """The data that a cache of the first `start` tokens must `append` to hold all of them; None if slots do not
        correspond to tokens, because some were dropped, attached or restored."""
        ...

    def append(self, rest: Bytes) -> bool:
        """Append tokens, and forget the pending rows; False if the data was saved for another length or kind of
        cache."""
        ...


def slotted(spec: ModelSpec, block: int, what: str) -> int:
    """The number of a block that keeps slots; UsageError for others. what: the operation, for the message."""
    if block not in spec.attention:
        raise UsageError(f"block {block} keeps no slots that could be {what}")
    return block


def checked_drop(spec: ModelSpec, block: int, slots: Ints) -> Ints:
    """The slots of `Cache.drop_by_head`, int64 [n_kv_heads, n] in a row; UsageError unless the block can drop so."""
    facts = spec.attention[slotted(spec, block, "dropped")]
    gone = np.ascontiguousarray(slots, np.int64)
    if facts.window is not None:
        raise UsageError(f"block {block} has a window: its heads drop the same slots")
    if gone.ndim != 2 or len(gone) != facts.n_kv_heads or (np.diff(gone, axis=1) <= 0).any():
        raise UsageError(f"slots {list(gone.shape)}: needs as many of each of {facts.n_kv_heads} kv heads, ascending")
    return gone


def kv_bytes_per_token(spec: ModelSpec, kv: str) -> int:
    """Bytes that one token costs in a cache of this format."""
    bits = {"f32": 32, "f16": 16, "int8": 8, "int4": 4}[kv]
    blocks = [block for block in spec.blocks if isinstance(block, Attention | Opaque)]
    return sum(block.kv_parts * block.kv_dim * bits // 8 for block in blocks)
