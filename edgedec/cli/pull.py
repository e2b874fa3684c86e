"""`edgedec pull`: a model of the Hugging Face Hub becomes a bundle in the cache folder."""

from __future__ import annotations

from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import export_module
from edgedec.cli._output import print_json, progress_bar, size

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def pull(
    model: Annotated[
        str, typer.Argument(metavar="ORG/NAME", help="The model; also ORG/NAME@REVISION, or ORG/NAME/FILE.gguf.")
    ],
    weights: Annotated[
        o.Weights | None, typer.Option(show_default=False, help="Format of the layers' matrices; that of `export`.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Download a model of the Hugging Face Hub.

    \b
    Examples:
      edgedec pull HuggingFaceTB/SmolLM2-135M-Instruct
      edgedec pull Qwen/Qwen3-0.6B@main --weights int8
      edgedec pull Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q4_0.gguf
    """
    from edgedec.bundle.cached import HubName, origin_of

    hub, name = export_module("hub", "pull"), HubName.parse(model)
    before = origin_of(name)
    with progress_bar(quiet=json) as show:
        if name.file is not None:
            found, commit = hub.download_file(name), ""
        else:
            files = hub.download(name, show)
            found, commit = hub.exported(name, files, weights and weights.value, show), files.commit
    total = sum(file.stat().st_size for file in found.iterdir()) if found.is_dir() else found.stat().st_size
    new = before is None or origin_of(name) != before
    if json:
        print_json({"name": str(name), "path": str(found), "commit": commit, "bytes": total, "new": new})
    else:
        print(f"{name}: {size(total)}, {'ready' if new else 'was there already'}; edgedec run -m {name}")
