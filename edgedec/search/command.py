"""A scorer that is a program: for each text it reads a line of JSON and writes a line of JSON."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from edgedec.errors import UsageError

# The longest line of an answer, and of what is quoted of a program's last words.
_LONGEST, _QUOTED = 1 << 20, 200


class CommandScorer:
    """Started at its first question; killed when it takes longer than `timeout` seconds, and by `close`."""

    def __init__(self, command: str, timeout: float) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--search: command={command}: {error}") from None
        if not self._words:
            raise UsageError("--search: command: is empty; name a program")
        self.name, self._timeout = f"command {command!r:.80}", timeout
        self._process: subprocess.Popen[str] | None = None
        self._lines, self._said = SimpleQueue[str](), list[str]()
        self._closed = False

    def ask(self, question: Mapping[str, str]) -> Any:
        """The answer to a line; UsageError in one line if there is none."""
        process = self._process or self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=self._timeout)
        except Empty:
            self.close()
            raise UsageError(f"{self.name}: no answer within {self._timeout:g} s") from None
        except (BrokenPipeError, ValueError, OSError):
            line = ""
        if not line:
            raise self._ended(process)
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise UsageError(f"{self.name}: answered {line.strip()!r:.60}; must be a line of JSON") from None

    def close(self) -> None:
        """Kill the program, if it runs."""
        self._closed = True
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError):
                process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[str]:
        if self._closed:
            raise UsageError(f"{self.name}: the search has ended")
        pipe = subprocess.PIPE
        try:
            made = subprocess.Popen(self._words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{self.name}: cannot be started ({error.strerror})") from None
        self._process = made
        threading.Thread(target=self._read, args=(made,), daemon=True).start()
        threading.Thread(target=self._listen, args=(made,), daemon=True).start()
        return made

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with suppress(ValueError, OSError):
            while line := process.stdout.readline(_LONGEST):
                self._lines.put(line)
        self._lines.put("")

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Keep the last line that it wrote as an error."""
        assert process.stderr is not None
        with suppress(ValueError, OSError):
            for line in process.stderr:
                if line.strip():
                    self._said[:] = [line.strip()[:_QUOTED]]

    def _ended(self, process: subprocess.Popen[str]) -> UsageError:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
        said = f" ({self._said[-1]})" if self._said else ""
        return UsageError(f"{self.name}: ended with status {process.poll()} before it answered{said}")
