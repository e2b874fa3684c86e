"""The program of a worker process, run by its path in an interpreter of its own: the standard library and one guest.

    python -I -S -E child.py fork|serve FD

The first frame has `path` (sys.path), `guest` (a file) and `setup` (what its `setup` gets). Then, for `fork`, every
request is answered by a forked worker over the socket that came with it; for `serve`, by this process itself.
A guest has `handle(message, blob) -> (values, blob)`, and may have `setup(message)`; a ValueError is what it refuses.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct("<II")


def read(source: Callable[[int], bytes], n: int) -> bytes:
    found = bytearray()
    while len(found) < n:
        more = source(n - len(found))
        if not more:
            os._exit(0)  # the requesting process is gone
        found += more
    return bytes(found)


class _Stream:
    """A buffer of bytes that were read but not used yet."""

    def __init__(self, source: Callable[[int], bytes]) -> None:
        self._source, self._left = source, b""

    def read(self, n: int) -> bytes:
        if not self._left:
            self._left = self._source(min(max(n, 1 << 16), 1 << 20))
        found, self._left = self._left[:n], self._left[n:]
        return found


def receive(source: Callable[[int], bytes]) -> tuple[dict[str, Any], bytes]:
    text, blob = HEAD.unpack(read(source, HEAD.size))
    both = read(source, text + blob)
    return json.loads(both[:text]), both[text:]


def pack(message: dict[str, Any], blob: bytes = b"") -> bytes:
    text = json.dumps(message).encode()
    return HEAD.pack(len(text), len(blob)) + text + blob


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def answer(guest: Any, message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    """(values, block) of a request, or its error; a Rust panic is a BaseException."""
    try:
        return guest.handle(message, blob)
    except MemoryError:
        return {"memory": True}, b""
    except ValueError as error:
        return {"error": one_line(error)}, b""
    except RecursionError:
        return {"error": "is nested too deeply"}, b""
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {one_line(error)}", "unexpected": True}, b""


def serve(guest: Any, source: Callable[[int], bytes], sink: Callable[[bytes], object]) -> None:
    read_on = _Stream(source).read
    while True:
        message, blob = receive(read_on)
        timed = hasattr(signal, "setitimer")
        if timed:
            signal.setitimer(signal.ITIMER_PROF, float(message.pop("seconds", 0) or 0))
        values, blob = answer(guest, message, blob)
        try:
            frame = pack(values, blob)
        except ValueError as error:
            frame = pack({"error": one_line(error)})
        if timed:
            signal.setitimer(signal.ITIMER_PROF, 0)
        sink(frame)


def limit(limits: dict[str, Any]) -> None:
    """Limit memory (beyond the present use) and stack; forbid files, almost all new processes, and core dumps."""
    import resource

    used = 0
    try:
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        used = 4 << 30  # not Linux: at least a bound
    most = used + int(limits["memory"])
    stack = int(limits["stack"])
    wanted = {"AS": most, "DATA": most, "STACK": stack, "CORE": 0, "FSIZE": 0, "NOFILE": 64}
    for name, value in wanted.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, hard if name == "STACK" else value))
        except (ValueError, OSError):
            pass


def fork_workers(guest: Any, control: socket.socket) -> None:
    """Fork a worker for each request; answer queries for the exit codes of ended workers."""
    ended: dict[int, int] = {}
    while True:
        head, fds, _, _ = socket.recv_fds(control, HEAD.size, 1)
        if not head:
            os._exit(0)
        text, _ = HEAD.unpack(head + read(control.recv, HEAD.size - len(head)) if len(head) < HEAD.size else head)
        message = json.loads(read(control.recv, text))
        _reap(ended)
        if "end" in message:
            control.sendall(pack({"status": _end(message["end"], ended, message["wait"])}))
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            mine = socket.socket(fileno=fds[0])
            limit(message)
            try:
                serve(guest, mine.recv, mine.sendall)
            finally:
                os._exit(1)
        os.close(fds[0])
        control.sendall(pack({"pid": pid}))


def _reap(ended: dict[int, int]) -> None:
    """Put the exit codes of workers that ended into `ended`."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        ended[pid] = os.waitstatus_to_exitcode(status)
        while len(ended) > 1000:  # no query has come for them
            del ended[next(iter(ended))]


def _end(pid: int, ended: dict[int, int], wait: bool) -> int | None:
    """The exit code of a worker, which is killed if it still runs; None if there is no such worker, or if it is not
    waited for: `_reap` collects it later."""
    if pid not in ended:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                os.kill(pid, signal.SIGKILL)
                if not wait:
                    return None
                done, status = os.waitpid(pid, 0)
            ended[pid] = os.waitstatus_to_exitcode(status)
        except (ChildProcessError, ProcessLookupError):
            return None
    return ended.pop(pid)


def load(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("guest", file)
    assert spec is not None
    assert spec.loader is not None
    guest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(guest)
    return guest


def main() -> None:
    source: Callable[[int], bytes]
    sink: Callable[[bytes], object]
    if sys.argv[1] == "fork":
        control = socket.socket(fileno=int(sys.argv[2]))
        source, sink = control.recv, control.sendall
    else:
        out = os.fdopen(os.dup(1), "wb", 0)
        os.dup2(2, 1)  # a guest's prints must not corrupt the frames
        source, sink = os.fdopen(os.dup(0), "rb", 0).read, out.write
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started this
    first, _ = receive(source)
    sys.path[:] = first["path"]
    try:
        guest = load(first["guest"])
        if hasattr(guest, "setup"):
            guest.setup(first["setup"])
    except BaseException as error:
        sink(pack({"error": one_line(error), "type": type(error).__name__}))
        return
    sink(pack({"ready": True}))
    if sys.argv[1] == "fork":
        fork_workers(guest, control)
    else:
        serve(guest, source, sink)


if __name__ == "__main__":
    main()
