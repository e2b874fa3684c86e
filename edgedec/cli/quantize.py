"""`edgedec quantize`: a bundle again, in fewer bits."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module
from edgedec.cli._output import progress_bar
from edgedec.cli.export import FormatFlags, PassFlags, show_made

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def quantize(
    *,
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`; best one of floats.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="BUNDLE", help="The bundle folder to make.")],
    formats: FormatFlags,
    passes: PassFlags,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not compare with the source.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    name: Annotated[
        str | None, typer.Option(show_default=False, help="The bundle's name; that of its folder by default.")
    ] = None,
    threads: o.Threads = 0,
    json: o.Json = False,
) -> None:
    """Store a bundle's weights in other formats.

    Its weights are read as the floats that they stand for. Drafts and draft heads stay behind.

    \b
    Examples:
      edgedec quantize ./smol-f16 --weights int3 --quality good -o smol-int3
      edgedec quantize nano --weights int4 --passes gptq -o nano-int4
    """
    from edgedec.bundle.locate import find

    exporter = export_module("exporter", "quantize")
    settings = {"check": not no_check, "force": force, "name": name, "threads": threads}
    chosen = exporter.ExportOptions(**formats.options(), **passes.options(), **settings)
    began = perf_counter()
    with progress_bar(quiet=json) as show:
        made = exporter.export(str(find(bundle)), out, chosen, show)
    show_made(made, perf_counter() - began, json)
