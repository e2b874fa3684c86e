"""Objects that are opened once and shared: released with their last user, or with the runtime that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from edgedec.runtime import Runtime

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


class OfRuntime(Generic[T]):
    """Immutable objects by runtime and key, released with the runtime, which they must not refer to; safe for any
    thread."""

    def __init__(self) -> None:
        self._instances: WeakKeyDictionary[Runtime, dict[Hashable, T]] = WeakKeyDictionary()
        self._lock = Lock()

    def get(self, runtime: Runtime, key: Hashable, make: Callable[[], T]) -> T:
        """The object of this runtime and key, or a new one."""
        with self._lock:
            instances = self._instances.setdefault(runtime, {})
            if key not in instances:
                instances[key] = make()
            return instances[key]
