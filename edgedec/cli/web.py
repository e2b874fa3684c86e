"""`edgedec web`: a bundle as a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli._exporting import export_module
from edgedec.cli._flags import Json
from edgedec.cli._output import print_json, progress_bar, size

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def web(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to write.")],
    kv: Annotated[
        str, typer.Option(metavar="FORMAT", show_default=False, help="Cache format: f32, f16, int8 or int4.")
    ] = "",
    spec: Annotated[
        str,
        typer.Option(metavar="DRAFTERS", help="off, auto, or of copy, suffix, recycling, trigram some, joined by +."),
    ] = "auto",
    draft: Annotated[int, typer.Option(metavar="N", help="Drafted tokens a call; 0: as many as pay.")] = 0,
    threads: Annotated[
        int, typer.Option(metavar="N", help="0: as many as pay, where the browser allows it; 1: one.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace the folder if it exists.")] = False,
    json: Json = False,
) -> None:
    """Write a chat page that decodes in the browser.

    \b
    Examples:
      edgedec web nano -o site
      edgedec web ./smol -o site --kv int8 --force
    """
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find

    opened = Bundle.open(find(bundle))
    opened.require_decoder()
    module = export_module("web", "web")
    with progress_bar(quiet=json) as show:
        total = module.write_site(opened, out, module.SiteSettings(kv, spec, draft, threads), force=force, show=show)
    if json:
        print_json({"folder": str(out), "digest": opened.digest, "bytes": total})
    else:
        print(f"{out}: {size(total)}; to look at it: python -m http.server -d {out}")
