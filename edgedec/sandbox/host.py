"""The source of workers: a host process that has loaded a guest and forks them, or a new process for each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgedec.errors import LimitExceeded, RuntimeUnavailable
from edgedec.sandbox.channel import Channel, PipeChannel, SocketChannel, packed
from edgedec.sandbox.limits import GuestLimits
from edgedec.sandbox.worker import GuestWorker

_CHILD = Path(__file__).with_name("child.py")
# Seconds until a guest must be loaded; a large vocabulary takes about a second, longer on a busy machine.
_START = 120.0
_FORKS = sys.platform in ("linux", "darwin") and hasattr(socket, "send_fds")
_KEPT = (
    "PATH",
    "SYSTEMROOT",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "TEMP",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "PYTHONHOME",
)


def enabled() -> bool:
    """Whether guests run in worker processes: always, unless `EDGEDEC_SANDBOX=off`."""
    return os.environ.get("EDGEDEC_SANDBOX", "") != "off"


class Sandbox:
    """Workers of one guest. Started on first use; shared by all threads; restarted in a forked process."""

    def __init__(self, guest: Path, setup: Mapping[str, Any] | None = None, limits: GuestLimits | None = None) -> None:
        """guest: a file of Python that imports nothing of edgedec; setup: what its `setup` gets, once a process."""
        self._guest, self._setup, self.limits = guest, dict(setup or {}), limits or GuestLimits()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: SocketChannel | None = None
        self._raw: socket.socket | None = None
        self._owner = 0
        self._ready = False

    def start(self) -> None:
        """Start the host process without waiting for it."""
        if _FORKS:
            with self._lock:
                self._begin()

    def worker(self) -> GuestWorker:
        """A new worker process; LimitExceeded or RuntimeUnavailable if it cannot be started."""
        if self._owner not in (0, os.getpid()):
            self._lock = threading.Lock()  # another thread may have held it when this process was forked
        return self._forked() if _FORKS else self._spawned()

    def close(self) -> None:
        """End the host process; workers continue until they are closed."""
        with self._lock:
            self._end_host()

    def _forked(self) -> GuestWorker:
        here, there = socket.socketpair()
        with self._lock, there:
            try:
                pid = self._fork(there)
            except EOFError:
                # The host may have been killed from outside: once more, with a new one.
                self._end_host()
                try:
                    pid = self._fork(there)
                except EOFError:
                    self._end_host()
                    here.close()
                    raise LimitExceeded("its worker process cannot be started: the host process died") from None
            except BaseException:
                here.close()
                raise
        host = self._process
        return GuestWorker(SocketChannel(here), self.limits, lambda wait: self._ended(host, pid, wait), pid)

    def _fork(self, there: socket.socket) -> int:
        self._begin()
        assert self._control is not None
        assert self._raw is not None
        self._await()
        frame = packed(self.limits.message(), b"")
        try:
            sent = socket.send_fds(self._raw, [frame], [there.fileno()])
            self._raw.sendall(frame[sent:])
        except OSError as error:
            raise EOFError(str(error)) from None
        return int(self._control.receive(_START)[0]["pid"])

    def _ended(self, host: subprocess.Popen[bytes] | None, pid: int, wait: bool) -> int | None:
        """Kill a worker, if it is there; how it ended. wait: until it has, which takes long at a low priority."""
        if self._owner != os.getpid():
            return None
        with self._lock:
            if host is not self._process or self._control is None:
                return None
            try:
                self._control.send({"end": pid, "wait": wait})
                status = self._control.receive(_START)[0].get("status")
            except (EOFError, TimeoutError, ValueError):
                return None
        return status if isinstance(status, int) else None

    def _begin(self) -> None:
        if self._owner == os.getpid() and self._process is not None and self._process.poll() is None:
            return
        if self._owner == os.getpid():
            self._end_host()
        self._owner, self._ready = os.getpid(), False
        self._raw, there = socket.socketpair()
        with there:
            command = [*_python(), str(_CHILD), "fork", str(there.fileno())]
            self._process = _started(command, stdin=subprocess.DEVNULL, pass_fds=(there.fileno(),))
        self._control = SocketChannel(self._raw)
        self._control.send(self._first())

    def _await(self) -> None:
        if not self._ready:
            assert self._control is not None
            try:
                _checked(self._control, self._guest)
            except RuntimeUnavailable:
                self._end_host()
                raise
            self._ready = True

    def _end_host(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
        self._process = self._control = self._raw = None

    def _spawned(self) -> GuestWorker:
        process = _started([*_python(), str(_CHILD), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        channel = PipeChannel(process.stdin, process.stdout)
        channel.send(self._first())

        def end(wait: bool = True) -> int | None:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.2)  # it may have closed its pipes just now
            process.kill()
            process.wait()
            return None

        try:
            _checked(channel, self._guest)
        except BaseException:
            end()
            raise
        return GuestWorker(channel, self.limits, end)

    def _first(self) -> dict[str, Any]:
        return {"path": [p or os.getcwd() for p in sys.path], "guest": str(self._guest), "setup": self._setup}


def _checked(channel: Channel, guest: Path) -> None:
    """Wait until the guest is loaded; RuntimeUnavailable has the reason if it fails."""
    try:
        said, _ = channel.receive(_START)
    except (TimeoutError, EOFError) as error:
        raise RuntimeUnavailable(f"the worker process of {guest.name} died as it was started ({error})") from None
    if "error" in said:
        raise RuntimeUnavailable(f"the worker process of {guest.name} cannot be started: {said['error']}")


def _started(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # Secrets in the environment must not reach untrusted input.
    env = {**kept, "TOKENIZERS_PARALLELISM": "false", "PYTHONIOENCODING": "utf-8"}
    how.setdefault("stdout", subprocess.DEVNULL)
    try:
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, env=env, close_fds=True, **how)
    except OSError as error:
        raise RuntimeUnavailable(
            f"cannot start a worker process with {command[0]}: {error.strerror or error}"
        ) from None


def _python() -> list[str]:
    """The command of a Python interpreter: EDGEDEC_PYTHON, this one, or the one beside an embedding program."""
    beside = [Path(p) / f for p in (sys.prefix, sys.base_prefix) for f in ("bin/python3", "bin/python", "python.exe")]
    frozen = getattr(sys, "frozen", False)
    own = [] if frozen else [Path(p) for p in (sys.executable, getattr(sys, "_base_executable", "")) if p]
    own = [path for path in own if path.stem.lower().startswith(("python", "pypy"))]
    named = os.environ.get("EDGEDEC_PYTHON")
    for path in [Path(named)] if named else [*own, *beside]:
        if path.is_file():
            return [str(path), "-I", "-S", "-E"]
    raise RuntimeUnavailable(
        f"no Python interpreter for worker processes{f' at {named}' if named else ''}: set EDGEDEC_PYTHON to one, "
        "or EDGEDEC_SANDBOX=off if you trust the models and the schemas"
    )
