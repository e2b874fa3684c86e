"""What is opened once and held in common by all who use it, for as long as anyone does."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Opened(Generic[T]):
    """Things that no user changes, by whatever tells them apart; for any thread."""

    def __init__(self) -> None:
        self._things: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The one that is open, or a new one."""
        with self._lock:
            thing = self._things.get(key)
            if thing is None:
                thing = self._things[key] = make()
            return thing
