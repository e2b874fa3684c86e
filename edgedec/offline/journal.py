"""The journal: results in the order of completion, in a file next to the output, from which a killed run is resumed.

One line of JSON each, with a checksum of what follows it:

    {"crc": "0f3a…", "journal": 1, "about": {…}, …}              options and input
    {"crc": "91bc…", "row": 3, "of": "<digest of the input's row>", "out": {…}}

Lines come in the order in which rows end, never further than `window` rows ahead of the first that has not.
A last line that is torn (the machine died in the middle of it) is cut off, and its row is done again.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import IO, Any, NamedTuple

from edgedec.errors import UsageError
from edgedec.offline.reading import plain

VERSION = 1
_SYNC_S = 5.0
_LONGEST = 64 << 20  # limit of the first line, which may belong to any file
_PREFIX = b'{"crc": "'
_OUT = b', "out": '
_SKIP = len(_PREFIX) + 8 + len(b'", ')


class Entry(NamedTuple):
    """A finished row, and where its result lies in the journal."""

    row: int
    digest: str
    offset: int
    length: int


@dataclass
class Done:
    """Which rows are finished: all below `low`, and some above."""

    low: int = 0
    above: set[int] = field(default_factory=set)

    def __contains__(self, row: int) -> bool:
        return row < self.low or row in self.above

    def __len__(self) -> int:
        return self.low + len(self.above)

    def add(self, row: int) -> None:
        self.above.add(row)
        while self.low in self.above:
            self.above.remove(self.low)
            self.low += 1

    def copy(self) -> Done:
        return Done(self.low, set(self.above))


class Journal:
    """Appended to by one process at a time."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        """`force`: discard an existing journal."""
        self.path = path
        self._file: IO[bytes] = path.open("a+b")
        try:
            _lock(self._file, path)
            if force:
                self._file.truncate(0)
            self.done, self.failed, self.cut = Done(), 0, 0
            self.header: dict[str, Any] = {}
            self._end = self._read()
        except BaseException:
            self._file.close()
            raise
        self._synced = monotonic()

    def begin(self, header: Mapping[str, Any]) -> None:
        """The first line of a new journal; one without results is started over."""
        self._file.truncate(0)
        self.header = {"journal": VERSION, **header}
        self._append(self.header)
        self.sync()

    def add(self, row: int, digest: str, out: Mapping[str, Any], failed: bool) -> None:
        """Add a finished row; once this returns, it survives a kill of this process."""
        self._append({"row": row, "of": digest, **({"failed": True} if failed else {}), "out": out})
        self.done.add(row)
        self.failed += failed
        if monotonic() - self._synced > _SYNC_S:
            self.sync()

    def entries(self) -> Iterator[Entry]:
        """The finished rows so far, in order; keeps in memory only those that ended early."""
        return _entries(self.path, self.done.copy(), self._end)

    def results(self) -> Iterator[bytes]:
        """The results as lines of JSON, in the order of rows."""
        with self.path.open("rb") as file:
            for entry in self.entries():
                file.seek(entry.offset)
                line = file.read(entry.length)
                yield line[line.index(_OUT) + len(_OUT) : -2] + b"\n"

    def sync(self) -> None:
        """Flush to the disk, in case the machine fails and not only this process."""
        os.fsync(self._file.fileno())
        self._synced = monotonic()

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self.path.unlink()
        self.close()

    def _append(self, value: Mapping[str, Any]) -> None:
        rest = _json(value)[1:]
        self._file.write(_PREFIX + b"%08x" % zlib.crc32(rest) + b'", ' + rest + b"\n")
        self._file.flush()
        self._end = self._file.tell()

    def _read(self) -> int:
        """Read the existing entries; returns the end offset. A torn last line is cut off."""
        file, end = self._file, 0
        file.seek(0)
        first = file.readline(_LONGEST)
        header = _checked(first)
        if header is None:
            # A journal whose very first line is torn holds nothing yet; anything else is another file.
            if first.endswith(b"\n") or not (first.startswith(_PREFIX) or _PREFIX.startswith(first)):
                raise UsageError(f"{self.path}: is no journal of edgedec batch; move it away, or pass --force")
        else:
            if header.get("journal") != VERSION:
                raise UsageError(f"{self.path}: a journal of another version; finish it there, or pass --force")
            self.header, end = header, len(first)
            for line in file:
                entry = _checked(line)
                if entry == header:  # of two copies that were put together
                    end += len(line)
                    continue
                if entry is None or not _is_row(line) or entry["row"] in self.done:
                    break
                self.done.add(entry["row"])
                self.failed += "failed" in entry
                end += len(line)
        self.cut = file.seek(0, os.SEEK_END) - end
        file.truncate(end)
        return end


def _entries(path: Path, done: Done, end: int) -> Iterator[Entry]:
    waiting: dict[int, Entry] = {}
    due = 0
    with path.open("rb") as file:
        offset = len(file.readline())
        while offset < end:
            line = file.readline()
            if not _is_row(line):
                offset += len(line)
                continue
            body = json.loads(line[: line.index(_OUT)] + b"}")
            waiting[body["row"]] = Entry(body["row"], body["of"], offset, len(line))
            offset += len(line)
            while due < done.low or waiting:
                if due in waiting:
                    yield waiting.pop(due)
                elif due in done:
                    break
                due += 1


def _checked(line: bytes) -> dict[str, Any] | None:
    """A line's content; None if it is damaged."""
    if not line.startswith(_PREFIX) or not line.endswith(b"}\n"):
        return None
    if line[len(_PREFIX) : _SKIP] != b'%08x", ' % zlib.crc32(line[_SKIP:-1]):
        return None
    found: dict[str, Any] = json.loads(b"{" + line[_SKIP:])
    return found


def _is_row(line: bytes) -> bool:
    """Whether a line is a row's and not a header."""
    return line[_SKIP:].startswith(b'"row": ')


def _json(value: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, default=plain).encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can express and UTF-8 cannot
        return json.dumps(value, default=plain).encode("ascii")


def _lock(file: IO[bytes], path: Path) -> None:
    """Two runs must not write one journal. The system takes the lock from a dead process."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{path}: another edgedec batch writes it; wait for it") from None
