"""Offloading of idle texts: caches without room in memory are written to disk, and mapped when a text continues them.

    folder/edgedec-idle-1234-x7/   of one process, which holds a lock in it
        lock
        0.kv  1.kv  ...            a cache each (`storage.mapped`)

The folder is removed when its process ends; folders of killed processes are removed when the next process starts. A
separate thread writes the files, under temporary names. At most `most` bytes are kept: the least recently used files
are removed first. If a file cannot be written or is damaged, the text is read again.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import finalize

from edgedec.cache.base import Arrays, Cache
from edgedec.cache.prefixes import PrefixIndex
from edgedec.errors import SessionError, UsageError
from edgedec.storage.mapped import map_arrays, write_mapped

log = logging.getLogger("edgedec.cache")
_NAME, _LOCK = "edgedec-idle-", "lock"
# The most caches that wait to be written, as they are held in memory.
_WAITING = 2


@dataclass(frozen=True, eq=False)
class StoredPrefix:
    """A cache of `length` tokens in a file."""

    path: Path
    length: int
    bytes: int


class Offload:
    """Caches of ended texts in a folder, `most` bytes at a time; for any number of threads. `written`, `restored`,
    `dropped`: the number of caches offloaded, loaded again, and lost to limits or errors."""

    def __init__(self, folder: str | os.PathLike[str], most: int) -> None:
        if most < 1:
            raise UsageError(f"{most} bytes for idle texts: must be at least 1")
        self.most, self.written, self.restored, self.dropped = most, 0, 0, 0
        self._folder, lock = _own_folder(Path(folder))
        self._index, self._lock, self._count = PrefixIndex[StoredPrefix](), RLock(), 0
        self._files = set[StoredPrefix]()
        self._writer = ThreadPoolExecutor(1, "edgedec-offload")
        self._waiting: list[Future[None]] = []
        self.close: Callable[[], Any] = finalize(self, _end, os.getpid(), self._folder, lock, self._writer)

    @property
    def folder(self) -> Path:
        """The folder of this process."""
        return self._folder

    @property
    def bytes(self) -> int:
        """Bytes of the stored files."""
        with self._lock:
            return sum(stored.bytes for stored in self._files)

    def __len__(self) -> int:
        with self._lock:
            return len(self._files)

    def keep(self, ids: Sequence[int], cache: Cache, key: str) -> None:
        """Offload the cache of a text; the cache may change afterwards."""
        with self._lock:
            self._waiting = [future for future in self._waiting if not future.done()]
            held = self._index.match(ids, key).n >= len(ids)
            if held or not self.close.alive:  # type: ignore[attr-defined]
                return
            if len(self._waiting) >= _WAITING:
                self.dropped += 1
                return
            self._count += 1
            path = self._folder / f"{self._count}.kv"
            self._waiting.append(
                self._writer.submit(self._write, path, list(ids), cache.length, dict(cache.save()), key)
            )

    def wait(self) -> None:
        """Wait until all given caches are written."""
        for future in list(self._waiting):
            future.result()

    def find(self, ids: Sequence[int], key: str) -> tuple[StoredPrefix | None, int]:
        """The file with the longest prefix of a text, and its length."""
        with self._lock:
            match = self._index.match(ids, key)
        return match.cache, match.n

    def load(self, stored: StoredPrefix, n: int, like: Cache) -> Cache | None:
        """A cache like `like` with the first `n` tokens of a file; None if the file is gone or damaged."""
        try:
            cache = like.fork(0, max(like.capacity, stored.length))
            cache.load(map_arrays(stored.path))
            cache.truncate(n)
        except SessionError as error:
            log.warning("an idle text is read again: %s", error)
            with self._lock:
                self.dropped += 1
                self._index.evict(lambda: stored not in self._index.caches())
                self._remove_unknown()
            return None
        self.restored += 1
        return cache if cache.capacity == like.capacity else cache.fork(None, like.capacity)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._index.clear()
            self._remove_unknown()

    def _write(self, path: Path, ids: list[int], length: int, arrays: Arrays, key: str) -> None:
        """Write a file; runs in the writer's thread."""
        try:
            size = sum(array.nbytes for array in arrays.values())
            if size > self.most:
                raise OSError(f"{size} bytes of one text, and {self.most} are allowed")
            stored = StoredPrefix(path, length, write_mapped(path, arrays))
        except OSError as error:
            log.warning("an idle text is not kept: %s", error)
            self.dropped += 1
            return
        with self._lock:
            self.written += 1
            self._files.add(stored)
            self._index.insert(ids, stored, key)
            self._remove_unknown()
            self._index.evict(lambda: sum(held.bytes for held in self._index.caches()) <= self.most)
            self._remove_unknown()

    def _remove_unknown(self) -> None:
        """Remove files that are no longer in the index: another text contains them, or there was no room."""
        known = set(self._index.caches())
        for stored in self._files - known:
            stored.path.unlink(missing_ok=True)
        self._files &= known


def _own_folder(folder: Path) -> tuple[Path, Any]:
    """A folder of this process below another one, and its lock; removes folders of killed processes there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for other in folder.glob(f"{_NAME}*"):
            _remove_if_left(other)
        token = f"{os.getpid()}-{secrets.token_hex(4)}"
        made = folder / f".{_NAME}{token}"
        made.mkdir(mode=0o700)
        lock = (made / _LOCK).open("wb")
        _locked(lock)
        return made.rename(folder / f"{_NAME}{token}"), lock
    except OSError as error:
        raise UsageError(f"{folder}: no folder for idle texts: {error.strerror or error}") from None


def _remove_if_left(folder: Path) -> None:
    try:
        with (folder / _LOCK).open("r+b") as lock:
            left = _locked(lock)
    except OSError:
        return
    if left:
        shutil.rmtree(folder, ignore_errors=True)


def _locked(lock: Any) -> bool:
    """Try to take the lock; True if it was free. It is held until the file is closed."""
    try:
        import fcntl
    except ImportError:  # Windows: what a killed process left stays
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def _end(pid: int, folder: Path, lock: Any, writer: ThreadPoolExecutor) -> None:
    if os.getpid() != pid:  # a child that was forked
        return
    writer.shutdown(wait=True, cancel_futures=True)
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()
