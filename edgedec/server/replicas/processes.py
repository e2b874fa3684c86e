"""The processes of the replicas: started, supervised, restarted when they die, ended with the router."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from threading import Event, Thread
from time import monotonic

from edgedec.errors import EdgedecError
from edgedec.server.replicas.balancer import Load, ReadTexts

log = logging.getLogger("edgedec.server")
_READY = re.compile(r"edgedec: .* at http://\S+:(\d+)/v1 \(pid \d+\)$")
# Seconds until it is started again: doubled while it dies within the last of them.
_SOON, _LATE = 0.5, 30.0


class Replica:
    """A server in a process of its own, on a free port of this machine. command: what starts it."""

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number, self.load, self.port, self.starts = number, Load(), 0, 0
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[str] | None = None
        self._settled, self._closing, self._said = Event(), Event(), ""
        self._thread = Thread(target=self._watch, name=f"edgedec-replica-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """Wait until it accepts requests; EdgedecError with its output if it ended instead."""
        self._settled.wait()
        if not self.load.up:
            raise EdgedecError(f"replica {self.number}: {self._said or 'it ended before it took requests'}")

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def close(self, seconds: float = 0.0) -> None:
        """End it; running texts get `seconds` to finish."""
        self._closing.set()
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(seconds + 5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._thread.join()

    def _watch(self) -> None:
        wait = _SOON
        while not self._closing.is_set():
            began = monotonic()
            self._run()
            if not self._settled.is_set():  # the first start failed: there is nothing to start again
                self._settled.set()
                return
            if not self._closing.is_set():
                wait = _SOON if monotonic() - began > _LATE else min(2 * wait, _LATE)
                log.error("replica %d ended (%s); it is started again", self.number, self._said or "no word")
            self._closing.wait(wait)

    def _run(self) -> None:
        """Run the process from start to end; its output goes to the router's stderr."""
        # A session of its own: Ctrl-C at the terminal reaches only the router, which lets running texts end.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=self._environment,
            start_new_session=True,
        )
        self.starts += 1
        with self._process as process:
            if self._closing.is_set():
                process.terminate()
            assert process.stderr is not None
            for line in process.stderr:
                self._hear(line.rstrip("\n"))
        self.load.up = False

    def _hear(self, line: str) -> None:
        ready = _READY.search(line)
        if ready:
            self.port, self.load.read, self._said = int(ready[1]), ReadTexts(), ""
            self.load.up = True
            self._settled.set()
        elif "edgedec: chat page " not in line and line:
            self._said = line.removeprefix("edgedec: ")
            if self._settled.is_set():
                print(f"replica {self.number}: {line}", file=sys.stderr, flush=True)
