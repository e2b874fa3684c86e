"""`edgedec pack`: a bundle in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgedec.cli._flags import Json
from edgedec.cli._output import print_json, progress_bar, size

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def pack(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; BUNDLE.edb by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    json: Json = False,
) -> None:
    """Write a bundle to one file, which apps carry as an asset.

    libedgedec maps it where it lies; `-m FILE.edb` opens it anywhere else.

    \b
    Examples:
      edgedec pack nano -o nano.edb
      edgedec pack ./smol --json
    """
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import PACKED, find
    from edgedec.bundle.packed import pack as write
    from edgedec.errors import UsageError

    opened = Bundle.open(find(bundle))
    path = out or Path(f"{Path(bundle).name}{PACKED}")
    if path.exists() and not force:
        raise UsageError(f"{path}: exists already; choose another name or pass --force")
    with progress_bar(quiet=json) as show:
        total = write(opened, path, show)
    if json:
        print_json(
            {"file": str(path), "digest": opened.digest, "files": 1 + len(opened.manifest.files), "bytes": total}
        )
    else:
        print(f"{path}: {1 + len(opened.manifest.files)} files, {size(total)}")
