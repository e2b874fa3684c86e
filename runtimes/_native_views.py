"""Views as the native engine reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.kernels.cpu import structs
from edgedec.runtime import PAGE, View
from edgedec.runtimes._native_cache import NativeCache, address
from edgedec.spec import ModelSpec


class _PackedView:
    """A view's structure, and the arrays that it points to."""

    def __init__(self, view: View, kv_heads: int) -> None:
        numbers = [np.array(view.numbers(name, kv_heads), np.int32) for name in ("sinks", "recent", "pages")]
        lists = [part for name in ("chosen", "slots") for part in _lists(view, name, kv_heads)]
        self._keep = [*numbers, *lists, _runs(view, kv_heads)]
        self._struct = structs.ViewStruct(
            view.group,
            view.theta is not None,
            view.theta or 0.0,
            *(address(part) if len(part) else None for part in self._keep),
        )
        self.address = ctypes.addressof(self._struct)
        self.reach = _reach(view, kv_heads)


def _lists(view: View, name: str, kv_heads: int) -> list[NDArray[np.int32]]:
    """The ends of the heads' lists and the lists, one after another; two empty arrays if the view has none."""
    if getattr(view, name) is None:
        return [np.zeros(0, np.int32)] * 2
    lists = [view.listed(name, head).astype(np.int32) for head in range(kv_heads)]
    joined = np.concatenate([*lists, np.zeros(1, np.int32)])  # never empty, so that there is an address
    return [np.cumsum([len(one) for one in lists]).astype(np.int32), joined]


def _reach(view: View, kv_heads: int) -> int:
    """The least number of slots that a block must hold for the view's lists."""
    ends = [0]
    for head in range(kv_heads):
        chosen, slots = view.listed("chosen", head), view.listed("slots", head)
        ends += [(int(chosen[-1]) + 1) * PAGE] if len(chosen) else []
        ends += [int(slots[-1]) + (1 if view.runs is None else int(view.stands_for(head)[-1]))] if len(slots) else []
    return max(ends)


def _runs(view: View, kv_heads: int) -> NDArray[np.int32]:
    """How many slots each of the listed ones stands for, head after head; empty if each is itself."""
    if view.runs is None:
        return np.zeros(0, np.int32)
    parts = [view.stands_for(head) for head in range(kv_heads)]
    return np.concatenate([*parts, np.ones(1, np.int64)]).astype(np.int32)  # never empty, so that there is an address


class NativeViews:
    """Packs the views of calls, each once."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._all = range(spec.n_blocks)
        self._packed: WeakKeyDictionary[View, dict[int, _PackedView]] = WeakKeyDictionary()

    def address(
        self, views: Mapping[int, View], blocks: Sequence[int] | None, cache: NativeCache, keep: list[Any]
    ) -> int:
        """The address of a list of views, one entry a block of the call. UsageError for views of other blocks, or that
        are not of what these hold."""
        run = self._all if blocks is None else blocks
        places = dict.fromkeys(run, 0)
        for block, view in views.items():
            if block not in places or block not in self._spec.attention:
                raise UsageError(f"view of block {block}: the call runs no such attention block")
            packed = self._pack(view, block, cache)
            keep.append(packed)
            places[block] = packed.address
        found = np.fromiter(places.values(), np.uintp, len(places))
        keep.append(found)
        return address(found)

    def _pack(self, view: View, block: int, cache: NativeCache) -> _PackedView:
        kv_heads = self._spec.attention[block].n_kv_heads
        known = self._packed.get(view)
        if known is None:
            known = self._packed[view] = {}
        found = known.get(kv_heads)
        if found is None or found.reach > cache.slots(block):
            view.check(block, kv_heads, cache.slots(block))
            found = known[kv_heads] = _PackedView(view, kv_heads)
        return found
