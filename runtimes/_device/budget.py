"""The memory budget of a device that pages and states share: frames of several sizes are allocated from it.

While there is room, every size allocates what it needs. After that a size first takes unused slabs of other sizes, then
evicts its own least recently used piece, then takes slabs of other sizes whose pieces can be swapped out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import RLock
from typing import Protocol

from edgedec.kernels.device.interface import Buffer, Device

# At most one part in this many is given back for other uses of the device's memory.
_MUCH = 4


class PageLock:
    """A reentrant lock. Finalizers that the garbage collector runs in the same thread meanwhile are deferred until the
    lock is released (`after`)."""

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
        """Run `work` outside of any other critical section: now, or when the current one ends."""
        with self:
            self._waiting.append(work)


class Tenant(Protocol):
    """A holder of slabs of a budget."""

    def give_back(self, evict: bool) -> int:
        """Free one slab and return its bytes: an empty one, or (evict) one whose pieces could be swapped out; 0 if
        there is none."""
        ...


class MemoryBudget:
    """The bytes of all slabs. `most`: the limit (0: the device's memory); `taken`: bytes in use."""

    def __init__(self, device: Device, most: int = 0) -> None:
        self.device, self.most, self.taken, self.turn = device, most, 0, PageLock()
        self._given, self._tenants = most > 0, list[Tenant]()

    def join(self, tenant: Tenant) -> None:
        self._tenants.append(tenant)

    def slab(self, size: int, n: int) -> tuple[Buffer, int] | None:
        """Memory for up to n pieces of a size, and their number; None if the budget is exhausted."""
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
        """Have the other tenants free slabs until `size` bytes are free; False if that is not possible."""
        others = [other for other in self._tenants if other is not tenant]
        while self.most - self.taken < size:
            if not self._given_back(others, evict):
                return False
        return True

    def relieve(self, size: int) -> bool:
        """Shrink the budget for good by up to `size` bytes, for other uses of the device's memory. False if that is a
        large part of the budget, or if the user set a limit."""
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
