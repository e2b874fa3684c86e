"""Progress of a build: the number of finished files, the time so far, the current file.

Standard library only: `build.py` runs it by its path.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TextIO


class BuildProgress:
    """A progress line on a stream: redrawn every second on a terminal, else one line every five seconds. Short builds
    print nothing."""

    def __init__(self, what: str, total: int, stream: TextIO, every: float | None = None) -> None:
        self._what, self._total, self._stream = what, total, stream
        self._terminal = stream.isatty()
        self._every = every if every is not None else 1.0 if self._terminal else 5.0
        self._done, self._shown, self._began, self._width = 0, False, monotonic(), 0
        self._names: list[str] = []
        self._lock, self.ended = threading.Lock(), threading.Event()

    def run(self, name: str, part: Callable[[], None]) -> None:
        """One of the files."""
        with self._lock:
            self._names.append(name)
        part()
        with self._lock:
            self._names.remove(name)
            self._done += 1

    def watch(self) -> None:
        """Show it until `end`."""
        while not self.ended.wait(self._every):
            self._show()

    def end(self) -> None:
        """The last line, if there was one before."""
        if self._shown:
            self._show()
            self._stream.write("\n" if self._terminal else "")
            self._stream.flush()

    def _show(self) -> None:
        self._shown = True
        with self._lock:
            at_work = f", at {', '.join(self._names[:2])}{' …' * (len(self._names) > 2)}" if self._names else ""
            line = f"{self._what}: {self._done} of {self._total} files, {monotonic() - self._began:.0f} s{at_work}"
        self._stream.write(f"\r{line.ljust(self._width)}" if self._terminal else f"{line}\n")
        self._width = len(line)
        self._stream.flush()


def run_all(
    parts: Sequence[tuple[str, Callable[[], None]]], jobs: int | None, what: str, every: float | None = None
) -> None:
    """Run named parts in threads, in order; shows the progress of `what` on stderr, if given."""
    progress = BuildProgress(what, len(parts), sys.stderr, every)
    watch = threading.Thread(target=progress.watch, daemon=True)
    if what:
        watch.start()
    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda part: progress.run(*part), parts))
    finally:
        progress.ended.set()
        if what:
            watch.join()
            progress.end()
