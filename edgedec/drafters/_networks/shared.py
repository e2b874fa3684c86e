"""Objects that are opened once and shared by all users, and released with the last one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class SharedInstances(Generic[T]):
    """Immutable objects by key; safe for any thread."""

    def __init__(self) -> None:
        self._instances: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The open object of this key, or a new one."""
        with self._lock:
            instance = self._instances.get(key)
            if instance is None:
                instance = self._instances[key] = make()
            return instance
