"""`edgedec add-draft`: a published draft checkpoint into a bundle that is there."""

from __future__ import annotations

from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import changeable, export_module
from edgedec.cli._output import print_json, progress_bar, size

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def add_draft(
    draft: Annotated[str, typer.Argument(metavar="PATH", help="Folder of a draft or a small model, or a hub id.")],
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder of its target.")],
    weights: Annotated[
        o.Weights | None,
        typer.Option("--draft-weights", show_default=False, help="Format of its matrices; the target's by default."),
    ] = None,
    json: o.Json = False,
) -> None:
    """Add a draft to the bundle of its target.

    EAGLE-1, -2 and -3, Medusa, Hydra, Hydra++, multi-token prediction, or a small model (checkpoint, bundle, GGUF
    file). It takes the place of one of its kind.

    \b
    Examples:
      edgedec add-draft ./EAGLE3-LLaMA3.1-Instruct-8B ./llama
      edgedec add-draft ./medusa-vicuna-7b-v1.3 ./vicuna --draft-weights int8
      edgedec add-draft ./SmolLM2-135M-Instruct ./smol-1.7b --json
    """
    from edgedec.bundle import Bundle

    exporter = export_module("exporter", "add-draft")
    options = exporter.DraftOptions(weights=weights and weights.value)
    with progress_bar(quiet=json) as show:
        found, kind = exporter.put_draft(Bundle.open(changeable(bundle)), draft, options, show)
    files = [name for name in found.manifest.files if name.startswith(f"draft_{kind}.")]
    total = sum(found.manifest.files[name].size for name in files)
    if json:
        print_json({"bundle": str(found.path), "kind": kind, "digest": found.digest, "files": files, "bytes": total})
    else:
        print(f"{found.path}: {kind}, {size(total)}; use it with --spec {kind}")
