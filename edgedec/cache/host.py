"""A cache in host memory, one plain array a block: what the portable runtimes use, and the oracle of paged caches.

Keys and values of attention block b are `data(b)` [2, n_kv_heads, allocated, width], of a latent one [1, ..]; grown by
doubling up to the capacity. `f32` and `f16` hold numbers; `int8` and `int4` hold q with a static scale a channel (value
= q * scale; int4: two channels a byte, low nibble first, stored q + 8). Blocks that hold the same slots share one
`SlotMap`; a block that was run on fewer rows, or dropped some, has one of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.base import MOST_ATTACHED, Arrays, Ints, Weights, checked_drop, slotted
from edgedec.cache.formats import load, store
from edgedec.cache.given import GivenExperts
from edgedec.cache.merging import NoOffload, checked_merge, merged
from edgedec.cache.pending import PendingTree
from edgedec.cache.recurrent import Recurrent, RecurrentState, reachable
from edgedec.cache.rows import Rows
from edgedec.cache.slots import SlotMap, check_slots, with_slots
from edgedec.errors import ContextFull, SessionError, UsageError
from edgedec.spec import KV_FORMATS, ModelSpec

_DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "int4": np.uint8}
_FIRST = 256
_storages = count()
Scales = Mapping[int, NDArray[np.float32]]


class HostCache(NoOffload):
    """Room for `capacity` tokens, of which the first `length` are committed."""

    def __init__(self, spec: ModelSpec, capacity: int, kv: str = "f32", scales: Scales | None = None) -> None:
        """scales: of a quantized cache, [2, n_kv_heads, 1, head_dim] by attention block; only `keys` needs them."""
        if kv not in KV_FORMATS:
            raise UsageError(f"no KV format {kv!r}; there are: {', '.join(KV_FORMATS)}")
        if capacity < 1:
            raise UsageError(f"capacity {capacity}: a cache needs room for at least one token")
        if kv == "int4" and any(block.head_dim % 2 for block in spec.attention.values()):
            raise UsageError("KV format int4 holds two channels a byte: this model's heads have an odd number")
        self.spec, self.capacity, self.kv, self.kind, self._scales = spec, capacity, kv, kv, scales
        self._length, self._tree = 0, PendingTree()
        shared = SlotMap(min(_FIRST, capacity))
        self._maps = dict.fromkeys(spec.attention, shared)
        self._groups: list[tuple[SlotMap, list[int]]] | None = None
        self._data = {b: self._allocate(b, min(_FIRST, capacity)) for b in spec.attention}
        self.experts = GivenExperts(self.pending_span)
        self._recurrent = {b: RecurrentState(block) for b, block in spec.recurrent.items()}
        # Changes whenever arrays are allocated or moved: objects bound to their addresses are valid until then.
        self.storage = next(_storages)

    @property
    def length(self) -> int:
        return self._length

    def page_ids(self) -> Ints:
        return np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        states = sum(part.nbytes for state in self._recurrent.values() for part in state.committed if part is not None)
        return states + sum(array.nbytes for array in self._data.values())

    def data(self, block: int) -> NDArray[Any]:
        """[2, n_kv_heads, allocated, width], writable: keys and values of an attention block."""
        return self._data[block]

    def state(self, block: int) -> RecurrentState:
        """The state of a recurrent block."""
        return self._recurrent[block]

    def slots(self, block: int) -> int:
        return self._maps[block].committed

    def positions(self, block: int) -> Ints:
        return self._maps[block].positions

    def reserve(self, rows: Rows) -> None:
        """ContextFull unless the rows fit after the committed tokens."""
        need = self._length + (int(rows.row_numbers()[-1]) + 1 if len(rows) else 0)
        if need > self.capacity:
            raise ContextFull(f"{need} rows do not fit a cache of {self.capacity}")

    def same_slots(self, blocks: Sequence[int]) -> bool:
        """Whether these attention blocks hold the same slots."""
        return len({id(self._maps[b]) for b in blocks}) <= 1

    def is_whole(self) -> bool:
        """Whether every attention block holds the whole text, each token in the slot of its position."""
        groups = self._by_map()
        if len(groups) > 1:
            return False
        if not groups or not self._length:
            return True
        slots = groups[0][0]
        return slots.committed == self._length == int(slots.positions[-1]) + 1

    def write(self, blocks: Sequence[int], rows: Rows, spare: int = 0) -> dict[int, tuple[int, int]]:
        """Begin a call: the slots (from, to) of the computed rows in each of its attention blocks, with room for
        them and for `spare` slots after them; ContextFull if the rows do not fit after the committed tokens. Blocks
        without a state change nothing."""
        chosen = {b for b in blocks if b in self._maps}
        if not chosen and not any(b in self._recurrent for b in blocks):
            return {}
        self.reserve(rows)
        if self._tree.write(rows):
            self._forget_pending()
        self._split(chosen)
        found: dict[int, tuple[int, int]] = {}
        for slots, members in self._by_map():
            if members[0] in chosen:
                found |= dict.fromkeys(members, slots.write(rows))
                for b in members:
                    self._grow(b, found[b][1] + spare)
        return found

    def pending_span(self, block: int, rows: Rows) -> tuple[int, int]:
        """The slots (from, to) of the computed rows of a call in an attention block; UsageError unless this call or one
        before has written them."""
        return self._maps[block].span(rows, block)

    def commit(self, rows: Sequence[int]) -> None:
        self._tree.commit(rows)
        for slots, blocks in self._by_map():
            source, target = slots.commit(rows, self._length)
            for b in blocks if source else ():
                self._data[b][:, :, target] = self._data[b][:, :, source]
        self._length += len(rows)
        for state in self._recurrent.values():
            state.commit(rows, self._length)
        self._join()

    def attach(self, rows: int) -> None:
        if not 0 < rows <= self._tree.size or self._tree.done or not self._length:
            raise UsageError(f"{rows} rows cannot be attached: {self._tree.size} are pending")
        if self._recurrent:
            raise UsageError("rows cannot be attached: a recurrent block keeps no slots")
        if any(slots.committed + rows > self._length + MOST_ATTACHED for slots, _ in self._by_map()):
            raise ContextFull(f"{rows} rows cannot be attached: at most {MOST_ATTACHED} slots more than tokens")
        for slots, _ in self._by_map():
            slots.attach(rows, self._length)
        self.rollback()

    def rollback(self) -> None:
        self._tree.reset()
        self._forget_pending()

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise UsageError(f"cannot truncate {self._length} cached tokens to {length}")
        self._tree.reset()
        length = reachable(self._recurrent.values(), length, self._length)
        for slots, _ in self._by_map():
            slots.truncate(length)
        for state in self._recurrent.values():
            state.truncate(length, self._length)
        self._length = length
        self._join()

    def fork(self, length: int | None = None, capacity: int | None = None) -> HostCache:
        length = self._length if length is None else length
        twin = HostCache(self.spec, self.capacity if capacity is None else capacity, self.kv, self._scales)
        if twin.capacity < min(length, self._length):
            raise UsageError(f"capacity {twin.capacity}: the fork has {length} tokens")
        copies = {id(slots): slots.copy() for slots, _ in self._by_map()}
        twin._groups = None
        twin._maps = {b: copies[id(slots)] for b, slots in self._maps.items()}
        twin._recurrent = {b: state.copy() for b, state in self._recurrent.items()}
        twin._length = self._length
        twin.truncate(length)
        twin._data = {b: data[:, :, : max(twin.slots(b), 1)].copy() for b, data in self._data.items()}
        return twin

    def keys(self, block: int, start: int = 0) -> NDArray[np.float32]:
        kept = self._data[slotted(self.spec, block, "read")][0][:, start : self.slots(block)]
        if self.kv in ("int8", "int4") and self._scales is None:
            raise UsageError(f"keys of a {self.kv} cache: this runtime does not give it the scales")
        return load(kept, self.kv, self._scales[block][0] if self._scales else None)

    def merge(self, block: int, into: Sequence[int], slots: Sequence[int], weights: Weights) -> None:
        n, data = self.slots(slotted(self.spec, block, "merged")), self._data[block]
        parts = checked_merge(into, slots, weights, data.shape[1], n)
        self.rollback()
        unit = np.ones((1, 1, 1), np.float32) if self.kv in ("int8", "int4") else None  # static scales are of channels
        for half in data:
            targets, found = merged(load(half[:, :n], self.kv, unit), *parts)
            half[:, targets] = store(found, self.kv, unit)

    def drop(self, block: int, slots: Sequence[int] | Ints) -> None:
        slotted(self.spec, block, "dropped")
        self.rollback()
        self._split({block})
        stay = self._maps[block].drop(slots)
        self._data[block][:, :, : len(stay)] = self._data[block][:, :, stay]
        self._join()

    def drop_by_head(self, block: int, slots: Ints) -> None:
        gone, data = checked_drop(self.spec, block, slots), self._data[block]
        self.rollback()
        self._split({block})
        for head, kept in enumerate(self._maps[block].drop_by_head(gone)):
            data[:, head, : len(kept)] = data[:, head, kept]
        self._join()

    def save(self) -> Arrays:
        arrays: Arrays = {"length": np.array([self._length], np.int64)}
        for b, slots in self._maps.items():
            arrays[f"kv.{b}"] = self._data[b][:, :, : slots.committed]
            arrays[f"slots.{b}"] = np.stack([slots.positions, slots.tokens])
        for b, state in self._recurrent.items():
            arrays |= {f"conv.{b}": state.committed.conv}
            if state.committed.state.size:
                arrays |= {f"state.{b}": state.committed.state}
        return arrays

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._check(arrays)
        self._tree.reset()
        self._length = int(arrays["length"][0])
        for b in self._maps:
            positions, tokens = arrays[f"slots.{b}"]
            self._assign([b], SlotMap(len(positions)))
            self._maps[b].load(positions, tokens)
            self._grow(b, len(positions))
            self._data[b][:, :, : len(positions)] = arrays[f"kv.{b}"]
        for b, state in self._recurrent.items():
            matrices = arrays.get(f"state.{b}", state.committed.state)
            state.load(Recurrent(arrays[f"conv.{b}"], matrices), self._length)
        self._join()

    def _check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """SessionError unless these are arrays that such a cache saved, of a text that fits."""
        like = HostCache(self.spec, 1, self.kv).save()
        held = arrays.get("length", np.zeros(0))
        length = int(held[0]) if held.shape == (1,) and held.dtype == np.int64 else -1
        if arrays.keys() != like.keys() or not 0 <= length <= self.capacity:
            raise SessionError(f"cached values are not of a {self.kind} cache of this model")
        for name, array in arrays.items():
            part, _, block = name.partition(".")
            n = arrays[f"slots.{block}"].shape[-1] if part in ("kv", "slots") else 0
            shape = with_slots(like[name].shape, part, n)
            if array.dtype != like[name].dtype or array.shape != shape or n > length + MOST_ATTACHED:
                what = f"cached values {name} {array.dtype}{list(array.shape)}"
                raise SessionError(f"{what} are not of a {self.kind} cache of this model")
            if part == "slots" and n:
                check_slots(name, array, length)

    def _forget_pending(self) -> None:
        for slots, _ in self._by_map():
            slots.rollback()
        for state in self._recurrent.values():
            state.rollback()
        self._join()

    def _allocate(self, block: int, rows: int) -> NDArray[Any]:
        facts = self.spec.attention[block]
        width = facts.head_dim // 2 if self.kv == "int4" else facts.head_dim
        return np.zeros((facts.kv_parts, facts.n_kv_heads, rows, width), _DTYPES[self.kv])

    def _grow(self, block: int, rows: int) -> None:
        have = self._data[block].shape[2]
        if rows > have:
            grown = self._allocate(block, max(rows, min(self.capacity, 2 * have)))
            grown[:, :, :have] = self._data[block]
            self._data[block], self.storage = grown, next(_storages)

    def _by_map(self) -> list[tuple[SlotMap, list[int]]]:
        """Each slot map with the blocks that share it."""
        if self._groups is None:
            groups: dict[int, tuple[SlotMap, list[int]]] = {}
            for b, slots in self._maps.items():
                groups.setdefault(id(slots), (slots, []))[1].append(b)
            self._groups = list(groups.values())
        return self._groups

    def _assign(self, blocks: Iterable[int], slots: SlotMap) -> None:
        """Give these blocks a slot map."""
        self._maps |= dict.fromkeys(blocks, slots)
        self._groups = None

    def _split(self, chosen: Collection[int]) -> None:
        """Give these blocks slot maps that no other block shares."""
        for slots, members in self._by_map():
            apart = [b for b in members if b in chosen]
            if apart and len(apart) < len(members):
                self._assign(apart, slots.copy())

    def _join(self) -> None:
        """Let blocks with equal slots share one map again."""
        groups = self._by_map()
        for slots, blocks in groups:
            first = next(other for other, _ in groups if other is slots or other.same_as(slots))
            if first is not slots:
                self._assign(blocks, first)
