"""How verbs print: JSON, small tables, sizes, progress bars. Rich is imported only to draw."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from edgedec.cli._visible import plain_stderr, visible, visible_json

Cells = Sequence[object]


def print_json(value: Any) -> None:
    print(visible_json(json.dumps(value, ensure_ascii=False, indent=2)))


def size(n: float) -> str:
    """Bytes for people: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024 or unit == "GiB":
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError("unreachable")


def print_table(rows: Sequence[Cells], header: Cells = (), title: str = "") -> None:
    """Columns on stdout, without lines; numbers in pipes and terminals look the same."""
    if title:
        print(f"\n{visible(title)}")
    texts = [[visible(str(cell)) for cell in row] for row in ([header] if header else []) + list(rows)]
    columns = range(max(map(len, texts), default=0))
    widths = [max(len(row[i]) for row in texts if i < len(row)) for i in columns]
    for row in texts:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())


class ProgressLines:
    """Progress in a pipe or a log: a line every few seconds, with the time that is left."""

    def __init__(self, every: float = 5.0, clock: Callable[[], float] = monotonic) -> None:
        self._every, self._clock, self._stage = every, clock, ""
        self._began = self._shown = clock()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = self._clock()
        if stage != self._stage:
            self._stage, self._began, self._shown = stage, now, now
        if now - self._shown < self._every or not done or done >= total:
            return
        self._shown = now
        left = (now - self._began) * (total - done) / done
        print(f"{stage}: {done} of {total}, about {duration(left)} left", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """
    >>> duration(8.2), duration(200), duration(7500)
    ('8 s', '3 min 20 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """`show(stage, done, total)` draws a bar a stage on stderr, or prints a line now and then if that is no terminal;
    nothing if `quiet`."""
    if quiet:
        yield lambda stage, done, total: None
        return
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    from rich.console import Console
    from rich.progress import Progress

    tasks: dict[str, Any] = {}
    with Progress(console=Console(file=plain_stderr())) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show
