"""Flags that several benchmarks share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json
from edgedec.cli.bench import _plot

if TYPE_CHECKING:
    import edgedec
    from edgedec.bundle.folder import Bundle

RowList = Annotated[str, typer.Option("--rows", metavar="K,K,…", help="Rows of a call.")]
Context = Annotated[int, typer.Option("--context", min=0, help="Cached tokens before the rows.")]
Prompts = Annotated[
    str,
    o.option("--prompts", metavar="SET", help="own, a file, or {mtbench,specbench,humaneval,gsm8k}=FILE."),
]
Rounds = Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Rounds, after a warm-up.")]


@dataclass(frozen=True)
class SubjectFlags:
    """The model that is measured, at its own sizes or at those of a larger one."""

    model: o.ModelName = "nano"
    geometry: Annotated[
        str | None,
        o.option("--as", metavar="GEOMETRY", help="At the cost of a larger model: llama-1b, smollm-135m."),
    ] = None

    def path(self, show: Any, context: int = 0) -> str:
        """What to open; with --as a padded copy, of at least so many positions."""
        return str(padded(self.model, self.geometry, show, context).path) if self.geometry else self.model

    def bundle(self, show: Any) -> Bundle:
        from edgedec.bundle.folder import Bundle
        from edgedec.bundle.locate import find

        bundle = padded(self.model, self.geometry, show) if self.geometry else Bundle.open(find(self.model))
        bundle.require_decoder()
        return bundle


@dataclass(frozen=True)
class RuntimeFlags:
    """What runs the model."""

    engine: o.Engine = "auto"
    threads: o.Threads = 0
    kv: o.KVFormat = None

    @property
    def used(self) -> int:
        """The threads, or all cores."""
        from edgedec.runtime import available_cores

        return self.threads or available_cores()

    @property
    def words(self) -> list[str]:
        """As flags of another edgedec command."""
        kv = ["--kv", self.kv] if self.kv else []
        return ["--engine", self.engine, "--threads", str(self.used), *kv]

    def open(self, path: str) -> edgedec.Model:
        return o.open_model(path, self.engine, self.used, self.kv)


@dataclass(frozen=True)
class OutputFlags:
    """Where the report goes."""

    plot: Annotated[Path | None, o.option("--plot", metavar="FILE", help="Draw the costs: .png, .svg, .pdf.")] = None
    json: o.Json = False

    def check(self) -> None:
        """UsageError before measuring if the picture cannot be drawn."""
        _plot.check(self.plot)

    def write(
        self,
        report: dict[str, Any],
        show: Callable[[dict[str, Any]], None],
        draw: Callable[[dict[str, Any], Path], None],
    ) -> None:
        """The report as a picture if one is wanted, and as JSON or for people."""
        if self.plot is not None:
            draw(report, self.plot)
        if self.json:
            print_json(report)
            return
        show(report)
        if self.plot is not None:
            print(f"plot: {self.plot}")


def padded(model: str, geometry: str, show: Any, context: int = 0) -> Bundle:
    """The model at another's sizes, from the cache or made now; with so many positions, if it has fewer."""
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find

    padding = export_module("padding", "--as")
    source = Bundle.open(find(model))
    source.require_decoder()
    path = padding.padded_path(source, geometry, context)
    if not path.is_dir():
        print(f"edgedec bench: {source.manifest.name} as {geometry} is made once, in {path}", file=sys.stderr)
    found: Bundle = padding.padded(source, geometry, show, context)
    return found
