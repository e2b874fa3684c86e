"""Bytes of a device that pages and states may take together: frames of several sizes grow out of one budget.

While there is room every size takes what it needs. Where there is none, a size takes first the slabs that others do not
use, then the place of its own piece that was used least recently, then slabs of others whose pieces can leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import RLock
from typing import Protocol

from edgedec.kernels.device.interface import Buffer, Device

# No more than a part of this many is given back for something else.
_MUCH = 4


class PageLock:
    """A lock that a thread may take again. What a garbage collection ends meanwhile in the same thread waits until the
    lock is given back (`after`)."""

    def __init__(self) -> None:
        self._lock, self._depth, self._waiting = RLock(), 0, list[Callable[[], None]]()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        try:
            while self._depth == 1 and self._waiting:
                self._waiting.pop()()
        finally:
            self._depth -= 1
            self._lock.release()

    def after(self, work: Callable[[], None]) -> None:
        """Do it in a turn of its own: now, or when the one that goes on ends."""
        with self:
            self._waiting.append(work)


class Tenant(Protocol):
    """Who holds slabs of a budget."""

    def give_back(self, evict: bool) -> int:
        """The bytes of a slab that went back to the device: one that nothing lies in, or (evict) whose pieces could
        leave; 0: there is none."""
        ...


class MemoryBudget:
    """`most`: bytes that all slabs may take, 0: as many as the device has memory for; `taken`: that they do."""

    def __init__(self, device: Device, most: int = 0) -> None:
        self.device, self.most, self.taken, self.turn = device, most, 0, PageLock()
        self._given, self._tenants = most > 0, list[Tenant]()

    def join(self, tenant: Tenant) -> None:
        self._tenants.append(tenant)

    def slab(self, size: int, n: int) -> tuple[Buffer, int] | None:
        """Memory for up to n pieces of a size, and for how many; None if there is no more."""
        n = min(n, (self.most - self.taken) // size) if self.most else n
        if n <= 0:
            return None
        try:
            made = Buffer(self.device, size * n)
        except MemoryError:
            if not self.taken:
                raise
            self.most = self.taken  # from here on pieces are swapped
            return None
        self.taken += made.size
        return made, n

    def make_room(self, tenant: Tenant, size: int, evict: bool) -> bool:
        """Let the others give slabs back until `size` bytes are free; are they?"""
        others = [other for other in self._tenants if other is not tenant]
        while self.most - self.taken < size:
            if not self._given_back(others, evict):
                return False
        return True

    def relieve(self, size: int) -> bool:
        """Give the device up to `size` bytes for something else, for good; False: that is much of what there is, or a
        limit was set, within which the device has to have room."""
        before = self.taken
        if self._given or before < _MUCH * size:
            return False
        while self.taken > before - size and self._given_back(self._tenants, True):
            self.most = self.taken
        return self.taken < before

    def _given_back(self, tenants: Iterable[Tenant], evict: bool) -> bool:
        given = next((size for tenant in tenants if (size := tenant.give_back(evict))), 0)
        self.taken -= given
        return given > 0
