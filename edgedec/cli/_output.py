"""How verbs print: JSON, small tables, sizes, progress bars. Rich is imported only to draw."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Cells = Sequence[object]


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


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
        print(f"\n{title}")
    texts = [[str(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    columns = range(max(map(len, texts), default=0))
    widths = [max(len(row[i]) for row in texts if i < len(row)) for i in columns]
    for row in texts:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """`show(stage, done, total)` draws a bar a stage on stderr; nothing if that is no terminal, or `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    tasks: dict[str, Any] = {}
    with Progress(console=Console(stderr=True)) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show
