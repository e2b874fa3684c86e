"""Frames between this process and a worker: a JSON object and a block of bytes, over a socket or a pair of pipes."""

from __future__ import annotations

import json
import queue
import select
import socket
import struct
import threading
from typing import IO, Any, Protocol

# The largest frame of a guest.
LARGEST = 256 << 20
# Bytes read at a time; seconds to hand in a request.
_CHUNK, _LARGEST_CHUNK, _SEND = 1 << 16, 1 << 20, 30.0
_HEAD = struct.Struct("<II")
Frame = tuple[dict[str, Any], bytes]


class Channel(Protocol):
    """One end. `receive` raises TimeoutError in time, and EOFError when the other end is gone."""

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None: ...

    def receive(self, seconds: float) -> Frame: ...

    def ready(self, seconds: float) -> bool:
        """Whether `receive` would return, or raise EOFError, within `seconds`."""
        ...

    def interrupt(self) -> None:
        """Make `receive`, in another thread, raise EOFError."""
        ...

    def close(self) -> None: ...


def packed(message: dict[str, Any], blob: bytes) -> bytes:
    text = json.dumps(message).encode()
    return _HEAD.pack(len(text), len(blob)) + text + blob


def unpacked(text: bytes, blob: bytes) -> Frame:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("a frame of the worker is nested too deeply") from None
    return (found if isinstance(found, dict) else {}), blob


def sizes(head: bytes | bytearray) -> tuple[int, int]:
    """The sizes of the JSON and of the block, checked, as a compromised worker may send anything."""
    text, blob = _HEAD.unpack(head)
    if text + blob > LARGEST:
        raise EOFError("a frame of the worker is too large")
    return text, blob


class SocketChannel:
    """Over a socket, without a thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._buffer = bytearray()
        self._timeout: float | None = None
        # select() knows no descriptor above 1024; where poll is missing, pipes are used.
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        try:
            self._wait_at_most(_SEND)
            self._end.sendall(packed(message, blob))
        except OSError as error:
            raise EOFError(str(error)) from None

    def receive(self, seconds: float) -> Frame:
        try:
            self._wait_at_most(seconds)
            self._fill(_HEAD.size)
            text, blob = sizes(self._buffer[: _HEAD.size])
            start, end = _HEAD.size, _HEAD.size + text + blob
            self._fill(end)
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError(str(error)) from None
        both = bytes(self._buffer[start:end])
        del self._buffer[:end]
        return unpacked(both[:text], both[text:])

    def ready(self, seconds: float) -> bool:
        return bool(self._buffer) or bool(self._poll.poll(seconds * 1000))

    def interrupt(self) -> None:
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self._end.close()

    def _wait_at_most(self, seconds: float) -> None:
        if seconds != self._timeout:
            self._end.settimeout(seconds)
            self._timeout = seconds

    def _fill(self, n: int) -> None:
        """Until so many bytes are there; mostly a frame comes whole."""
        while len(self._buffer) < n:
            more = self._end.recv(min(max(_CHUNK, n - len(self._buffer)), _LARGEST_CHUNK))
            if not more:
                raise EOFError("the worker is gone")
            self._buffer += more


class PipeChannel:
    """Over the pipes of a process: a thread reads them, as not every system can wait for a pipe."""

    def __init__(self, write: IO[bytes], read: IO[bytes]) -> None:
        self._write, self._read = write, read
        self._frames: queue.Queue[Frame | None] = queue.Queue()
        self._next: list[Frame | None] = []
        threading.Thread(target=self._work, name="edgedec-sandbox", daemon=True).start()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        try:
            self._write.write(packed(message, blob))
            self._write.flush()
        except (OSError, ValueError) as error:
            raise EOFError(str(error)) from None

    def receive(self, seconds: float) -> Frame:
        if not self.ready(seconds):
            raise TimeoutError
        frame = self._next[0]
        if frame is None:
            raise EOFError("the worker is gone")
        self._next.clear()
        return frame

    def ready(self, seconds: float) -> bool:
        if not self._next:
            try:
                self._next.append(self._frames.get(timeout=max(seconds, 1e-6)))
            except queue.Empty:
                return False
        return True

    def interrupt(self) -> None:
        self._frames.put(None)

    def close(self) -> None:
        try:
            self._write.close()
        except OSError:
            pass

    def _work(self) -> None:
        try:
            while len(head := self._read.read(_HEAD.size)) == _HEAD.size:
                text, blob = sizes(head)
                both = self._read.read(text + blob)
                if len(both) < text + blob:
                    break
                self._frames.put(unpacked(both[:text], both[text:]))
        except (OSError, ValueError, EOFError):
            pass
        self._frames.put(None)
