"""`edgedec add`: files that another target needs, into a bundle that is there."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import changeable, export_module, names
from edgedec.cli._output import duration, print_json, progress_bar, size

if TYPE_CHECKING:
    from edgedec.bundle import Bundle

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def add(
    first: Annotated[
        str, typer.Argument(metavar="TARGET", help="The target (edgedec targets): ort, tvm:x86-64-v3, ...")
    ],
    second: Annotated[
        str, typer.Argument(metavar="BUNDLE", show_default=False, help="Bundle folder; with --for the only argument.")
    ] = "",
    target: Annotated[str, typer.Option("--for", metavar="TARGET", show_default=False, help="The target.")] = "",
    kv: Annotated[
        str, typer.Option(metavar="FORMATS", show_default=False, help="Cache formats besides the bundle's own.")
    ] = "",
    tune: Annotated[
        bool,
        typer.Option("--tune", show_default=False, help="Of tvm: measure schedules here, and keep them."),
    ] = False,
    tuning: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Of tvm: the tuning database.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Add the files that a target needs to a bundle.

    \b
    Examples:
      edgedec add ort ./smol
      edgedec add ort ./smol --kv f16
      edgedec add qnn:SM8650 ./smol
      edgedec add ./smol --for tvm:x86-64-v3 --tune
    """
    if bool(second) == bool(target):
        raise typer.BadParameter("give TARGET BUNDLE, or BUNDLE --for TARGET")
    runtime, bundle = (target, first) if target else (first, second)
    if (tune or tuning) and not runtime.startswith("tvm:"):
        raise typer.BadParameter("--tune and --tuning are for targets tvm:...")
    amend, artifacts = export_module("amend", "add"), export_module("artifacts", "add")
    began = monotonic()
    with progress_bar(quiet=json) as show:
        how = artifacts.Tuning(tune, tuning)
        found: Bundle = amend.add_artifact(changeable(bundle), runtime, names(kv) if kv else (), show, how)
    _report(found, runtime, monotonic() - began, json)


def _report(found: Bundle, target: str, seconds: float, json: bool) -> None:
    """Which files the bundle has for the target now."""
    artifact = found.manifest.artifacts.get(target)
    files = [] if artifact is None else list(artifact.files)
    total = sum(found.manifest.files[name].size for name in files)
    if json:
        facts = {"bundle": str(found.path), "runtime": target, "digest": found.digest}
        print_json({**facts, "files": files, "bytes": total})
    elif files:
        count = "a file" if len(files) == 1 else f"{len(files)} files"
        print(f"{found.path}: {count} for {target}, {size(total)}, in {duration(seconds)}")
    else:
        print(f"{found.path}: {target} needs no files")
