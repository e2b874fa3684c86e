"""What the commands of `edgedec bench` share: their options, and which model was measured where."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli._output import duration

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle

RowList = Annotated[str, typer.Option("--rows", metavar="K,K,…", help="Rows of a call.")]
Context = Annotated[int, typer.Option("--context", min=0, help="Cached tokens before the rows.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", show_default=False, help="Draw the costs: .png, .svg, .pdf.")
]


def parse_rows(text: str, flag: str = "--rows") -> tuple[int, ...]:
    """ "1,2,4" -> (1, 2, 4), ascending and each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"{flag} {text}: must be numbers of 1 or more with commas between")
    return tuple(sorted({int(part) for part in parts}))


def spec_list(text: str) -> list[str]:
    """ "copy,recycling:fixed=8,top=4" -> ["copy", "recycling:fixed=8,top=4"]: options have commas of their own."""
    names: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        else:
            names.append(part)
    return list(dict.fromkeys(names))


def expect(what: str) -> Callable[[float], None]:
    """What says on stderr how long a measurement may take."""

    def say(seconds: float) -> None:
        if seconds >= 3:
            print(f"{what}: about {duration(seconds)}; Ctrl-C ends it with what is measured by then", file=sys.stderr)

    return say


def plural(n: int, noun: str) -> str:
    """2, "thread" -> "2 threads"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def describe(bundle: Bundle) -> dict[str, Any]:
    """Which model was measured where."""
    from edgedec.cli import _host
    from edgedec.cli.inspect import bits

    manifest = bundle.manifest
    return {
        "host": {
            "cpu": _host.cpu_model(),
            "cores": _host.cores(),
            "features": _host.cpu_features(),
            "os": _host.system(),
        },
        "versions": _host.versions(),
        "model": manifest.name,
        "quantization": manifest.quantization,
        "bits_per_weight": bits(manifest.tensors.values()),
    }
