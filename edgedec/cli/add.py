"""`edgedec add`: files that another runtime needs, into a bundle that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli import options as o
from edgedec.cli._exporting import export_module, names
from edgedec.cli._output import print_json, progress_bar, size

if TYPE_CHECKING:
    from edgedec.bundle import Bundle

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def add(
    runtime: Annotated[str, typer.Argument(metavar="RUNTIME", help="The runtime: ort, genai, ...")],
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    kv: Annotated[
        str, typer.Option(metavar="FORMATS", show_default=False, help="Cache formats besides the bundle's own.")
    ] = "",
    json: o.Json = False,
) -> None:
    """Add the files that a runtime needs to a bundle.

    \b
    Examples:
      edgedec add ort ./smol
      edgedec add ort ./smol --kv f16
      edgedec add genai ./smol --json
    """
    from edgedec.bundle.locate import find

    amend = export_module("amend", "add")
    with progress_bar(quiet=json) as show:
        found: Bundle = amend.add_artifact(find(bundle), runtime, names(kv) if kv else (), show)
    artifact = found.manifest.artifacts.get(runtime)
    files = () if artifact is None else artifact.files
    total = sum(found.manifest.files[name].size for name in files)
    if json:
        print_json(
            {
                "bundle": str(found.path),
                "runtime": runtime,
                "digest": found.digest,
                "files": list(files),
                "bytes": total,
            }
        )
    elif files:
        print(f"{found.path}: {len(files)} files for {runtime}, {size(total)}")
    else:
        print(f"{found.path}: {runtime} needs no files")
